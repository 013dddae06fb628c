"""Addresses of the objects that calls read from and write to."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Sequence
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
    return (
        hasattr(item, "data_ptr")
        or hasattr(item, "__cuda_array_interface__")
        or (hasattr(item, "__dlpack__") and not hasattr(item, "__array_interface__"))
    )


def raw(item: Any, *, writable: bool = False) -> Raw:
    """Returns the memory of an object with the buffer protocol, a tensor, or an object with ``__cuda_array_interface__`` or ``__dlpack__``.

    If it is a GPU's, the work that was given to the object's stream before is done, or on a stream that copies wait for.
    """
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
        if hasattr(item, "__cuda_array_interface__"):
            return _cuda_array(item, writable=writable)
        if hasattr(item, "__dlpack__"):
            return _dlpack(item)
        raise TypeError(
            f"{type(item).__name__} has no memory: give an object with the buffer protocol, a tensor, or one with __dlpack__"
            " or __cuda_array_interface__"
        ) from None
    return Raw(export.address, export.length, export)


def _tensor(tensor: Any) -> Raw:
    if not tensor.is_contiguous():
        raise ValueError("the tensor is not contiguous: call contiguous() first")
    kind = tensor.device.type if hasattr(tensor, "device") else "cpu"
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"the tensor is in memory of a device ({kind}), which calls can't reach: copy it to the host first")
    memory = Raw(int(tensor.data_ptr()), int(tensor.numel() * tensor.element_size()), tensor)
    if kind == "cuda":
        _check_gpu(memory)
        if torch := sys.modules.get("torch"):
            torch.cuda.current_stream(tensor.device).synchronize()
    return memory


def _check_gpu(memory: Raw) -> None:
    """Raises unless the driver of this process knows the memory. Calls would touch it as memory of the host."""
    if memory.length and _native.gpu_of(memory.address) is None:
        raise ValueError("the object is in memory of a device that the CUDA driver of this process does not know (libcuda.so.1)")


# Streams of the interface: none to wait for, and the legacy default one, for which copies wait by themselves.
_NO_WAIT = {None, 1}


def _cuda_array(item: Any, *, writable: bool) -> Raw:
    """Memory of an object of the CUDA Array Interface, version 3 or older."""
    array = item.__cuda_array_interface__
    address, read_only = array["data"]
    if writable and read_only:
        raise BufferError("the array is read-only: give one that can be written to")
    shape, size = array["shape"], int(array["typestr"][2:])
    strides = array.get("strides")
    if strides is not None and not _is_contiguous(shape, strides, size):
        raise ValueError("the array is not contiguous: copy it first")
    memory = Raw(int(address or 0), size * math.prod(shape), item)
    _check_gpu(memory)
    stream = array.get("stream")
    if stream not in _NO_WAIT:
        _native.wait_for_stream(memory.address, stream)
    return memory


def _is_contiguous(shape: Sequence[int], strides: Sequence[int], size: int) -> bool:
    step = size
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


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


# kDLCPU, kDLCUDAHost and kDLCUDAManaged.
_OF_HOST = {1, 3, 13}
_OF_GPU = 2
# The legacy default stream, which the producer makes wait for its own.
_DEFAULT_STREAM = 1


def _dlpack(item: Any) -> Raw:
    """Layout: ``DLManagedTensor`` of dlpack.h, which begins with its ``DLTensor``. The capsule is kept, and frees the tensor.

    A capsule of that layout does not say whether it may be written to.
    """
    on_gpu = hasattr(item, "__dlpack_device__") and item.__dlpack_device__()[0] == _OF_GPU
    capsule = item.__dlpack__(stream=_DEFAULT_STREAM) if on_gpu else item.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = _DLTensor.from_address(pointer(capsule, b"dltensor"))
    if tensor.device_type not in _OF_HOST | {_OF_GPU}:
        raise ValueError(f"the tensor is in memory of a device (DLPack type {tensor.device_type}): copy it to the host first")
    shape = tensor.shape[: tensor.ndim] if tensor.ndim else []
    if tensor.strides and not _is_contiguous(shape, tensor.strides[: tensor.ndim], 1):
        raise ValueError("the tensor is not contiguous: copy it first")
    bits = tensor.type_bits * tensor.type_lanes
    for extent in shape:
        bits *= extent
    memory = Raw((tensor.data or 0) + tensor.byte_offset, (bits + 7) // 8, capsule)
    if tensor.device_type == _OF_GPU:
        _check_gpu(memory)
    return memory
