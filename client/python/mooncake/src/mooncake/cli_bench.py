"""`transfer_engine_bench`: measures transfers of `mooncake.engine` between two processes, with upstream's flags."""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import sys
import threading
import time
from dataclasses import dataclass

from mc import __version__

from ._addresses import join_host_port, split_host_port
from ._services import log
from ._services.bench_flags import TABLE
from ._services.flags import FlagError, Given, log_level, parse, print_help, without_effect
from ._services.store import block_signals, wait_for_end
from .engine import TransferEngine, TransferOpcode

_PROGRAM = "transfer_engine_bench"
# Bits of each unit.
_UNITS = {
    prefix + suffix: factor * bits for suffix, bits in (("B", 8), ("b", 1)) for prefix, factor in (("G", 10**9), ("M", 10**6), ("K", 10**3))
} | {"GiB": 8 << 30, "MiB": 8 << 20, "KiB": 8 << 10}


class _Failed(Exception):
    """The benchmark can't go on. The text says why."""


@dataclass(frozen=True)
class _Load:
    """What an initiator does."""

    opcode: TransferOpcode
    block: int
    blocks: int
    threads: int
    seconds: int
    unit: str
    digits: int


def main() -> int:
    """Runs one end."""
    try:
        given = parse(TABLE, sys.argv[1:], os.environ)
        if given.wants_help:
            print_help(_PROGRAM, TABLE)
            return 0
        if given.wants_version:
            print(f"{_PROGRAM} of mc {__version__}")
            return 0
        mode, size, load = given.text("mode", "initiator"), given.number("buffer_size", 1 << 30), _load(given)
        if mode not in ("initiator", "target"):
            raise FlagError(f"--mode={mode}: write initiator or target")
        segment = given.text("segment_id")
        if mode == "initiator":
            if not segment:
                raise FlagError("--segment_id is missing: write the name that the target prints")
            if load.block * load.blocks * load.threads > size:
                raise FlagError(
                    f"--buffer_size={size} is less than --block_size x --batch_size x --threads: {load.block * load.blocks * load.threads}"
                )
    except FlagError as error:
        sys.exit(f"{_PROGRAM}: {error}")
    if mode == "target":
        block_signals()
    log.start(log_level(given))
    try:
        return _run(given, size, segment if mode == "initiator" else None, load)
    except _Failed as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)
        return 1
    finally:
        log.drain()


def _load(given: Given) -> _Load:
    operations = {"read": TransferOpcode.Read, "write": TransferOpcode.Write}
    operation, unit = given.text("operation", "read"), given.text("report_unit", "GB")
    if operation not in operations:
        raise FlagError(f"--operation={operation}: write read or write")
    if unit not in _UNITS:
        raise FlagError(f"--report_unit={unit}: write one of {', '.join(_UNITS)}")
    numbers = {name: given.number(name, int(TABLE[name].default)) for name in ("block_size", "batch_size", "threads", "duration")}
    for name, number in numbers.items():
        if number < 1:
            raise FlagError(f"--{name}={number}: write a number from 1 on")
    return _Load(
        operations[operation],
        numbers["block_size"],
        numbers["batch_size"],
        numbers["threads"],
        numbers["duration"],
        unit,
        given.number("report_precision", 2),
    )


def _run(given: Given, size: int, segment: str | None, load: _Load) -> int:
    for line in without_effect(TABLE, given):
        print(f"{_PROGRAM}: {line}", file=sys.stderr)
    name, metadata = given.text("local_server_name") or socket.gethostname(), given.text("metadata_server") or "P2PHANDSHAKE"
    engine = TransferEngine()
    if engine.initialize(name, metadata, given.text("protocol", "rdma"), ""):
        raise _Failed("the engine does not start: see the log")
    try:
        memory = mmap.mmap(-1, size)
    except (OSError, ValueError, OverflowError) as error:
        raise _Failed(f"no {size} bytes of memory: {error}; choose another --buffer_size") from None
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if engine.register_memory(address, size):
        raise _Failed("the memory can't be registered: see the log")
    try:
        if segment is not None:
            _measure(engine, segment, address, load)
        else:
            known = join_host_port(split_host_port(name)[0], engine.get_rpc_port()) if metadata == "P2PHANDSHAKE" else name
            print(f"{_PROGRAM}: target {known} is ready", flush=True)
            wait_for_end()
    finally:
        engine.unregister_memory(address)
    return 0


def _measure(engine: TransferEngine, segment: str, address: int, load: _Load) -> None:
    remote = engine.get_first_buffer_address(segment)
    if remote == 0:
        raise _Failed(f"{segment} can't be reached, or has registered no memory: see the log")
    calls, failed = [0] * load.threads, threading.Event()
    began = time.monotonic()

    def work(number: int) -> None:
        offsets = [load.block * (block * load.threads + number) for block in range(load.blocks)]
        here, there = [address + offset for offset in offsets], [remote + offset for offset in offsets]
        lengths = [load.block] * load.blocks
        while time.monotonic() - began < load.seconds and not failed.is_set():
            if engine.batch_transfer_sync(segment, here, there, lengths, load.opcode):
                failed.set()
            else:
                calls[number] += 1

    workers = [threading.Thread(target=work, args=(number,)) for number in range(load.threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    passed = time.monotonic() - began
    if failed.is_set():
        raise _Failed("a transfer failed: see the log")
    rate = sum(calls) * load.blocks * load.block * 8 / _UNITS[load.unit] / passed
    print(f"Test completed: duration {passed:.2f}, batch count {sum(calls)}, throughput {rate:.{load.digits}f} {load.unit}/s")


if __name__ == "__main__":
    sys.exit(main())
