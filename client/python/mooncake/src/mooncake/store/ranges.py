"""Reads of many ranges into few buffers, and registration of those buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from mc import McError, _native

from .codes import ADDRESS_NOT_REGISTERED, INVALID_PARAMS, OK
from .connection import Connection
from .link import Link
from .shapes import NOT_SET_UP, Keys, Numbers, refuse

_RangeLists: TypeAlias = Sequence[Sequence[Sequence[int]]]
"""For each buffer, for each of its keys: one number for each range."""


class RangedReadSnapshot:
    """Objects opened for reads of ranges: they can be read as long as this lives, whatever happens to their keys."""

    __slots__ = ("_sessions",)

    def __init__(self, sessions: dict[str, _native.GetSession | int]) -> None:
        self._sessions = sessions

    def get(self, key: str) -> _native.GetSession | int:
        """The open object, or the code why it could not be opened."""
        return self._sessions.get(key, INVALID_PARAMS)


class _Range(NamedTuple):
    place: tuple[int, int, int]
    key: str
    address: int
    size: int
    offset: int


class Ranges(Connection):
    """Calls that read parts of objects into registered buffers."""

    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Announce memory that calls will use, so that it moves without an extra copy where the transport allows it."""
        link = self._link
        if link is None:
            return refuse("register_buffer", [buffer_ptr], NOT_SET_UP)[0]
        try:
            link.client.register(buffer_ptr, size)
        except McError as error:
            return refuse("register_buffer", [buffer_ptr], str(error))[0]
        with link.guard:
            link.registered[buffer_ptr] = size
        return OK

    def unregister_buffer(self, buffer_ptr: int) -> int:
        """Take back `register_buffer`. -12 if the address was not registered."""
        link = self._link
        if link is None:
            return refuse("unregister_buffer", [buffer_ptr], NOT_SET_UP)[0]
        with link.guard:
            length = link.registered.pop(buffer_ptr, None)
        if length is None:
            refuse("unregister_buffer", [buffer_ptr], "the address is not registered")
            return ADDRESS_NOT_REGISTERED
        try:
            link.client.unregister(buffer_ptr)
        except McError as error:
            # It is registered still, and can be unregistered again.
            with link.guard:
                link.registered.setdefault(buffer_ptr, length)
            return refuse("unregister_buffer", [buffer_ptr], str(error))[0]
        return OK

    def get_into_ranges(
        self,
        buffer_ptrs: Numbers,
        all_keys: Sequence[Keys],
        all_dst_offsets: _RangeLists,
        all_src_offsets: _RangeLists,
        all_sizes: _RangeLists,
    ) -> list[list[list[int]]]:
        """Read ranges of objects to offsets of registered buffers. Returns the bytes of each, or a negative code."""
        link = self._link
        results = _refusals(all_keys, all_dst_offsets)
        if link is None:
            refuse("get_into_ranges", buffer_ptrs, NOT_SET_UP)
            return results
        ranges = _checked(link, buffer_ptrs, all_keys, all_dst_offsets, all_src_offsets, all_sizes)
        return _placed(results, ranges, link.client.get_ranges_into([one.key for one in ranges], *_memory(ranges)))

    def prepare_get_into_ranges_snapshot(self, keys: Keys) -> RangedReadSnapshot:
        """Open the objects for `get_into_ranges_from_snapshot`, which then asks the masters nothing."""
        link = self._link
        if link is None:
            refuse("prepare_get_into_ranges_snapshot", keys, NOT_SET_UP)
            return RangedReadSnapshot({})
        return RangedReadSnapshot(dict(zip(keys, link.client.open_gets(keys), strict=True)))

    def get_into_ranges_from_snapshot(
        self,
        snapshot: RangedReadSnapshot,
        buffer_ptrs: Numbers,
        all_keys: Sequence[Keys],
        all_dst_offsets: _RangeLists,
        all_src_offsets: _RangeLists,
        all_sizes: _RangeLists,
    ) -> list[list[list[int]]]:
        """`get_into_ranges` from the objects as they were when the snapshot was made."""
        link = self._link
        results = _refusals(all_keys, all_dst_offsets)
        if link is None:
            refuse("get_into_ranges_from_snapshot", buffer_ptrs, NOT_SET_UP)
            return results
        ranges = _checked(link, buffer_ptrs, all_keys, all_dst_offsets, all_src_offsets, all_sizes)
        readable, sessions = [], []
        for one in ranges:
            opened = snapshot.get(one.key)
            if isinstance(opened, int):
                _placed(results, [one], [opened])
            else:
                readable.append(one)
                sessions.append(opened)
        return _placed(results, readable, link.client.read_into(sessions, *_memory(readable)))


def _memory(ranges: Sequence[_Range]) -> tuple[list[Numbers], list[Numbers], list[Numbers]]:
    """Addresses, sizes and offsets for the native module."""
    return [[one.address] for one in ranges], [[one.size] for one in ranges], [[one.offset] for one in ranges]


def _refusals(all_keys: Sequence[Keys], all_dst_offsets: _RangeLists) -> list[list[list[int]]]:
    """INVALID_PARAMS for each range, in the shape of the result."""
    shaped: list[list[list[int]]] = []
    for index, keys in enumerate(all_keys):
        groups: Sequence[Sequence[int]] = all_dst_offsets[index] if index < len(all_dst_offsets) else ()
        shaped.append([[INVALID_PARAMS] * len(groups[at]) if at < len(groups) else [] for at in range(len(keys))])
    return shaped


def _checked(
    link: Link,
    buffer_ptrs: Numbers,
    all_keys: Sequence[Keys],
    all_dst_offsets: _RangeLists,
    all_src_offsets: _RangeLists,
    all_sizes: _RangeLists,
) -> list[_Range]:
    """Ranges whose arguments fit together, and which stay within a registered buffer."""
    ranges: list[_Range] = []
    if not len(buffer_ptrs) == len(all_keys) == len(all_dst_offsets) == len(all_src_offsets) == len(all_sizes):
        return ranges
    with link.guard:
        registered = dict(link.registered)
    buffers = zip(buffer_ptrs, all_keys, all_dst_offsets, all_src_offsets, all_sizes, strict=True)
    for b, (pointer, keys, dst_groups, src_groups, size_groups) in enumerate(buffers):
        room = _room(registered, pointer)
        if not len(keys) == len(dst_groups) == len(src_groups) == len(size_groups):
            continue
        for k, (key, dsts, srcs, sizes) in enumerate(zip(keys, dst_groups, src_groups, size_groups, strict=True)):
            if not len(dsts) == len(srcs) == len(sizes):
                continue
            ranges.extend(
                _Range((b, k, r), key, pointer + dst, size, src)
                for r, (dst, src, size) in enumerate(zip(dsts, srcs, sizes, strict=True))
                if dst >= 0 and size >= 0 and src >= 0 and dst + size <= room
            )
    return ranges


def _room(registered: dict[int, int], pointer: int) -> int:
    """Bytes from `pointer` to the end of the registered buffer that it is in, or 0."""
    length = registered.get(pointer)
    if length is not None:
        return length
    return next((start + length - pointer for start, length in registered.items() if start <= pointer < start + length), 0)


def _placed(results: list[list[list[int]]], ranges: Sequence[_Range], codes: Sequence[int]) -> list[list[list[int]]]:
    for one, code in zip(ranges, codes, strict=True):
        b, k, r = one.place
        results[b][k][r] = code
    return results
