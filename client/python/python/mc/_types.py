"""Types of arguments and results."""

from __future__ import annotations

import enum
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict

from mc import _native

Key: TypeAlias = str | bytes
"""A key of 1 to 4,096 bytes; a string stands for its UTF-8."""

Source: TypeAlias = Any
"""An object to put: with the buffer protocol, a tensor, or with ``__dlpack__``; its bytes in one piece."""

Target: TypeAlias = Any
"""A writable object to read into, of the kinds of :data:`Source`."""


class Put(enum.Enum):
    """Outcome of a put."""

    STORED = 0
    """The pool has the object."""
    EXISTS = 1
    """The key existed, and its object was kept."""
    LOCAL = 2
    """No leader was in reach: this client alone has the object."""


class PutOptions(TypedDict, total=False):
    """Keyword arguments of puts."""

    upsert: bool
    """Replace an object that exists. Default: keep it."""
    replicas: int
    """Number of replicas. Default: 1."""
    strict: bool
    """Fail if there is no room for all replicas. Default: as many as there is room for."""
    timeout: float
    """Seconds for the whole put. Default: 30."""
    preferred: list[str]
    """Stores to prefer, by name or host:port."""
    near: Literal["any", "client", "each_other"]
    """Host whose stores are preferred. Default: any."""
    data_type: int
    """Tag of the object, 0 to 255, that the pool keeps."""
    group: Key
    """Group to join: its members are evicted together."""
    pin: Literal["preserve", "none", "soft", "hard"]
    """Protection from eviction. Default: that of the replaced object."""
    soft_pin: float
    """Seconds of a soft pin. Default: 1,800."""


class Listed(NamedTuple):
    """A listed object."""

    key: bytes
    size: int


class Removed(NamedTuple):
    """Numbers of a removal of many objects."""

    removed: int
    leased: int
    """Objects that are being read, and were kept."""


class Replica(TypedDict):
    """A replica of an object."""

    store: int
    store_name: str
    address: str
    segment: int
    offset: int
    suspect: bool


class Description(TypedDict):
    """What the masters know of an object."""

    size: int
    version: str
    pin: Literal["none", "soft", "hard"]
    soft_pin: float | None
    group: str | None
    data_type: int
    replicas: list[Replica]


def options(given: PutOptions) -> _native.PutOptions | None:
    """Returns the options of a put; none are the defaults."""
    return _native.PutOptions(**given) if given else None


def size_of(size: int | str) -> int:
    """Returns the bytes of a size such as 4096 or "4gb"."""
    return _native.parse_size(size) if isinstance(size, str) else size
