"""Where the replicas of an object are, in upstream's classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn

from .enums import ReplicaStatus, TaskStatus, TaskType


@dataclass
class Descriptor:
    """Place of a replica's bytes."""

    size: int = 0
    buffer_address: int = 0
    """Offset in the segment: addresses of other processes mean nothing here."""
    transport_endpoint: str = ""
    """`host:port` of the store, as `get_hostname` of that store returns it."""


@dataclass(frozen=True)
class MemoryDescriptor:
    """A replica in memory."""

    buffer_descriptor: Descriptor


@dataclass(frozen=True)
class DiskDescriptor:
    """A replica in a file. The pool has none."""

    file_path: str
    object_size: int


@dataclass(frozen=True)
class ReplicaDescriptor:
    """One replica of an object."""

    _memory: MemoryDescriptor = field(repr=False)
    status: ReplicaStatus = ReplicaStatus.COMPLETE

    def is_memory_replica(self) -> bool:
        """Always: the pool keeps objects in memory."""
        return True

    def is_disk_replica(self) -> bool:
        """Never."""
        return False

    def is_local_disk_replica(self) -> bool:
        """Never."""
        return False

    def get_memory_descriptor(self) -> MemoryDescriptor:
        """Place of the replica's bytes."""
        return self._memory

    def get_disk_descriptor(self) -> NoReturn:
        """RuntimeError: the replica is in memory."""
        raise RuntimeError("the replica is in memory: it has no disk descriptor")


@dataclass
class QueryTaskResponse:
    """Answer of `query_task` upstream. Here for imports: the pool has no copy or move tasks."""

    id: tuple[int, int] = (0, 0)
    type: TaskType = TaskType.REPLICA_COPY
    status: TaskStatus = TaskStatus.PENDING
    created_at_ms_epoch: int = 0
    last_updated_at_ms_epoch: int = 0
    assigned_client: tuple[int, int] = (0, 0)
    message: str = ""


def from_description(description: dict[str, Any]) -> list[ReplicaDescriptor]:
    """Replicas of one object, from what the native module says about it."""
    return [
        ReplicaDescriptor(
            MemoryDescriptor(
                Descriptor(
                    size=description["size"],
                    buffer_address=replica["offset"],
                    transport_endpoint=replica["store_name"] or replica["address"],
                )
            )
        )
        for replica in description["replicas"]
    ]
