"""Measures a store through Mooncake's Python API, so that it measures upstream's package, too.

Side by side, in turns, with three masters of ours (fdatasync) and one of upstream's, which has no log:

    pip download --no-deps mooncake-transfer-engine-non-cuda==0.3.13.post1 && unzip -d upstream mooncake_*.whl
    python mooncake_bench.py compare --upstream upstream

The servers of our side are found as by the tests: MC_BIN_DIR, beside the interpreter, or on PATH.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from sides import MIB, Side, connect, ours, upstream

KIB = 1 << 10
UNITS = ((MIB, "MiB"), (KIB, "KiB"), (1, "B"))
KEYS = 128
SEGMENT = 768 * MIB
# Calls of a thread between two readings of the clock. Puts stop earlier: they fill half of the segment.
CALLS = 50


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    call: str
    size: int
    keys: int
    threads: int
    where: str
    """Where the memory is: "embedded" in this process, "process" in another one, "tcp" the same over TCP."""

    @property
    def unit(self) -> str:
        if self.keys == 1:
            return "ms"
        return "GB/s" if self.size >= 16 * KIB else "keys/s"

    def __str__(self) -> str:
        unit, name = next((unit, name) for unit, name in UNITS if self.size >= unit)
        threads = "1 thread " if self.threads == 1 else f"{self.threads} threads"
        return f"{self.call:5} {self.keys:3} x {f'{self.size // unit} {name}':7} {threads} {self.where:8}"


ROWS = [
    *(Row(call, 256, KEYS, threads, "process") for call in ("exist", "get", "put") for threads in (1, 4)),
    *(
        Row(call, size, KEYS, 1, where)
        for where in ("embedded", "process", "tcp")
        for size in (16 * KIB, 128 * KIB, MIB)
        for call in ("put", "get")
    ),
    *(Row(call, 4 * KIB, 1, 1, where) for where in ("embedded", "process") for call in ("exist", "get", "put")),
]


def measure(master: str, row: Row, seconds: float) -> float:
    """Result of one row, in its unit."""
    import ctypes

    store = connect(master, SEGMENT if row.where == "embedded" else 0)
    length = row.keys * row.size
    buffers = [ctypes.create_string_buffer(os.urandom(length), length) for _ in range(row.threads)]
    for buffer in buffers:
        if store.register_buffer(ctypes.addressof(buffer), length):
            raise SystemExit("register_buffer failed")

    def arguments(thread: int, number: int) -> tuple[list[str], list[int], list[int]]:
        start = ctypes.addressof(buffers[thread])
        # Keys as long as SGLang's.
        keys = [f"{thread:04d}-{number:08d}-{index:04d}-{'k' * 64}_0_k" for index in range(row.keys)]
        return keys, [start + index * row.size for index in range(row.keys)], [row.size] * row.keys

    def check(what: str, results: list[int], expected: int) -> None:
        if results != [expected] * row.keys:
            raise SystemExit(f"{what} of {row}: {sorted(set(results))}")

    prepared = [arguments(thread, 0) for thread in range(row.threads)]
    if row.call != "put":
        for one in prepared:
            check("put", store.batch_put_from(*one), 0)

    def exist(thread: int, number: int) -> None:
        check("exist", store.batch_is_exist(prepared[thread][0]), 1)

    def get(thread: int, number: int) -> None:
        check("get", store.batch_get_into(*prepared[thread]), row.size)

    def put(thread: int, number: int) -> None:
        check("put", store.batch_put_from(*fresh[thread][number]), 0)

    call: Callable[[int, int], None] = {"exist": exist, "get": get, "put": put}[row.call]
    # New keys for a round of puts are made before its time starts, and the pool is emptied after it.
    rounds = max(1, min(SEGMENT // 2 // length // row.threads, CALLS)) if row.call == "put" else CALLS
    fresh: list[list[tuple[list[str], list[int], list[int]]]] = []
    took, calls, begun, number = 0.0, 0, time.monotonic(), 1
    while took < seconds and time.monotonic() - begun < 4 * seconds:
        fresh = [[arguments(thread, number + r) for r in range(rounds)] for thread in range(row.threads)]
        took += timed(call, row.threads, rounds)
        calls += rounds * row.threads
        number += rounds
        if row.call == "put":
            store.remove_all(True)
    store.close()
    if row.unit == "ms":
        return took / calls * 1000
    return calls * (length / 1e9 if row.unit == "GB/s" else row.keys) / took


def timed(call: Callable[[int, int], None], threads: int, rounds: int) -> float:
    """Seconds for `rounds` calls of each thread."""
    if threads == 1:
        start = time.perf_counter()
        for number in range(rounds):
            call(0, number)
        return time.perf_counter() - start
    barrier = threading.Barrier(threads + 1)

    def work(thread: int) -> None:
        barrier.wait()
        for number in range(rounds):
            call(thread, number)

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    barrier.wait()
    start = time.perf_counter()
    for worker in workers:
        worker.join()
    return time.perf_counter() - start


def run(side: Side, row: Row, seconds: float) -> float:
    """Result of one row, measured in a process of its own."""
    # Only our side knows the variable; upstream has no shared memory to switch off.
    transport = {"MC_TRANSPORT": "tcp"} if row.where == "tcp" else {}
    store = side.add_store(SEGMENT, **transport) if row.where != "embedded" else None
    try:
        command = [sys.executable, __file__, "measure", "--master", side.masters, "--row", str(ROWS.index(row)), "--seconds", str(seconds)]
        environ = {**os.environ, **side.environ, **transport}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
        if done.returncode:
            print(f"{side.name}: {row}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
            return float("nan")
        return float(json.loads(done.stdout.splitlines()[-1]))
    finally:
        if store is not None:
            store.stop()


def compare(package: Path | None, rounds: int, seconds: float, pattern: str) -> None:
    # The cache of the measuring process would answer gets, and the row is about the pool.
    with TemporaryDirectory() as directory, ours(Path(directory) / "ours", MC_LOCAL_CACHE="0") as first:
        if package is None:
            print_table([first], rounds, seconds, pattern)
            return
        with upstream(Path(directory) / "upstream", package) as second:
            print_table([first, second], rounds, seconds, pattern)


def print_table(sides: list[Side], rounds: int, seconds: float, pattern: str) -> None:
    print(f"{'':43} {'':6}", *(f"{side.name:>10}" for side in sides), "  (medians of", f"{rounds} turns)")
    for row in ROWS:
        if pattern not in str(row):
            continue
        results: list[list[float]] = [[] for _ in sides]
        for turn in range(rounds):
            # The side that begins changes from turn to turn: the second one finds the machine warm.
            for side in range(len(sides))[:: -1 if turn % 2 else 1]:
                results[side].append(run(sides[side], row, seconds))
        medians = [statistics.median(values) for values in results]
        digits = 0 if row.unit == "keys/s" else 3
        print(f"{row!s:43} {row.unit:6}", *(f"{median:10,.{digits}f}" for median in medians), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("compare", help="measure our package, and upstream's beside it")
    one.add_argument("--upstream", type=Path, help="folder into which upstream's wheel was unpacked")
    one.add_argument("--rounds", type=int, default=3, help="turns of each side (3)")
    one.add_argument("--seconds", type=float, default=1.0, help="time of each row in a turn (1)")
    one.add_argument("--rows", default="", help="only rows whose name contains this text")
    two = commands.add_parser("measure", help="one row against a running pool")
    two.add_argument("--row", type=int, required=True)
    two.add_argument("--seconds", type=float, default=1.0)
    two.add_argument("--master", required=True)
    arguments = parser.parse_args()
    if arguments.command == "compare":
        compare(arguments.upstream, arguments.rounds, arguments.seconds, arguments.rows)
    else:
        print(json.dumps(measure(arguments.master, ROWS[arguments.row], arguments.seconds)))


if __name__ == "__main__":
    main()
