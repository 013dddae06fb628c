"""From a `ReplicateConfig` to the options of a native put."""

from __future__ import annotations

import functools
import hashlib
import logging
from typing import NamedTuple

from mc import McError, _native

from .enums import SoftPinAction
from .replicate_config import ReplicateConfig

_log = logging.getLogger(__name__)

_MAX_GROUP_BYTES = 256


class Placement(NamedTuple):
    """Options of one put call, copied from its configuration."""

    options: _native.PutOptions
    groups: list[str] | None


class InvalidConfig(ValueError):
    """The configuration does not fit the call. Every key of the call answers INVALID_PARAMS."""


def place(config: ReplicateConfig | None, keys: int, *, upsert: bool, seconds: float) -> Placement:
    """Copy of `config` for a call of `keys` keys. InvalidConfig says what does not fit."""
    if config is None:
        return Placement(_options(upsert, seconds), None)
    groups = config.group_ids
    groups = None if groups is None else list(groups)
    for name, given in (("group_ids", groups), ("session_ids", config.session_ids)):
        if given is not None and len(given) != keys:
            raise InvalidConfig(f"{name} has {len(given)} entries for {keys} keys")
    if config.nof_replica_num or config.dfs_replica_num:
        raise InvalidConfig("nof_replica_num and dfs_replica_num must be 0: the pool keeps replicas in memory only")
    options = _options(
        upsert,
        seconds,
        config.replica_num,
        _preferred(config),
        config.prefer_alloc_in_same_node,
        int(config.data_type),
        *_pin(config),
    )
    return Placement(options, None if groups is None else bounded(groups))


def _preferred(config: ReplicateConfig) -> tuple[str, ...]:
    if config.preferred_segments:
        return tuple(config.preferred_segments)
    return (config.preferred_segment,) if config.preferred_segment else ()


def _pin(config: ReplicateConfig) -> tuple[str, float | None]:
    action, ttl_ms = config.soft_pin_action, config.soft_pin_ttl_ms
    if ttl_ms is not None and action is not SoftPinAction.ENABLE:
        raise InvalidConfig(f"soft_pin_ttl_ms is set, but soft_pin_action is {action.name}: set it to ENABLE")
    if config.with_hard_pin:
        return "hard", None
    if action is SoftPinAction.ENABLE:
        return "soft", None if ttl_ms is None else ttl_ms / 1000
    return ("none" if action is SoftPinAction.DISABLE else "preserve"), None


# Engines put with the same few configurations again and again.
@functools.lru_cache(maxsize=128)
def _options(
    upsert: bool,
    seconds: float,
    replicas: int = 1,
    preferred: tuple[str, ...] = (),
    together: bool = False,
    data_type: int = 0,
    pin: str = "preserve",
    soft_pin: float | None = None,
) -> _native.PutOptions:
    try:
        return _native.PutOptions(
            upsert=upsert,
            replicas=replicas,
            timeout=seconds,
            preferred=preferred,
            near="each_other" if together else "any",
            data_type=data_type,
            pin=pin,
            soft_pin=soft_pin,
        )
    except (ValueError, OverflowError, McError) as error:
        raise InvalidConfig(str(error)) from None


def bounded(groups: list[str]) -> list[str]:
    """The groups, with names that the pool finds too long replaced by their hash: the same one in every process."""
    if max(map(len, map(str.encode, groups)), default=0) <= _MAX_GROUP_BYTES:
        return groups
    return [group if len(group.encode()) <= _MAX_GROUP_BYTES else _hashed(group) for group in groups]


def _hashed(group: str) -> str:
    return "sha256:" + hashlib.sha256(group.encode()).hexdigest()
