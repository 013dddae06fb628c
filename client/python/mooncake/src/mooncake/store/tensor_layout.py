"""Format of a tensor in the pool: upstream's header of 304 bytes, and then the elements.

Buffers that engines fill themselves (`put_tensor_from`) have this format, so it must stay upstream's, byte for byte.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

_MAGIC = 0x4D4F4F4E
_VERSION = 1
_MAX_DIMS = 8
_MAX_AXES = 4
_FULL, _SHARD = 0, 1
_TENSOR_PARALLEL = 1

# Magic, version, size of the header, dtype, dimensions, layout, flags, offset and length of the elements.
_HEADER = struct.Struct("<IHHiiIIQQ")
# The shape of the whole tensor, the shape of this part, and the number of axes that follow.
_SHAPES = struct.Struct(f"<{_MAX_DIMS}q{_MAX_DIMS}qII")
# Kind, index of the axis, rank, ranks, dimension that is split, and two reserved fields.
_AXIS = struct.Struct("<iiiiiiq")

SIZE = _HEADER.size + _SHAPES.size + _MAX_AXES * _AXIS.size

# Names in torch, in the order of their numbers in the header.
DTYPES = (
    "float32",
    "float64",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "bool",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
)
_ELEMENT_BYTES = (4, 8, 1, 1, 2, 2, 4, 4, 8, 8, 1, 2, 2, 1, 1)


class InvalidLayout(ValueError):
    """The tensor can't be described by a header, or the bytes don't begin with one."""


@dataclass(frozen=True)
class Shard:
    """Which part of a tensor this is."""

    rank: int
    ranks: int
    dimension: int
    whole: tuple[int, ...]
    """Shape of the tensor that was split."""


@dataclass(frozen=True)
class Layout:
    """A header's content."""

    dtype: str
    shape: tuple[int, ...]
    offset: int = SIZE
    """Where the elements begin."""

    @property
    def length(self) -> int:
        """Bytes of the elements."""
        return math.prod(self.shape) * _ELEMENT_BYTES[DTYPES.index(self.dtype)]


def pack(dtype: str, shape: Sequence[int], shard: Shard | None = None) -> bytes:
    """Header of a tensor. InvalidLayout if it has an unknown dtype or more than eight dimensions."""
    if dtype not in DTYPES:
        raise InvalidLayout(f"tensors of {dtype} can't be stored: use one of {', '.join(DTYPES)}")
    if len(shape) > _MAX_DIMS:
        raise InvalidLayout(f"a tensor of {len(shape)} dimensions can't be stored: at most {_MAX_DIMS}")
    layout = Layout(dtype, tuple(shape))
    header = _HEADER.pack(
        _MAGIC,
        _VERSION,
        SIZE,
        DTYPES.index(dtype),
        len(shape),
        _FULL if shard is None else _SHARD,
        0,
        SIZE,
        layout.length,
    )
    whole = shape if shard is None else shard.whole
    shapes = _SHAPES.pack(*_padded(whole), *_padded(shape), 0 if shard is None else 1, 0)
    axes = b"" if shard is None else _axis(shard, shape)
    return (header + shapes + axes).ljust(SIZE, b"\0")


def unpack(data: bytes | memoryview, total: int) -> Layout:
    """Layout of an object of `total` bytes that begins with `data`. InvalidLayout if it holds no tensor."""
    if len(data) < SIZE:
        raise InvalidLayout(f"{len(data)} bytes are no tensor: its header alone has {SIZE}")
    magic, version, header_size, dtype, dims, _, _, offset, length = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != _VERSION or header_size != SIZE:
        raise InvalidLayout("the object does not begin with the header of a tensor")
    if not (0 <= dtype < len(DTYPES) and 0 <= dims <= _MAX_DIMS):
        raise InvalidLayout(f"the header of the tensor has dtype {dtype} and {dims} dimensions")
    shape = _SHAPES.unpack_from(data, _HEADER.size)[_MAX_DIMS : _MAX_DIMS + dims]
    layout = Layout(DTYPES[dtype], shape, offset)
    if min(shape, default=0) < 0 or layout.length != length or offset < SIZE or offset + length != total:
        raise InvalidLayout(f"the header of the tensor does not fit an object of {total} bytes")
    return layout


def _padded(shape: Sequence[int]) -> list[int]:
    return [*shape, *[-1] * (_MAX_DIMS - len(shape))]


def _axis(shard: Shard, shape: Sequence[int]) -> bytes:
    extent = shape[shard.dimension]
    return _AXIS.pack(_TENSOR_PARALLEL, 0, shard.rank, shard.ranks, shard.dimension, 0, extent)
