"""Counts what a pool breaks of its promises, through Mooncake's Python API alone: our package, and upstream's.

    pip download --no-deps mooncake-transfer-engine-non-cuda==0.3.13.post1 && unzip -d upstream mooncake_*.whl
    python tests/engines/promises.py --upstream upstream --etcd /usr/bin/etcd

Each promise is tried `--rounds` times on a fresh pool of three stores, and each side's calls run in processes of their own:

- kill -9 of the master: a client puts objects, the master that serves is killed and started again, another client
  reads them at once, and again when a new object passes through the pool.
- SIGSTOP of a store: a store's process is stopped while one client reads objects with one and with two replicas and
  another puts new ones; then it goes on. Two seconds are less than any side waits for a store. Twelve are more than the ten
  after which upstream's master gives one up; a third of the rounds have them.
- a store is added: clients put and read while it joins.
- remove and read again: a client reads objects, another one removes them, the first reads again; then the same keys are put
  with new bytes, and it reads once more.

At the end every object that was acknowledged and not removed is read again, for up to 30 seconds until it is there.
Columns, in objects, each in one of them:

- acked: puts that were answered with success.
- lost: acknowledged, and not readable at the end.
- stale: a read answered bytes that were removed before it began.
- wrong: a read answered other bytes than any put had for this key.
- missed: a read said that the object does not exist (`batch_is_exist` 0 or `batch_get_into` -704), and it is there at the end.
- refused: a read failed with another code, so that the caller knows nothing, and the object is there at the end.
- stopped: missed or refused while the only replica was in a stopped process, and until the masters had heard of it again.
  Nothing could serve these objects.

Besides: puts that failed (and removals), and the longest put, check, get or removal. The exit status is 1 if our side has objects
that are lost, stale, wrong or missed.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import suite

sys.path.insert(0, str(suite.REPOSITORY / "client" / "python" / "bench"))

import sides
from sides import MIB, Side, Store, Worker

from cluster import until

SIZE = 16 << 10
KEYS = 32
SEGMENT = 128 * MIB
STORES = 3
SETTLED_SECONDS = 30.0
NOT_FOUND = -704


def value(key: str, version: int) -> bytes:
    return hashlib.shake_128(f"{key}/{version}".encode()).digest(SIZE)


class Client:
    """One client in a worker process. Versions of a key count from 1; a read that expects version 0 expects nothing."""

    COMMANDS = ("put", "read", "remove", "holders", "add_store", "longest")

    def __init__(self, masters: str) -> None:
        self._masters, self._added = masters, list[Any]()
        self._store = sides.connect(masters, 0)
        self._buffer = ctypes.create_string_buffer(2 * KEYS * SIZE)
        if self._store.register_buffer(ctypes.addressof(self._buffer), len(self._buffer)):
            raise SystemExit("register_buffer failed")
        self._longest = 0.0

    def _timed(self, call: Callable[..., Any], *arguments: Any) -> Any:
        began = time.perf_counter()
        result = call(*arguments)
        self._longest = max(self._longest, time.perf_counter() - began)
        return result

    def _places(self, count: int) -> tuple[list[int], list[int]]:
        start = ctypes.addressof(self._buffer)
        return [start + index * SIZE for index in range(count)], [SIZE] * count

    def put(self, keys: list[str], version: int, copies: int) -> list[int]:
        from mooncake.store import ReplicateConfig

        config = ReplicateConfig()
        config.replica_num = copies
        data = b"".join(value(key, version) for key in keys)
        ctypes.memmove(self._buffer, data, len(data))
        codes: list[int] = self._timed(self._store.batch_put_from, keys, *self._places(len(keys)), config)
        return codes

    def read(self, keys: list[str], version: int) -> list[str]:
        """What a check and a get say of each key."""
        ctypes.memset(self._buffer, 0, len(keys) * SIZE)
        present = self._timed(self._store.batch_is_exist, keys)
        lengths = self._timed(self._store.batch_get_into, keys, *self._places(len(keys)))
        found = memoryview(self._buffer).cast("B")
        answers = []
        for index, key in enumerate(keys):
            data = bytes(found[index * SIZE : (index + 1) * SIZE]) if lengths[index] >= 0 else None
            answers.append(judge(key, version, present[index], lengths[index], data))
        return answers

    def remove(self, keys: list[str]) -> list[int]:
        # Leases of readers do not stop a forced removal.
        return [self._timed(self._store.remove, key, True) for key in keys]

    def holders(self, keys: list[str]) -> list[list[str]]:
        """Endpoints of the replicas of each object."""
        return [
            [replica.get_memory_descriptor().buffer_descriptor.transport_endpoint for replica in self._store.get_replica_desc(key)]
            for key in keys
        ]

    def add_store(self) -> None:
        """Lends memory to the pool from this process, as one more store."""
        self._added.append(sides.connect(self._masters, SEGMENT // 4))

    def longest(self) -> float:
        """Seconds that the longest call took."""
        return self._longest


def judge(key: str, version: int, present: int, length: int, data: bytes | None) -> str:
    if data is not None and not (length == SIZE and version and data == value(key, version)):
        earlier = length == SIZE and any(data == value(key, old) for old in range(1, version or 2))
        return "stale" if earlier else "wrong"
    if not version:
        # A check may still say that it exists, which sends the caller to a get.
        return "stale" if present == 1 else "ok" if present == 0 and length == NOT_FOUND else "refused"
    if present == 0 or length == NOT_FOUND:
        return "missed"
    return "refused" if present < 0 or length < 0 else "ok"


@dataclass
class Object:
    """What reads said of one acknowledged object."""

    version: int
    only_copy_stopped: bool = False
    answers: set[str] = field(default_factory=set)
    at_the_end: str = "ok"

    def result(self) -> str:
        for broken in ("wrong", "stale"):
            if broken in self.answers or self.at_the_end == broken:
                return broken
        if self.at_the_end != "ok":
            return "lost"
        troubled = next((trouble for trouble in ("missed", "refused") if trouble in self.answers), "ok")
        return "stopped" if troubled != "ok" and self.only_copy_stopped else troubled


COLUMNS = ("lost", "stale", "wrong", "missed", "refused", "stopped")
BROKEN = ("lost", "stale", "wrong", "missed")
WIDTHS = (6, 6, 6, 6, 6, 8, 8, 12, 13)
Choice = Callable[[Path], AbstractContextManager[Side]]


class Pool:
    """A side with stores and two clients, and what became of the objects that they put."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.objects: dict[str, Object] = {}
        self.failed_puts = 0
        self._names = 0
        self.writer, self.reader, self.adder = (Worker(side, __file__, side.masters) for _ in range(3))
        self.stores: list[Store] = []
        self.endpoints: list[str] = []
        for _ in range(STORES):
            self.stores.append(side.add_store(SEGMENT))
            self.endpoints.append(self._new_endpoint())

    def _new_endpoint(self) -> str:
        """Endpoint of the store that was added last: objects get there that no other store holds."""
        known = set(self.endpoints)

        def found() -> str | None:
            acknowledged = self.put(self.names(KEYS))
            held = {endpoint for replicas in self.writer.ask("holders", keys=acknowledged) for endpoint in replicas}
            return next(iter(held - known), None)

        return until("an object lies in the new store", found)

    def names(self, count: int) -> list[str]:
        self._names += count
        return [f"promises-{number}" for number in range(self._names - count, self._names)]

    def send_put(self, keys: list[str], version: int = 1, copies: int = 1) -> None:
        self.writer.send("put", keys=keys, version=version, copies=copies)

    def acknowledged(self, keys: list[str], version: int = 1) -> list[str]:
        """Those of the puts that were sent last which were acknowledged."""
        codes = self.writer.receive()
        done = [key for key, code in zip(keys, codes, strict=True) if code == 0]
        self.failed_puts += len(keys) - len(done)
        for key in done:
            self.objects.setdefault(key, Object(version)).version = version
        return done

    def put(self, keys: list[str], version: int = 1, copies: int = 1) -> list[str]:
        self.send_put(keys, version, copies)
        return self.acknowledged(keys, version)

    def remove(self, keys: list[str]) -> list[str]:
        """Removes objects, and returns those that are known to be gone."""
        done = []
        for key, code in zip(keys, self.writer.ask("remove", keys=keys), strict=True):
            if code == 0:
                done.append(key)
                self.objects[key].version = 0
            else:
                self.failed_puts += 1
                del self.objects[key]
        return done

    def send_read(self, keys: list[str], version: int = 1) -> None:
        self.reader.send("read", keys=keys, version=version)

    def note(self, keys: list[str]) -> None:
        """Notes what the read that was sent last has said."""
        for key, answer in zip(keys, self.reader.receive(), strict=True):
            self.objects[key].answers.add(answer)

    def read(self, keys: list[str], version: int = 1) -> None:
        self.send_read(keys, version)
        self.note(keys)

    def wait_until_it_serves(self) -> None:
        """Waits until one client reads what the other one has just put."""

        def serves() -> bool:
            keys = self.put(self.names(1))
            return bool(keys) and self.reader.ask("read", keys=keys, version=1) == ["ok"]

        until("an object passes through the pool", serves)

    def read_all(self) -> None:
        """Reads every object again, until all are there or the time is over."""
        self.wait_until_it_serves()
        left, deadline = dict(self.objects), time.monotonic() + SETTLED_SECONDS
        while left and time.monotonic() < deadline:
            for version in {found.version for found in left.values()}:
                keys = [key for key, found in left.items() if found.version == version]
                for start in range(0, len(keys), 2 * KEYS):
                    part = keys[start : start + 2 * KEYS]
                    for key, answer in zip(part, self.reader.ask("read", keys=part, version=version), strict=True):
                        self.objects[key].at_the_end = answer
            left = {key: found for key, found in left.items() if found.at_the_end in ("missed", "refused")}

    def counts(self) -> dict[str, int]:
        results = [found.result() for found in self.objects.values()]
        return {result: results.count(result) for result in COLUMNS}

    def longest(self) -> float:
        """Seconds that the longest call took."""
        return max(float(client.ask("longest")) for client in (self.writer, self.reader))

    def end(self) -> None:
        for client in (self.writer, self.reader, self.adder):
            client.end()


Scenario = Callable[[Pool, int], None]


def kill_master(pool: Pool, number: int) -> None:
    keys = pool.put(pool.names(KEYS))
    pool.side.kill_master()
    pool.side.restart_master()
    pool.read(keys)
    pool.wait_until_it_serves()
    pool.read(keys)


def stop_store(pool: Pool, number: int, seconds: float) -> None:
    keys = pool.put(pool.names(KEYS)) + pool.put(pool.names(KEYS), copies=2)
    victim = number % STORES
    for key, holders in zip(keys, pool.writer.ask("holders", keys=keys), strict=True):
        pool.objects[key].only_copy_stopped = holders == [pool.endpoints[victim]]
    new = pool.names(KEYS)
    pool.stores[victim].pause()
    stopped = time.monotonic()
    pool.send_read(keys)
    pool.send_put(new)
    time.sleep(max(0, seconds - (time.monotonic() - stopped)))
    pool.stores[victim].resume()
    pool.note(keys)
    new = pool.acknowledged(new)
    pool.wait_until_it_serves()
    pool.read(new)
    pool.read(keys)


def add_store(pool: Pool, number: int) -> None:
    before = pool.put(pool.names(KEYS))
    # One process lends all that are added: each is a store of its own to the masters.
    pool.adder.send("add_store")
    joined = False
    while not joined:
        joined = pool.adder.answered()
        pool.read(before)
        pool.read(pool.put(pool.names(4)))
    pool.adder.receive()


def remove_and_read(pool: Pool, number: int) -> None:
    keys = pool.put(pool.names(KEYS))
    pool.read(keys)
    keys = pool.remove(keys)
    pool.read(keys, version=0)
    keys = pool.put(keys, version=2)
    pool.read(keys, version=2)


# The second number divides the rounds.
SCENARIOS: dict[str, tuple[Scenario, int]] = {
    "kill -9 of the master": (kill_master, 1),
    "SIGSTOP of a store, 2 s": (partial(stop_store, seconds=2), 1),
    "SIGSTOP of a store, 12 s": (partial(stop_store, seconds=12), 3),
    "a store is added": (add_store, 1),
    "remove and read again": (remove_and_read, 1),
}


def run(side: Side, scenario: Scenario, rounds: int) -> tuple[dict[str, int], list[str]]:
    """Runs the rounds on a fresh pool. Returns the objects of each result, and the row of the table."""
    pool = Pool(side)
    try:
        for number in range(rounds):
            scenario(pool, number)
        pool.read_all()
        counts = pool.counts()
        numbers = [len(pool.objects), *counts.values(), pool.failed_puts]
        return counts, [*(f"{number:,}" for number in numbers), f"{pool.longest():.2f} s"]
    finally:
        pool.end()


def table_row(name: str, side: str, rounds: str, row: list[str]) -> None:
    print(f"{name:25}{side:16}{rounds:>6}", *(f"{value:>{width}}" for value, width in zip(row, WIDTHS, strict=True)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("work", help="answer commands as one client").add_argument("masters")
    parser.add_argument("--upstream", type=Path, help="folder into which upstream's wheel was unpacked")
    parser.add_argument("--etcd", type=Path, help="etcd's executable: upstream's masters are killed with it and an op log, too")
    parser.add_argument("--rounds", type=int, default=30, help="rounds of each promise (30)")
    parser.add_argument("--only", default="", help="only promises whose name contains this text")
    arguments = parser.parse_args()
    if arguments.command == "work":
        client = Client(arguments.masters)
        sides.work({name: getattr(client, name) for name in Client.COMMANDS})
        return

    suite.headline("Promises")
    # Upstream moves these bytes over TCP, so ours do, too: shared memory needs no answer of a stopped process.
    choices: list[Choice] = [lambda folder: sides.ours(folder, MC_TRANSPORT="tcp")]
    if arguments.upstream:
        choices.append(lambda folder: sides.upstream(folder, arguments.upstream))
        if arguments.etcd:
            choices.append(lambda folder: sides.upstream_with_etcd(folder, arguments.upstream, arguments.etcd))
    options: dict[str, str] = {}
    broken = 0
    table_row("", "", "rounds", ["acked", *COLUMNS, "failed puts", "longest call"])
    for name, (scenario, divisor) in SCENARIOS.items():
        if arguments.only not in name:
            continue
        rounds = max(1, arguments.rounds // divisor)
        # Only the first promise is about masters.
        for choose in choices if scenario is kill_master else choices[:2]:
            with TemporaryDirectory() as folder, choose(Path(folder)) as side:
                options[side.name] = side.options
                counts, row = run(side, scenario, rounds)
                table_row(name, side.name, f"{rounds}", row)
                if side.name == "ours":
                    broken += sum(counts[result] for result in BROKEN)
    for side_name, option in options.items():
        print(f"{side_name}: {option}")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
