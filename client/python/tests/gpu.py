"""A CUDA driver without a device, whose memory plain accesses can't reach, as an engine loads it (see transfer/cuda/tests/fake)."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[3] / "transfer" / "cuda" / "tests" / "fake" / "libcuda.rs"
NAME = "libcuda.so.1"


def build(folder: Path) -> Path:
    """Builds the driver into a folder."""
    flags = ["--edition", "2024", "--crate-type", "cdylib", "-C", "panic=abort", "-C", f"link-arg=-Wl,-soname,{NAME}"]
    subprocess.run([os.environ.get("RUSTC", "rustc"), *flags, "-o", str(folder / NAME), str(SOURCE)], check=True)
    return folder / NAME


class Driver:
    """The driver of this process, which stays loaded."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.fake_allocate.restype = ctypes.c_void_p
        self._library.fake_allocate.argtypes = [ctypes.c_size_t, ctypes.c_int]
        self._library.fake_stream.restype = ctypes.c_size_t
        self._library.fake_open.argtypes = [ctypes.c_void_p, ctypes.c_bool]
        assert self._library.cuInit(0) == 0

    def holding(self, value: bytes, device: int = 0) -> Memory:
        """Memory of a device with these bytes."""
        memory = Memory(self, int(self._library.fake_allocate(len(value), device)), len(value))
        with self.open(memory):
            ctypes.memmove(memory.address, value, len(value))
        return memory

    def bytes(self, memory: Memory) -> bytes:
        """Bytes of memory of a device."""
        with self.open(memory):
            return ctypes.string_at(memory.address, memory.length)

    @contextmanager
    def open(self, memory: Memory) -> Iterator[None]:
        """Opens memory of a device to plain accesses."""
        self._library.fake_open(memory.address, True)
        try:
            yield
        finally:
            self._library.fake_open(memory.address, False)

    def stream(self, device: int) -> int:
        """A stream of a device."""
        return int(self._library.fake_stream(device))

    def calls(self, name: str) -> int:
        """Number of calls of a function."""
        return int(self._library.fake_calls(name.encode()))

    def fail(self, name: str) -> None:
        """Lets the calls of a function fail; of none, if the name is empty."""
        self._library.fake_fail(name.encode(), 0)


class Memory:
    """Memory of a device. It is an array for those who know the CUDA Array Interface."""

    def __init__(self, driver: Driver, address: int, length: int) -> None:
        self.driver, self.address, self.length = driver, address, length
        self.__cuda_array_interface__: dict[str, Any] = {"version": 3, "shape": (length,), "typestr": "|u1", "data": (address, False)}

    def __bytes__(self) -> bytes:
        return self.driver.bytes(self)
