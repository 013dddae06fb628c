"""Arguments that many calls take, and the answer to those that do not fit together."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, TypeAlias

from .codes import INVALID_PARAMS

_log = logging.getLogger(__name__)

Keys: TypeAlias = Sequence[str]
Numbers: TypeAlias = Sequence[int]
"""Addresses, sizes or offsets: one for each key."""
NestedNumbers: TypeAlias = Sequence[Numbers]
"""The same for each key's buffers."""
AnyNumbers: TypeAlias = Sequence[Any]
"""`Numbers` or `NestedNumbers`."""

NOT_SET_UP = "the store is not set up"


def refuse(call: str, keys: Sequence[object], reason: str) -> list[int]:
    """Logs why a call is refused, and answers INVALID_PARAMS for each key."""
    _log.error("%s of %d keys: %s", call, len(keys), reason)
    return [INVALID_PARAMS] * len(keys)


def differ(keys: Sequence[object], *others: Sequence[object]) -> bool:
    """Whether an argument has another number of entries than there are keys."""
    count = len(keys)
    return any(len(other) != count for other in others)
