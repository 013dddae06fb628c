#!/usr/bin/env python3
"""Transfers between two processes over TCP, with this package's transfer engine and upstream's: engine_bench.py [--upstream FOLDER]

FOLDER is an unpacked wheel of Mooncake (mooncake-transfer-engine). Each row is the median of several rounds in GB/s, sides in turn,
beside a copy of the same bytes inside of one process. Both sides use P2PHANDSHAKE and `tcp` on the loopback interface.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

SIZE = 256 << 20
# Name, bytes of a piece, pieces of a call.
SHAPES = [("1 x 4 KiB", 4 << 10, 1), ("128 x 16 KiB", 16 << 10, 128), ("128 x 128 KiB", 128 << 10, 128), ("1 x 64 MiB", 64 << 20, 1)]
CALLS = ["batch_transfer_sync_write", "batch_transfer_sync_read"]


class Side:
    """Two processes with the engine of one package."""

    def __init__(self, name: str, package: Path | None) -> None:
        self.name = name
        environ = {**os.environ, "MC_FORCE_TCP": "1", "GLOG_minloglevel": "2"}
        if package is not None:
            environ["PYTHONPATH"] = str(package)
        self._processes: list[subprocess.Popen[str]] = []
        target = self._start(environ, "serve")
        session, address = self._line(target).split()
        self._driver = self._start(environ, "drive", session, address)
        assert self._line(self._driver) == "ready"

    def _start(self, environ: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, *arguments]
        process = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._processes.append(process)
        return process

    @staticmethod
    def _line(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        # Upstream's libraries print, too.
        for line in process.stdout:
            if line.startswith("> "):
                return line[2:].strip()
        sys.exit("a process of the benchmark ended")

    def measure(self, call: str, piece: int, pieces: int, seconds: float) -> float:
        """GB/s of one round."""
        assert self._driver.stdin is not None
        self._driver.stdin.write(f"{call} {piece} {pieces} {seconds}\n")
        self._driver.stdin.flush()
        return float(self._line(self._driver))

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def say(*words: object) -> None:
    print(">", *words, flush=True)


def memory() -> tuple[ctypes.Array[ctypes.c_char], int]:
    buffer = ctypes.create_string_buffer(SIZE)
    ctypes.memset(buffer, 1, SIZE)
    return buffer, ctypes.addressof(buffer)


def serve() -> None:
    from mooncake.engine import TransferEngine

    engine, (_buffer, address) = TransferEngine(), memory()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    assert engine.register_memory(address, SIZE) == 0
    say(f"127.0.0.1:{engine.get_rpc_port()}", address)
    sys.stdin.read()


def drive(session: str, remote: int) -> None:
    from mooncake.engine import TransferEngine

    engine, (_buffer, address) = TransferEngine(), memory()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    assert engine.register_memory(address, SIZE) == 0
    say("ready")
    for line in sys.stdin:
        call, *numbers = line.split()
        piece, pieces = int(numbers[0]), int(numbers[1])
        offsets = [at * piece for at in range(pieces)]
        arguments = [address + at for at in offsets], [remote + at for at in offsets], [piece] * pieces
        calls, began = 0, time.perf_counter()
        while (passed := time.perf_counter() - began) < float(numbers[2]):
            assert getattr(engine, call)(session, *arguments) == 0
            calls += 1
        say(calls * piece * pieces / passed / 1e9)


def copied(piece: int, pieces: int, seconds: float) -> float:
    """GB/s of memmove."""
    (_one, source), (_other, destination) = memory(), memory()
    copies, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds:
        for at in range(pieces):
            ctypes.memmove(destination + at * piece, source + at * piece, piece)
        copies += 1
    return copies * piece * pieces / passed / 1e9


def compare(upstream: Path | None, rounds: int, seconds: float) -> None:
    sides = [Side("mc", None)]
    if upstream is not None:
        sides.append(Side("upstream", upstream))
    try:
        print(f"{'call':28} {'shape':14} {'copy':>7}", *(f"{side.name:>9}" for side in sides), "  GB/s")
        for call in CALLS:
            for shape, piece, pieces in SHAPES:
                figures: dict[str, list[float]] = {}
                for _ in range(rounds):
                    figures.setdefault("copy", []).append(copied(piece, pieces, seconds / 4))
                    for side in sides:
                        figures.setdefault(side.name, []).append(side.measure(call, piece, pieces, seconds))
                medians = {name: statistics.median(values) for name, values in figures.items()}
                row = " ".join(f"{medians[side.name]:9.3f}" for side in sides)
                ratio = f"  {medians['mc'] / medians['upstream']:5.2f} x" if upstream is not None else ""
                print(f"{call:28} {shape:14} {medians['copy']:7.2f} {row}{ratio}", flush=True)
    finally:
        for side in sides:
            side.end()


def main() -> None:
    match sys.argv[1:]:
        case ["serve"]:
            serve()
        case ["drive", session, address]:
            drive(session, int(address))
        case _:
            parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
            parser.add_argument("--upstream", type=Path)
            parser.add_argument("--rounds", type=int, default=5)
            parser.add_argument("--seconds", type=float, default=0.5)
            arguments = parser.parse_args()
            compare(arguments.upstream, arguments.rounds, arguments.seconds)


main()
