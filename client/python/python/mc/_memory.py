"""Addresses of the objects that calls read from and write to."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from mc import _native

__all__ = ["Raw", "raw"]


class Raw(NamedTuple):
    """Memory of an object. ``keep`` holds it in its place."""

    address: int
    length: int
    keep: object


def raw(item: Any, *, writable: bool = False) -> Raw:
    """Returns the memory of an object with the buffer protocol, a tensor, or an object with ``__dlpack__``."""
    try:
        export = _native.Export(item, writable)
    except TypeError:
        if hasattr(item, "data_ptr") and hasattr(item, "is_contiguous"):
            return _tensor(item)
        if hasattr(item, "__dlpack__"):
            return _dlpack(item)
        raise TypeError(
            f"{type(item).__name__} has no memory: give an object with the buffer protocol, a tensor, or one with __dlpack__"
        ) from None
    return Raw(export.address, export.length, export)


def _tensor(tensor: Any) -> Raw:
    if not tensor.is_contiguous():
        raise ValueError("the tensor is not contiguous: call contiguous() first")
    return Raw(int(tensor.data_ptr()), int(tensor.numel() * tensor.element_size()), tensor)


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("type_bits", ctypes.c_uint8),
        ("type_lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


def _dlpack(item: Any) -> Raw:
    """Layout: ``DLManagedTensor`` of dlpack.h, which begins with its ``DLTensor``. The capsule is kept, and frees the tensor."""
    capsule = item.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = _DLTensor.from_address(pointer(capsule, b"dltensor"))
    shape = tensor.shape[: tensor.ndim] if tensor.ndim else []
    if tensor.strides:
        step = 1
        for extent, stride in zip(reversed(shape), reversed(tensor.strides[: tensor.ndim]), strict=True):
            if extent != 1 and stride != step:
                raise ValueError("the tensor is not contiguous: copy it first")
            step *= extent
    length = (tensor.type_bits * tensor.type_lanes + 7) // 8
    for extent in shape:
        length *= extent
    return Raw((tensor.data or 0) + tensor.byte_offset, length, capsule)
