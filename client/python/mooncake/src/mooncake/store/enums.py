"""Upstream's enumerations. Their members are no integers, but convert to them."""

from __future__ import annotations

import enum


class _Numbered(enum.Enum):
    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return int(self.value)


class ObjectDataType(_Numbered):
    """Kind of an object's content: a label that the pool keeps with it."""

    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9


class SoftPinAction(_Numbered):
    """What a put does to the soft pin of its object."""

    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2


class ReplicaStatus(_Numbered):
    """State of a replica. Those that the pool describes are COMPLETE."""

    UNDEFINED = 0
    INITIALIZED = 1
    PROCESSING = 2
    COMPLETE = 3
    REMOVED = 4
    FAILED = 5


class TaskType(_Numbered):
    """Kind of a copy or move task."""

    REPLICA_COPY = 0
    REPLICA_MOVE = 1


class TaskStatus(_Numbered):
    """State of a copy or move task."""

    PENDING = 0
    PROCESSING = 1
    FAILED = 2
    SUCCESS = 3
