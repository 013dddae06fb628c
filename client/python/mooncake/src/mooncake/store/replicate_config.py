"""Options of puts and existence checks."""

from __future__ import annotations

from operator import index
from typing import SupportsIndex

from .enums import ObjectDataType, SoftPinAction

_MAX_TTL_MS = (1 << 64) - 1


class ReplicateConfig:
    """Options of a put, with upstream's fields and defaults.

    A call copies what it needs when it begins: fields that change afterwards concern the next call.
    """

    __slots__ = (
        "_soft_pin_ttl_ms",
        "data_type",
        "dfs_replica_num",
        "group_ids",
        "nof_replica_num",
        "per_key_preferred_hca_names",
        "prefer_alloc_in_same_node",
        "preferred_hca_names",
        "preferred_nof_segments",
        "preferred_segment",
        "preferred_segments",
        "replica_num",
        "residency_affinity_ids",
        "session_ids",
        "soft_pin_action",
        "with_hard_pin",
    )

    def __init__(self) -> None:
        self.replica_num: int = 1
        self.nof_replica_num: int = 0
        self.dfs_replica_num: int = 0
        self.soft_pin_action: SoftPinAction = SoftPinAction.PRESERVE
        self._soft_pin_ttl_ms: int | None = None
        self.with_hard_pin: bool = False
        self.preferred_segment: str = ""
        self.preferred_segments: list[str] = []
        self.preferred_nof_segments: list[str] = []
        self.prefer_alloc_in_same_node: bool = False
        self.data_type: ObjectDataType = ObjectDataType.UNKNOWN
        self.group_ids: list[str] | None = None
        # Accepted and checked. Nothing reads them yet: the pool publishes no events, and chooses adapters itself.
        self.session_ids: list[str] | None = None
        self.residency_affinity_ids: list[str] | None = None
        self.preferred_hca_names: list[str] | None = None
        self.per_key_preferred_hca_names: list[list[str]] | None = None

    @property
    def soft_pin_ttl_ms(self) -> int | None:
        """How long a soft pin protects the object, in milliseconds. None: half an hour."""
        return self._soft_pin_ttl_ms

    @soft_pin_ttl_ms.setter
    def soft_pin_ttl_ms(self, value: SupportsIndex | None) -> None:
        if value is not None and not 0 <= index(value) <= _MAX_TTL_MS:
            raise TypeError(f"soft_pin_ttl_ms is an unsigned number of 64 bits or None, not {value!r}")
        self._soft_pin_ttl_ms = None if value is None else index(value)

    @property
    def with_soft_pin(self) -> bool:
        """The soft pin as releases before 0.3.13 spelled it."""
        return self.soft_pin_action is SoftPinAction.ENABLE

    @with_soft_pin.setter
    def with_soft_pin(self, value: bool) -> None:
        self.soft_pin_action = SoftPinAction.ENABLE if value else SoftPinAction.PRESERVE

    def __str__(self) -> str:
        ttl = "default" if self._soft_pin_ttl_ms is None else self._soft_pin_ttl_ms
        return (
            f"ReplicateConfig: {{ replica_num: {self.replica_num}, nof_replica_num: {self.nof_replica_num},"
            f" dfs_replica_num: {self.dfs_replica_num}, soft_pin_action: {self.soft_pin_action.name},"
            f" soft_pin_ttl_ms: {ttl}, with_hard_pin: {int(self.with_hard_pin)},"
            f" preferred_segments: {self.preferred_segments},"
            f" preferred_nof_segments: {self.preferred_nof_segments},"
            f" prefer_alloc_in_same_node: {int(self.prefer_alloc_in_same_node)},"
            f" data_type: {self.data_type.name} }}"
        )


class ExistOptions:
    """Options of an existence check. The pool has no disk tier, so there is nothing to prefetch from."""

    __slots__ = ("prefetch_to_memory",)

    def __init__(self) -> None:
        self.prefetch_to_memory: bool = False
