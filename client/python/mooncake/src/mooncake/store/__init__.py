"""Mooncake's store: `MooncakeDistributedStore` and what belongs to it."""

from __future__ import annotations

# An upstream wheel that was installed later has replaced the check in the package above, so it is made here as well,
# before anything else is loaded.
from . import _checked as _checked
from .allocator import MooncakeHostMemAllocator, bind_to_numa_node, get_alloc_func_addr, get_free_func_addr
from .buffers import (
    BufferHandle,
    BufferLease,
    BufferLeaseView,
    BufferPool,
    RegisteredBufferLease,
    RegisteredBufferLeaseView,
    RegisteredBufferPool,
)
from .descriptors import Descriptor, DiskDescriptor, MemoryDescriptor, QueryTaskResponse, ReplicaDescriptor
from .distributed import MooncakeDistributedStore
from .enums import ObjectDataType, ReplicaStatus, SoftPinAction, TaskStatus, TaskType
from .ranges import RangedReadSnapshot
from .replicate_config import ExistOptions, ReplicateConfig
from .tensor_payload import _deserialize_tensor, _serialize_tensor, _tensor_metadata_size
from .unsupported import (
    EngramStore,
    EngramStoreConfig,
    MooncakeDistributedNoFRegister,
    ParallelAxis,
    ReadTarget,
    TensorParallelism,
)

# Upstream has the members of these enumerations in the module, too. FAILED is the replica's there.
UNKNOWN = ObjectDataType.UNKNOWN
KVCACHE = ObjectDataType.KVCACHE
TENSOR = ObjectDataType.TENSOR
WEIGHT = ObjectDataType.WEIGHT
SAMPLE = ObjectDataType.SAMPLE
ACTIVATION = ObjectDataType.ACTIVATION
GRADIENT = ObjectDataType.GRADIENT
OPTIMIZER_STATE = ObjectDataType.OPTIMIZER_STATE
METADATA = ObjectDataType.METADATA
GENERAL = ObjectDataType.GENERAL
UNDEFINED = ReplicaStatus.UNDEFINED
INITIALIZED = ReplicaStatus.INITIALIZED
PROCESSING = ReplicaStatus.PROCESSING
COMPLETE = ReplicaStatus.COMPLETE
REMOVED = ReplicaStatus.REMOVED
FAILED = ReplicaStatus.FAILED
REPLICA_COPY = TaskType.REPLICA_COPY
REPLICA_MOVE = TaskType.REPLICA_MOVE
PENDING = TaskStatus.PENDING
SUCCESS = TaskStatus.SUCCESS

__all__ = [
    "BufferHandle",
    "BufferLease",
    "BufferLeaseView",
    "BufferPool",
    "Descriptor",
    "DiskDescriptor",
    "EngramStore",
    "EngramStoreConfig",
    "ExistOptions",
    "MemoryDescriptor",
    "MooncakeDistributedNoFRegister",
    "MooncakeDistributedStore",
    "MooncakeHostMemAllocator",
    "ObjectDataType",
    "ParallelAxis",
    "QueryTaskResponse",
    "RangedReadSnapshot",
    "ReadTarget",
    "RegisteredBufferLease",
    "RegisteredBufferLeaseView",
    "RegisteredBufferPool",
    "ReplicaDescriptor",
    "ReplicaStatus",
    "ReplicateConfig",
    "SoftPinAction",
    "TaskStatus",
    "TaskType",
    "TensorParallelism",
    "_deserialize_tensor",
    "_serialize_tensor",
    "_tensor_metadata_size",
    "bind_to_numa_node",
    "get_alloc_func_addr",
    "get_free_func_addr",
]
