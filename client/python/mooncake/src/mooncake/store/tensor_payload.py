"""Upstream's internal functions for tensors as bytes, which its structured object store calls."""

from __future__ import annotations

from typing import Any

from .tensor_layout import SIZE, pack
from .tensor_memory import examine, tensor_over


def _tensor_metadata_size() -> int:
    """Bytes of a tensor's header."""
    return SIZE


def _serialize_tensor(tensor: Any) -> tuple[bytes, int, int, Any]:
    """Header, address of the elements, their bytes, and the tensor that keeps them alive. ValueError otherwise."""
    dtype, shape, held = examine(tensor)
    header = pack(dtype, shape)
    return header, held.data_ptr(), held.element_size() * held.numel(), held


def _deserialize_tensor(payload: bytes) -> Any:
    """Tensor of a header and elements, copied. ValueError if `payload` holds none."""
    return tensor_over(bytearray(payload))
