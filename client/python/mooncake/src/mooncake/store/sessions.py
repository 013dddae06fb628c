"""Sessions: an object read or written piece by piece, layer after layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from mc import McError, _native

from .codes import INVALID_PARAMS, OK, upstream
from .connection import Connection
from .link import Link
from .placement import InvalidConfig, place
from .replicate_config import ReplicateConfig
from .shapes import NOT_SET_UP, Keys, NestedNumbers, Numbers, differ, refuse

_Session = TypeVar("_Session")

# Time of a put session, which lasts as long as a model computes its layers. Upstream gives an unfinished put up after as long.
_PUT_SECONDS = 30.0


class Sessions(Connection):
    """Calls by which engines move one layer at a time. Sessions are found by their keys, one of each kind for a key."""

    def batch_get_session_start(self, keys: Keys) -> list[int]:
        """Open each object for reading. It can be read until the session ends, whatever else happens to its key.

        Sessions of a key nest: it stays open until it was ended as often as it was started.
        """
        link = self._link
        if link is None:
            return refuse("batch_get_session_start", keys, NOT_SET_UP)
        results = []
        for key, opened in zip(keys, link.client.open_gets(keys), strict=True):
            if isinstance(opened, int):
                results.append(opened)
                continue
            with link.guard:
                session, starts = link.get_sessions.get(key, (opened, 0))
                link.get_sessions[key] = (session, starts + 1)
            results.append(OK)
        return results

    def batch_get_into_multi_buffer_ranges(
        self, keys: Keys, all_buffer_ptrs: NestedNumbers, all_sizes: NestedNumbers, all_src_offsets: NestedNumbers
    ) -> list[int]:
        """Read ranges of objects with a session into buffers. Returns the bytes read of each, or a negative code."""
        link = self._link
        if link is None:
            return refuse("ranged get", keys, NOT_SET_UP)
        if differ(keys, all_buffer_ptrs, all_sizes, all_src_offsets):
            return refuse("ranged get", keys, "not as many lists of addresses, sizes and offsets")
        with link.guard:
            found = [entry and entry[0] for entry in map(link.get_sessions.get, keys)]
        return _with_sessions(link.client.read_into, keys, found, all_buffer_ptrs, all_sizes, all_src_offsets)

    def batch_get_session_end(self, keys: Keys) -> int:
        """End the get sessions. 0, also for keys without one."""
        link = self._link
        if link is None:
            return refuse("batch_get_session_end", [None], NOT_SET_UP)[0]
        with link.guard:
            for key in keys:
                session, starts = link.get_sessions.pop(key, (None, 0))
                if session is not None and starts > 1:
                    link.get_sessions[key] = (session, starts - 1)
        return OK

    def batch_put_session_start(self, keys: Keys, sizes: Numbers, config: ReplicateConfig | None = None) -> list[int]:
        """Reserve room for objects of these sizes. They exist once their session ends. -705: one exists already."""
        link = self._link
        if link is None:
            return refuse("batch_put_session_start", keys, NOT_SET_UP)
        if differ(keys, sizes):
            return refuse("batch_put_session_start", keys, f"{len(sizes)} sizes")
        try:
            placed = place(config, len(keys), upsert=False, seconds=_PUT_SECONDS)
        except InvalidConfig as error:
            return refuse("batch_put_session_start", keys, str(error))
        results = []
        for key, opened in zip(keys, link.client.open_puts(keys, sizes, placed.options, placed.groups), strict=True):
            if isinstance(opened, int):
                results.append(opened)
                continue
            with link.guard:
                taken = link.put_sessions.setdefault(key, opened) is not opened
            if taken:
                _abort(link, [opened])
            results.append(INVALID_PARAMS if taken else OK)
        return results

    def batch_put_from_multi_buffer_ranges(
        self, keys: Keys, all_buffer_ptrs: NestedNumbers, all_sizes: NestedNumbers, all_dst_offsets: NestedNumbers
    ) -> list[int]:
        """Write buffers to ranges of objects with a put session. Returns the bytes of each, or a negative code."""
        link = self._link
        if link is None:
            return refuse("ranged put", keys, NOT_SET_UP)
        if differ(keys, all_buffer_ptrs, all_sizes, all_dst_offsets):
            return refuse("ranged put", keys, "not as many lists of addresses, sizes and offsets")
        with link.guard:
            found = list(map(link.put_sessions.get, keys))
        return _with_sessions(link.client.write_from, keys, found, all_buffer_ptrs, all_sizes, all_dst_offsets)

    def batch_put_session_end(self, keys: Keys) -> list[int]:
        """Publish the objects of these put sessions."""
        link = self._link
        if link is None:
            return refuse("batch_put_session_end", keys, NOT_SET_UP)
        return _with_sessions(link.client.finish, keys, _take_puts(link, keys))

    def batch_put_session_revoke(self, keys: Keys) -> list[int]:
        """Give up the put sessions, and what they have written."""
        link = self._link
        if link is None:
            return refuse("batch_put_session_revoke", keys, NOT_SET_UP)

        return _with_sessions(partial(_abort, link), keys, _take_puts(link, keys))


def _abort(link: Link, sessions: list[_native.PutSession]) -> list[int]:
    try:
        link.client.abort(sessions)
    except McError as error:
        # The masters free the room at the deadline of the puts.
        refuse("put session", sessions, str(error))
        return [upstream(error.code)] * len(sessions)
    return [OK] * len(sessions)


def _take_puts(link: Link, keys: Keys) -> list[_native.PutSession | None]:
    with link.guard:
        return [link.put_sessions.pop(key, None) for key in keys]


def _with_sessions(call: Callable[..., list[int]], keys: Keys, found: list[_Session | None], *arguments: NestedNumbers) -> list[int]:
    """Result of `call` for the keys with a session, and INVALID_PARAMS for those without."""
    if None not in found:
        return call(found, *arguments)
    places = [index for index, session in enumerate(found) if session is not None]
    results = refuse("session", keys, f"{len(keys) - len(places)} have no session")
    some = call([found[index] for index in places], *([argument[index] for index in places] for argument in arguments))
    for index, result in zip(places, some, strict=True):
        results[index] = result
    return results
