"""GB/s of puts and gets of GPU memory, beside a plain copy between that memory and pinned memory of the host.

Needs a machine with an NVIDIA GPU, and a cluster:

    mcctl playground &
    python gpu_bench.py 127.0.0.1:50051

By default the objects lie in an embedded store of this process, so that a put is a copy over the bus and one within the host. With
`--segment 0` they lie in the stores of the cluster. The bytes of each first round are compared.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import mc

MIB = 1 << 20


class NoGpu(Exception):
    """There is nothing to measure."""


class Gpu:
    """One device, through the driver's API."""

    def __init__(self, ordinal: int) -> None:
        try:
            self._driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise NoGpu(f"the driver is not installed ({error})") from None
        if code := self._driver.cuInit(0):
            raise NoGpu(f"cuInit answers {code}")
        device, context, self._stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        if code := self._driver.cuDeviceGet(ctypes.byref(device), ordinal):
            raise NoGpu(f"there is no device {ordinal} (cuDeviceGet answers {code})")
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxPushCurrent_v2", context)
        self._call("cuStreamCreate", ctypes.byref(self._stream), 0)
        name = ctypes.create_string_buffer(100)
        self._call("cuDeviceGetName", name, 100, device)
        self.name = name.value.decode()

    def _call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._driver, name)(*arguments):
            raise RuntimeError(f"{name} answers {code}")

    def allocate(self, length: int) -> int:
        """Address of memory of the device, kept until the end of the process."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(length))
        return address.value

    def pin(self, memory: mc.Memory) -> None:
        """Pins memory of the host."""
        self._call("cuMemHostRegister_v2", ctypes.c_void_p(memory.address), ctypes.c_size_t(len(memory)), 1)

    def to_host(self, host: int, device: int, length: int) -> None:
        """Copies from the device."""
        arguments = ctypes.c_void_p(host), ctypes.c_uint64(device), ctypes.c_size_t(length)
        self._call("cuMemcpyDtoHAsync_v2", *arguments, self._stream)
        self._call("cuStreamSynchronize", self._stream)

    def to_device(self, device: int, host: int, length: int) -> None:
        """Copies to the device."""
        arguments = ctypes.c_uint64(device), ctypes.c_void_p(host), ctypes.c_size_t(length)
        self._call("cuMemcpyHtoDAsync_v2", *arguments, self._stream)
        self._call("cuStreamSynchronize", self._stream)


class Shape(NamedTuple):
    """Objects of one call."""

    objects: int
    size: int
    parts: int = 1

    def __str__(self) -> str:
        parts = f" in {self.parts} parts" if self.parts > 1 else ""
        return f"{self.objects} x {self.size >> 10} KiB{parts}"


SHAPES = [Shape(128, 128 << 10), Shape(128, MIB), Shape(128, MIB, 64), Shape(2, 256 * MIB)]


def rate(length: int, rounds: int, call: Callable[[int], object]) -> float:
    """Median of GB/s."""
    rates = []
    for number in range(rounds):
        began = time.perf_counter()
        call(number)
        rates.append(length / (time.perf_counter() - began) / 1e9)
    return statistics.median(rates)


def measure(client: mc.Client, gpu: Gpu, memory: mc.Memory, source: int, target: int, shape: Shape, rounds: int) -> None:
    """Prints the line of a shape."""
    length, part = shape.objects * shape.size, shape.size // shape.parts
    lengths = [[part] * shape.parts] * shape.objects

    def parts(base: int) -> list[list[int]]:
        return [[base + at * shape.size + nth * part for nth in range(shape.parts)] for at in range(shape.objects)]

    def keys(number: int) -> list[str]:
        return [f"gpu/{shape}/{number}/{at}" for at in range(shape.objects)]

    def put(number: int) -> None:
        results = client._native.put_from(keys(number), parts(source), lengths)
        assert results == [0] * shape.objects, results

    def get(number: int) -> None:
        results = client._native.get_into(keys(number), parts(target), lengths)
        assert results == [shape.size] * shape.objects, results

    puts = rate(length, rounds, put)
    gets = rate(length, rounds, get)
    expected = bytes(memoryview(memory)[:length])
    gpu.to_host(memory.address, target, length)
    assert memoryview(memory)[:length] == expected, "other bytes came back"
    from_device = rate(length, rounds, lambda _: gpu.to_host(memory.address, source, length))
    to_device = rate(length, rounds, lambda _: gpu.to_device(target, memory.address, length))
    for number in range(rounds):
        for key in keys(number):
            client.remove(key, force=True)
    print(f"| {shape} | {puts:.1f} | {from_device:.1f} | {gets:.1f} | {to_device:.1f} |")


def main() -> int:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("masters")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--segment", default="8gb", help="memory of this process for the pool; 0 for none")
    parser.add_argument("--scale", type=int, default=1, help="divides the number of objects, for a trial")
    given = parser.parse_args()
    try:
        gpu = Gpu(given.device)
    except NoGpu as why:
        print(f"no GPU: {why}", file=sys.stderr)
        return 2
    shapes = [shape._replace(objects=max(shape.objects // given.scale, 1)) for shape in SHAPES]
    longest = max(shape.objects * shape.size for shape in shapes)
    with mc.Client(given.masters, local_cache=0, segment=None if given.segment == "0" else given.segment) as client:
        memory = mc.allocate(longest)
        gpu.pin(memory)
        memoryview(memory)[:] = (bytes(range(251)) * (longest // 251 + 1))[:longest]
        source, target = gpu.allocate(longest), gpu.allocate(longest)
        gpu.to_device(source, memory.address, longest)
        print(f"{gpu.name}, GB/s, median of {given.rounds} rounds\n")
        print("| objects of a call | put | plain copy from the GPU | get | plain copy to the GPU |\n|---|---|---|---|---|")
        for shape in shapes:
            measure(client, gpu, memory, source, target, shape, given.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
