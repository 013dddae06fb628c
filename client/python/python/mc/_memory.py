"""Addresses of the objects that calls read from and write to."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from mc import _native

__all__ = ["Raw", "is_tensor", "raw"]


class Raw(NamedTuple):
    """Memory of an object. ``keep`` holds it in its place."""

    address: int
    length: int
    keep: object


def is_tensor(item: Any) -> bool:
    """Returns whether an object has memory without the buffer protocol. Others are put by themselves, and kept in the local cache."""
    if isinstance(item, bytes | bytearray | memoryview):
        return False
    return hasattr(item, "data_ptr") or (hasattr(item, "__dlpack__") and not hasattr(item, "__array_interface__"))


def raw(item: Any, *, writable: bool = False) -> Raw:
    """Returns the memory of an object with the buffer protocol, a tensor, or an object with ``__dlpack__``."""
    try:
        try:
            export = _native.Export(item, writable)
        except BufferError:
            # A scalar has a buffer without a shape.
            view = memoryview(item)
            if view.ndim or (writable and view.readonly):
                raise
            export = _native.Export(view.cast("B"), writable)
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
    kind = tensor.device.type if hasattr(tensor, "device") else "cpu"
    if kind != "cpu":
        raise ValueError(f"the tensor is in memory of a device ({kind}), which calls can't reach: copy it to the host first")
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


# kDLCPU and kDLCUDAHost.
_OF_HOST = {1, 3}


def _dlpack(item: Any) -> Raw:
    """Layout: ``DLManagedTensor`` of dlpack.h, which begins with its ``DLTensor``. The capsule is kept, and frees the tensor.

    A capsule of that layout does not say whether it may be written to.
    """
    capsule = item.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = _DLTensor.from_address(pointer(capsule, b"dltensor"))
    if tensor.device_type not in _OF_HOST:
        raise ValueError(f"the tensor is in memory of a device (DLPack type {tensor.device_type}): copy it to the host first")
    shape = tensor.shape[: tensor.ndim] if tensor.ndim else []
    if tensor.strides:
        step = 1
        for extent, stride in zip(reversed(shape), reversed(tensor.strides[: tensor.ndim]), strict=True):
            if extent != 1 and stride != step:
                raise ValueError("the tensor is not contiguous: copy it first")
            step *= extent
    bits = tensor.type_bits * tensor.type_lanes
    for extent in shape:
        bits *= extent
    return Raw((tensor.data or 0) + tensor.byte_offset, (bits + 7) // 8, capsule)
