"""Memory that this process adds to the pool after setup, and memory for its own use."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NoReturn

from mc import McError, _native

from .codes import OK, RPC_FAIL, upstream
from .connection import Connection
from .link import SetupFailed
from .shapes import NOT_SET_UP, refuse

_log = logging.getLogger(__name__)


class Segments(Connection):
    """Calls that mount and unmount segments."""

    def allocate_and_mount_segment(self, size: int, protocol: str = "tcp", location: str = "") -> dict[str, Any]:
        """Add `size` bytes of new memory to the pool: {"ret": 0, "segment_ids": [id], "allocated_size": size}.

        `protocol` and `location` are accepted: the transports are those of setup.
        """
        del protocol, location
        link = self._link
        if link is None:
            return _not_mounted(refuse("allocate_and_mount_segment", [None], NOT_SET_UP)[0])
        try:
            number = link.mount(size)
        except (SetupFailed, McError) as error:
            invalid = refuse("allocate_and_mount_segment", [None], str(error))[0]
            if isinstance(error, McError):
                return _not_mounted(upstream(error.code))
            return _not_mounted(invalid if error.invalid else RPC_FAIL)
        return {"ret": OK, "segment_ids": [f"{link.name}/{number}"], "allocated_size": size}

    def unmount_and_free_segment(self, segment_ids: Sequence[str], grace_period_seconds: int = 0) -> int:
        """Take segments of `allocate_and_mount_segment` out of the pool again.

        `grace_period_seconds` is accepted: an unmount waits for the reads and writes of its segment.
        """
        del grace_period_seconds
        link = self._link
        if link is None:
            return refuse("unmount_and_free_segment", [None], NOT_SET_UP)[0]
        prefix = f"{link.name}/"
        for segment in segment_ids:
            number = segment.removeprefix(prefix)
            if number == segment or not number.isdigit():
                return refuse("unmount_and_free_segment", [segment], f"{segment!r} is not a segment of this process")[0]
            try:
                link.unmount(int(number))
            except (SetupFailed, McError) as error:
                return refuse("unmount_and_free_segment", [segment], str(error))[0]
        return OK

    def unmount_segment(self, segment_ids: Sequence[str], grace_period_seconds: int = 0) -> int:
        """The same as `unmount_and_free_segment`."""
        return self.unmount_and_free_segment(segment_ids, grace_period_seconds)

    def mount_segment(self, path: str, size: int, offset: int = 0, protocol: str = "tcp", location: str = "") -> NoReturn:
        """NotImplementedError: segments are memory that the store allocates."""
        raise NotImplementedError("segments are not mapped from files: use allocate_and_mount_segment(size)")

    def unmount_local_disk_segment(self, grace_period_seconds: int = 0) -> NoReturn:
        """NotImplementedError: there are no segments on disk."""
        raise NotImplementedError("there are no segments on disk: the pool keeps objects in memory")

    def alloc_from_mem_pool(self, size: int, /) -> int:
        """Address of new shareable memory, or 0. It is freed by `close`."""
        link = self._link
        if link is None:
            refuse("alloc_from_mem_pool", [None], NOT_SET_UP)
            return 0
        try:
            memory = _native.allocate(size)
        except (MemoryError, ValueError, McError) as error:
            _log.error("alloc_from_mem_pool(%d): %s", size, error)
            return 0
        with link.guard:
            link.pool[memory.address] = memory
        return memory.address


def _not_mounted(code: int) -> dict[str, Any]:
    return {"ret": code, "segment_ids": [], "allocated_size": 0}
