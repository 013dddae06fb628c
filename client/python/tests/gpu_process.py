"""A process with memory of a GPU: run by test_gpu.py with the driver's library and the addresses of the masters."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mc
from gpu import Driver, Memory
from mc._memory import raw
from mooncake.store import MooncakeDistributedStore

LARGE = 40 << 20


class Exchanged:
    """Memory of a device, for those who know DLPack alone."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.streams: list[int] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: int) -> object:
        self.streams.append(stream)
        # A tensor of the host, with the address and the kind of another one.
        capsule = np.zeros(self.memory.length, dtype=np.uint8).__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        tensor = pointer(capsule, b"dltensor")
        ctypes.c_void_p.from_address(tensor).value = self.memory.address
        ctypes.c_int32.from_address(tensor + 8).value = 2
        return capsule


class Tensor:
    """A tensor of a device, as far as calls look at it."""

    is_cuda = True

    def __init__(self, memory: Memory, kind: str = "cuda") -> None:
        self.memory = memory
        self.device = type("Device", (), {"type": kind})

    def data_ptr(self) -> int:
        return self.memory.address

    def is_contiguous(self) -> bool:
        return True

    def numel(self) -> int:
        return self.memory.length

    def element_size(self) -> int:
        return 1


class Torch:
    """The part of torch that waits for a stream."""

    waited = 0

    class cuda:
        @staticmethod
        def current_stream(device: object) -> type[Torch.cuda]:
            return Torch.cuda

        @staticmethod
        def synchronize() -> None:
            Torch.waited += 1


def values(driver: Driver, client: mc.Client) -> None:
    large = bytes(range(256)) * (LARGE // 256)
    for nth, make in enumerate([lambda memory: memory, Exchanged, Tensor]):
        source = make(driver.holding(large, nth % 2))
        assert client.put(f"value {nth}", source) is mc.Put.STORED
        assert client.get(f"value {nth}") == large
        target = driver.holding(bytes(LARGE + 1), 1)
        assert client.get_into(f"value {nth}", make(target)) == LARGE
        assert bytes(target) == large + b"\0"
        assert client.get_into("absent", make(target)) is None
        if isinstance(source, Exchanged):
            assert source.streams == [1], "the stream that copies wait for"
    assert Torch.waited == 3

    for device in (0, 1):
        streamed = driver.holding(b"streamed", device)
        streamed.__cuda_array_interface__["stream"] = driver.stream(device)
        waits = driver.calls("cuStreamSynchronize")
        assert raw(streamed).address == streamed.address
        assert driver.calls("cuStreamSynchronize") == waits + 1, "in the context of its device, which this thread does not have"

    part = driver.holding(b"part")
    assert client.put_parts("parts", [b"head ", part, memoryview(b" tail")]) is mc.Put.STORED
    assert client.get("parts") == b"head part tail"
    host = bytearray(4)
    assert client.get_ranges_into("parts", [(0, host), (10, part)]) == 8
    assert (bytes(host), bytes(part)) == (b"head", b"tail")
    with client.write_session("layers", 8) as session:
        session.write(4, part)
        session.write(0, host)
    with client.read_session("layers") as reading:
        assert reading.read_into([(0, part)]) == 4
    assert bytes(part) == b"head"
    with client.register(part):
        assert client.get_into("layers", driver.holding(bytes(8))) == 8


def refusals(driver: Driver, client: mc.Client) -> None:
    client.put("four", b"four")
    short = driver.holding(b"123")
    with pytest.raises(mc.InvalidArgument):
        client.get_into("four", short)
    assert bytes(short) == b"123"
    for step, reason in (("cuMemcpyHtoDAsync_v2", "copy to a device"), ("cuPointerGetAttributes", "the kind of an address")):
        driver.fail(step)
        memory = driver.holding(bytes(4))
        [failed] = client._native.get_into(["four"], [memory.address], [4])
        driver.fail("")
        assert isinstance(failed, mc.McError) and failed.is_definite
        assert "CUDA cannot" in str(failed) and reason in str(failed) and "nvidia-smi" in str(failed)

    array = driver.holding(bytes(12))
    for change, error, reason in (
        ({"strides": (2,), "shape": (6,)}, ValueError, "not contiguous"),
        ({"data": (array.address, True)}, BufferError, "read-only"),
        ({"stream": 77}, ValueError, "can't wait for stream 0x4d"),
        ({"data": (np.zeros(12).ctypes.data, False)}, ValueError, "does not know"),
    ):
        asked = driver.holding(bytes(12))
        asked.__cuda_array_interface__.update(change)
        with pytest.raises(error, match=reason):
            client.get_into("four", asked)
    array.__cuda_array_interface__.update({"shape": (3, 1, 2), "strides": (4, 9, 2), "typestr": "<u2", "stream": 1})
    assert client.get_into("four", array) == 4
    with pytest.raises(ValueError, match="memory of a device"):
        client.put("other", Tensor(array, "xpu"))


def mooncake_store(driver: Driver, masters: str) -> None:
    store: Any = MooncakeDistributedStore()
    assert store.setup("localhost", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", masters) == 0
    one, two = driver.holding(b"of the first", 0), driver.holding(b"of the second", 1)
    host = ctypes.create_string_buffer(b"of the host", 11)
    assert store.register_buffer(one.address, one.length) == 0
    assert store.register_buffer(two.address, two.length) == 0
    assert store.put_from("m1", one.address, one.length) == 0
    assert store.batch_put_from(["m2", "m3"], [two.address, ctypes.addressof(host)], [two.length, 11]) == [0, 0]
    assert store.batch_put_from_multi_buffers(["m4"], [[one.address, ctypes.addressof(host), two.address]], [[3, 3, 6]]) == [0]
    assert [store.get(key) for key in ("m1", "m2", "m3", "m4")] == [b"of the first", b"of the second", b"of the host", b"of of of the"]

    into = driver.holding(bytes(20), 1)
    assert store.get_into("m1", into.address, into.length) == 12
    assert bytes(into)[:12] == b"of the first"
    assert store.get_into("absent", into.address, into.length) == -704
    assert store.get_into("m1", into.address, 5) == -600
    assert store.batch_get_into(["m2", "m3"], [into.address, ctypes.addressof(host)], [20, 11]) == [13, 11]
    assert bytes(into)[:13] == b"of the second"
    assert store.batch_get_into_multi_buffers(["m4"], [[into.address, into.address + 10]], [[6, 6]]) == [12]
    assert (bytes(into)[:6], bytes(into)[10:16]) == (b"of of ", b"of the")
    assert store.register_buffer(into.address, into.length) == 0
    assert store.get_into_ranges([into.address], [["m1"]], [[[1, 8]]], [[[7, 0]]], [[[5, 2]]]) == [[[5, 2]]]
    assert (bytes(into)[1:6], bytes(into)[8:10]) == (b"first", b"of")
    assert store.batch_put_session_start(["m5"], [6]) == [0]
    assert store.batch_put_from_multi_buffer_ranges(["m5"], [[one.address, two.address]], [[3, 3]], [[0, 3]]) == [6]
    assert store.batch_put_session_end(["m5"]) == [0]
    assert store.batch_get_session_start(["m5"]) == [0]
    assert store.batch_get_into_multi_buffer_ranges(["m5"], [[into.address]], [[3]], [[3]]) == [3]
    assert bytes(into)[:3] == b"of "

    # The header of a tensor is read by this process.
    assert store.put_tensor_from("t", one.address, one.length) == -600
    assert store.batch_get_tensor_into(["m1"], [into.address], [20]) == [-600]

    driver.fail("cuMemcpyDtoHAsync_v2")
    assert store.put_from("m6", one.address, one.length) == -900
    driver.fail("cuMemcpyHtoDAsync_v2")
    assert store.get_into("m1", into.address, into.length) == -704
    driver.fail("")
    assert store.is_exist("m6") == 0
    assert [store.unregister_buffer(memory.address) for memory in (one, two, into)] == [0, 0, 0]
    store.close()


def main(library: Path, masters: str) -> None:
    client = mc.Client(masters, segment="256mb")
    client.put("before", b"the driver is loaded")
    driver = Driver(library)
    sys.modules["torch"] = Torch  # type: ignore[assignment]
    values(driver, client)
    refusals(driver, client)
    del sys.modules["torch"]
    mooncake_store(driver, masters)
    client.close()
    assert driver.calls("cuInit") == 1, "only the engine starts CUDA"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
