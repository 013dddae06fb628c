"""Tensors: their format, and their way through the pool. The latter needs torch."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import pytest

import mc
from mooncake.store import ReplicateConfig, _tensor_metadata_size
from mooncake.store.tensor_layout import SIZE, InvalidLayout, Layout, Shard, pack, unpack


def fields(header: bytes) -> tuple[tuple[int, ...], list[int], list[int], tuple[int, ...], list[tuple[int, ...]]]:
    """The parts of a header, read as upstream's C++ structures are laid out."""
    fixed = struct.unpack_from("<IHHiiIIQQ", header)
    whole, part = list(struct.unpack_from("<8q", header, 40)), list(struct.unpack_from("<8q", header, 104))
    counts = struct.unpack_from("<II", header, 168)
    axes = [struct.unpack_from("<6iq", header, 176 + 32 * index) for index in range(4)]
    return fixed, whole, part, counts, axes


def test_the_format_is_upstreams() -> None:
    assert _tensor_metadata_size() == SIZE == 304
    fixed, whole, part, counts, axes = fields(pack("bfloat16", (2, 3)))
    assert fixed == (0x4D4F4F4E, 1, 304, 12, 2, 0, 0, 304, 12)
    assert whole == part == [2, 3] + [-1] * 6
    assert counts == (0, 0)
    assert axes == [(0,) * 7] * 4


def test_the_format_of_a_part_is_upstreams() -> None:
    fixed, whole, part, counts, axes = fields(pack("float32", (2, 4), Shard(1, 2, 1, (2, 8))))
    assert fixed == (0x4D4F4F4E, 1, 304, 0, 2, 1, 0, 304, 32)
    assert whole == [2, 8] + [-1] * 6
    assert part == [2, 4] + [-1] * 6
    assert counts == (1, 0)
    assert axes == [(1, 0, 1, 2, 1, 0, 4)] + [(0,) * 7] * 3


def test_headers_are_read_back() -> None:
    header = pack("int64", (4, 0, 2))
    assert unpack(header, SIZE) == Layout("int64", (4, 0, 2))


@pytest.mark.parametrize("damage", [b"", b"x" * 304, pack("int8", (5,)), pack("int8", (4,))[:303]])
def test_other_bytes_are_no_tensor(damage: bytes) -> None:
    with pytest.raises(InvalidLayout):
        unpack(damage, SIZE + 4)


def test_what_can_not_be_stored() -> None:
    with pytest.raises(InvalidLayout, match="complex64"):
        pack("complex64", (1,))
    with pytest.raises(InvalidLayout, match="dimensions"):
        pack("int8", (1,) * 9)


def test_objects_that_are_no_tensors(store: Any, key: str) -> None:
    store.put(key, b"no tensor at all")
    assert store.get_tensor(key) is None
    assert store.put_tensor(f"{key}-none", None) == -600
    assert store.batch_put_tensor([f"{key}-a"], []) == [-600]


class Late:
    """A tensor of four bytes whose elements are there once it is contiguous. Then the caller changes its configuration."""

    dtype, shape, is_cuda = "torch.uint8", (4,), False

    def __init__(self, config: ReplicateConfig) -> None:
        self.config, self.elements = config, (ctypes.c_ubyte * 4)()

    def detach(self) -> Late:
        return self

    def contiguous(self) -> Late:
        self.config.with_hard_pin = True
        self.config.group_ids[:] = ["other"]
        return self

    def data_ptr(self) -> int:
        return ctypes.addressof(self.elements)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_configuration_is_copied_when_a_call_for_tensors_begins(store: Any, key: str, ranks: int) -> None:
    config = ReplicateConfig()
    config.group_ids = ["mine"]
    assert store.put(f"{key}-before", b"value", config) == 0
    assert store.pub_tensor_with_tp(key, Late(config), config, tp_size=ranks) == 0
    with mc.Client(store._link.settings.masters) as client:
        before, tensor = client.describe(f"{key}-before"), client.describe(key if ranks == 1 else f"{key}_tp_1")
    assert before is not None and tensor is not None
    assert (tensor["pin"], tensor["group"]) == ("none", before["group"])


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture
def buffer() -> Any:
    return (ctypes.c_ubyte * 4096)()


def test_tensors(store: Any, key: str, torch: Any) -> None:
    tensors = [
        torch.tensor([1.0, 2.0]),
        torch.arange(24, dtype=torch.int64).reshape(2, 3, 4),
        torch.tensor([True, False]),
        torch.rand(4, 4).to(torch.bfloat16),
        torch.rand(6, 4).t(),
        torch.empty((2, 0, 3), dtype=torch.float16),
        torch.tensor(3.5),
    ]
    keys = [f"{key}-{number}" for number in range(len(tensors))]
    assert store.batch_put_tensor(keys, tensors) == [0] * len(tensors)
    for tensor, read in zip(tensors, store.batch_get_tensor(keys), strict=True):
        assert read.dtype == tensor.dtype
        assert torch.equal(read, tensor)
    assert store.upsert_tensor(keys[0], tensors[1]) == 0
    assert torch.equal(store.get_tensor(keys[0]), tensors[1])


def test_tensors_in_buffers(store: Any, key: str, torch: Any, buffer: Any) -> None:
    address = ctypes.addressof(buffer)
    tensor = torch.arange(12, dtype=torch.int32).reshape(3, 4)
    assert store.put_tensor(key, tensor) == 0
    assert torch.equal(store.get_tensor_into(key, address, 4096), tensor)
    assert store.put_tensor_from(f"{key}-from", address, store.get_size(key)) == 0
    assert torch.equal(store.get_tensor(f"{key}-from"), tensor)
    assert store.put_tensor_from(f"{key}-short", address, store.get_size(key) - 1) == -600
    target = torch.zeros(3, 4, dtype=torch.int32)
    assert store.get_tensor_into_cuda(key, target) == 48
    assert torch.equal(target, tensor)
    assert store.get_tensor_into_cuda(key, torch.zeros(4, 3, dtype=torch.int32)) == -600


@pytest.mark.parametrize("dimension", [0, 1, 2])
def test_parts(store: Any, key: str, torch: Any, buffer: Any, dimension: int) -> None:
    tensor = torch.rand(4, 6, 2)
    assert store.put_tensor_with_tp(key, tensor, tp_size=2, split_dim=dimension) == 0
    address = ctypes.addressof(buffer)
    assert store.put_tensor(f"{key}-whole", tensor) == 0
    assert store.get_into(f"{key}-whole", address, 4096) == SIZE + 192
    assert store.put_tensor_with_tp_from(f"{key}-from", address, SIZE + 192, 0, 2, dimension) == 0
    for rank, part in enumerate(tensor.chunk(2, dimension)):
        assert torch.equal(store.get_tensor_with_tp(key, rank, 2), part)
        assert torch.equal(store.batch_get_tensor_with_tp([f"{key}-from"], rank, 2)[0], part)
    assert store.put_tensor_with_tp(f"{key}-uneven", tensor, tp_size=5, split_dim=dimension) == -600


def test_files(store: Any, key: str, torch: Any, tmp_path: Any) -> None:
    pytest.importorskip("safetensors")
    tensor = torch.rand(3, 4)
    path = str(tmp_path / "file.safetensors")
    assert store.save_tensor_to_safetensor(key, path) == -1100
    assert store.put_tensor(key, tensor) == 0
    assert store.save_tensor_to_safetensor(key, path) == 0
    assert torch.equal(store.load_tensor_from_safetensor(f"{key}-other", path), tensor)
    assert torch.equal(store.get_tensor(f"{key}-other"), tensor)
    assert store.load_tensor_from_safetensor(key, str(tmp_path / "missing")) is None
