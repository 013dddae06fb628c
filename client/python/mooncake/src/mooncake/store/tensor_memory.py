"""Tensors as memory: what to store for one, and a tensor over bytes that were read. Torch is loaded on first use."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass, field
from typing import Any

from mc import _native

from .tensor_layout import SIZE, InvalidLayout, Layout, Shard, pack, unpack


@dataclass(frozen=True)
class Source:
    """Buffers that make up one object, and what keeps them alive."""

    addresses: list[int]
    sizes: list[int]
    owners: tuple[object, ...] = field(default=(), repr=False)


def source_of(tensor: Any) -> Source:
    """Header and elements of a tensor. InvalidLayout if it can't be stored."""
    dtype, shape, held = examine(tensor)
    return _with_header(pack(dtype, shape), [held.data_ptr()], [Layout(dtype, shape).length], held)


def shards_of(tensor: Any, ranks: int, dimension: int) -> list[Source]:
    """One source for each rank's part of a tensor, without a copy of its elements."""
    dtype, shape, held = examine(tensor)
    return _shards(dtype, shape, held.data_ptr(), held, ranks, dimension)


def source_at(address: int, size: int) -> Source:
    """The object in a buffer that already holds header and elements. InvalidLayout if it does not."""
    layout_at(address, size)
    return Source([address], [size])


def shards_at(address: int, size: int, ranks: int, dimension: int) -> list[Source]:
    """One source for each rank's part of the tensor in a buffer that holds header and elements."""
    layout = layout_at(address, size)
    return _shards(layout.dtype, layout.shape, address + layout.offset, None, ranks, dimension)


def layout_at(address: int, size: int) -> Layout:
    """Layout of the tensor in a buffer."""
    if (gpu := _native.gpu_of(address)) is not None:
        raise InvalidLayout(f"the buffer at {address:#x} is memory of GPU {gpu}: its header has to be in memory of the host")
    if not address or size < SIZE:
        raise InvalidLayout(f"{size} bytes at {address:#x} hold no tensor: its header alone has {SIZE}")
    return unpack(ctypes.string_at(address, SIZE), size)


def tensor_over(buffer: Any) -> Any:
    """Tensor over an object in memory. The tensor keeps the memory."""
    layout = unpack(memoryview(buffer), len(buffer))
    import torch

    dtype = getattr(torch, layout.dtype)
    count = math.prod(layout.shape)
    if count == 0:
        return torch.empty(layout.shape, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype, count=count, offset=layout.offset).reshape(layout.shape)


def tensor_at(address: int, length: int) -> Any:
    """Tensor over an object of `length` bytes at the address. The caller keeps the memory."""
    return tensor_over((ctypes.c_ubyte * length).from_address(address))


def matches(tensor: Any, layout: Layout) -> bool:
    """Whether the elements of such a tensor can be read into this one."""
    dtype, shape = _name(tensor), tuple(tensor.shape)
    return bool(dtype == layout.dtype and shape == layout.shape and tensor.is_contiguous())


def _name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def examine(tensor: Any) -> tuple[str, tuple[int, ...], Any]:
    """Dtype, shape and contiguous form of a tensor whose elements are complete."""
    if not (hasattr(tensor, "data_ptr") and hasattr(tensor, "dtype")):
        raise InvalidLayout(f"{type(tensor).__name__} is not a tensor")
    held = tensor.detach().contiguous()
    wait_for(held)
    return _name(held), tuple(held.shape), held


def wait_for(tensor: Any) -> None:
    """Waits for kernels that still use a tensor."""
    if tensor.is_cuda:
        import torch

        torch.cuda.current_stream(tensor.device).synchronize()


def _shards(dtype: str, shape: tuple[int, ...], data: int, owner: object, ranks: int, dimension: int) -> list[Source]:
    if ranks < 1 or not 0 <= dimension < len(shape) or shape[dimension] % ranks:
        raise InvalidLayout(f"a tensor of shape {shape} can't be split evenly into {ranks} at dimension {dimension}")
    part = (*shape[:dimension], shape[dimension] // ranks, *shape[dimension + 1 :])
    pieces = math.prod(shape[:dimension])
    length = Layout(dtype, part).length
    piece = length // pieces if pieces else 0
    sources = []
    for rank in range(ranks):
        header = pack(dtype, part, Shard(rank, ranks, dimension, shape))
        first = data + rank * piece
        addresses = [first + index * ranks * piece for index in range(pieces)]
        sources.append(_with_header(header, addresses, [piece] * pieces, owner))
    return sources


def _with_header(header: bytes, addresses: list[int], sizes: list[int], owner: object) -> Source:
    # Bytes of the header at an address of their own.
    held = ctypes.create_string_buffer(header, len(header))
    if not sum(sizes):
        # An empty tensor is its header, and may have no address.
        return Source([ctypes.addressof(held)], [len(header)], (held,))
    return Source([ctypes.addressof(held), *addresses], [len(header), *sizes], (held, owner))
