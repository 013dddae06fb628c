"""Calls of the extension module, ready to run: what both clients have in common.

Each function converts the arguments of a call. A client then runs the call, waiting in its own way, and converts the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mc import _memory, _native
from mc._errors import McError
from mc._types import Description, Key, Listed, Put, PutOptions, Removed, Source, Target, options

T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True, eq=False)
class Call(Generic[T]):
    """A method of the extension module with its arguments."""

    method: Callable[..., Any]
    arguments: tuple[Any, ...]
    convert: Callable[[Any], T]
    keep: object = None
    """Whatever holds the caller's memory in its place until the call has ended."""


def only(results: Sequence[Any]) -> Any:
    """Returns the result of the only item; raises it if it is an exception."""
    (result,) = results
    if isinstance(result, McError):
        raise result
    return result


_PUTS = tuple(Put)


def stored(number: int) -> Put:
    return _PUTS[number]


def one(convert: Callable[[Any], T]) -> Callable[[Sequence[Any]], T]:
    return lambda results: convert(only(results))


def many(convert: Callable[[Any], T]) -> Callable[[Sequence[Any]], list[T | McError]]:
    return lambda results: [item if isinstance(item, McError) else convert(item) for item in results]


def same(value: Any) -> Any:
    return value


def maybe(value: Any) -> int | None:
    number: int | None = value
    return number


def put(client: _native.Client, items: Iterable[tuple[Key, Source]], given: PutOptions, convert: Callable[[Any], T]) -> Call[T]:
    keys, values = _split(items)
    chosen = options(given)
    if not any(_memory.is_tensor(value) for value in values):
        return Call(client.put, (keys, values, chosen), convert)
    raws = [_memory.raw(value) for value in values]
    return Call(client.put_from, (keys, [raw.address for raw in raws], [raw.length for raw in raws], chosen), convert, raws)


def put_parts(client: _native.Client, key: Key, parts: Sequence[Source], given: PutOptions) -> Call[Put]:
    raws = [_memory.raw(part) for part in parts]
    arguments = ([key], [[raw.address for raw in raws]], [[raw.length for raw in raws]], options(given))
    return Call(client.put_from, arguments, one(stored), raws)


def get_into(client: _native.Client, items: Iterable[tuple[Key, Target]], convert: Callable[[Any], T]) -> Call[T]:
    keys, targets = _split(items)
    raws = [_memory.raw(target, writable=True) for target in targets]
    return Call(client.get_into, (keys, [raw.address for raw in raws], [raw.length for raw in raws]), convert, raws)


def get_ranges_into(client: _native.Client, key: Key, ranges: Iterable[tuple[int, Target]]) -> Call[int | None]:
    offsets, targets = _split(ranges)
    raws = [_memory.raw(target, writable=True) for target in targets]
    arguments = ([key], [[raw.address for raw in raws]], [[raw.length for raw in raws]], [offsets])
    return Call(client.get_ranges_into, arguments, one(same), raws)


def get_range(client: _native.Client, key: Key, offset: int, length: int) -> Call[bytes | None]:
    memory = bytearray(length)
    raw = _memory.raw(memory, writable=True)
    arguments = ([key], [[raw.address]], [[length]], [[offset]])
    return Call(client.get_ranges_into, arguments, one(lambda got: None if got is None else bytes(memory)), raw)


def read_into(client: _native.Client, session: _native.GetSession, ranges: Iterable[tuple[int, Target]]) -> Call[int]:
    offsets, targets = _split(ranges)
    raws = [_memory.raw(target, writable=True) for target in targets]
    arguments = ([session], [[raw.address for raw in raws]], [[raw.length for raw in raws]], [offsets])
    return Call(client.read_into, arguments, one(same), raws)


def read(client: _native.Client, session: _native.GetSession, offset: int, length: int) -> Call[bytes]:
    memory = bytearray(length)
    raw = _memory.raw(memory, writable=True)
    arguments = ([session], [[raw.address]], [[length]], [[offset]])
    return Call(client.read_into, arguments, one(lambda _: bytes(memory)), raw)


def write(client: _native.Client, session: _native.PutSession, ranges: Iterable[tuple[int, Source]]) -> Call[int]:
    offsets, sources = _split(ranges)
    raws = [_memory.raw(source) for source in sources]
    arguments = ([session], [[raw.address for raw in raws]], [[raw.length for raw in raws]], [offsets])
    return Call(client.write_from, arguments, one(same), raws)


def exists(client: _native.Client, keys: Sequence[Key], convert: Callable[[Any], T]) -> Call[T]:
    return Call(client.exist, (keys,), convert)


def size(client: _native.Client, keys: Sequence[Key], convert: Callable[[Any], T]) -> Call[T]:
    return Call(client.size, (keys,), convert)


def remove(client: _native.Client, keys: Sequence[Key], force: bool, convert: Callable[[Any], T]) -> Call[T]:
    return Call(client.remove, (keys, force), convert)


def remove_all(client: _native.Client, force: bool) -> Call[Removed]:
    return Call(client.remove_all, (force,), lambda numbers: Removed(*numbers))


def remove_matching(client: _native.Client, pattern: str, force: bool) -> Call[Removed]:
    return Call(client.remove_by_regex, (pattern, force), lambda numbers: Removed(*numbers))


def describe(client: _native.Client, key: Key) -> Call[Description | None]:
    return Call(client.describe, ([key],), one(same))


def list_page(client: _native.Client, prefix: Key, position: object) -> Call[tuple[list[Listed], object]]:
    def page(answer: Any) -> tuple[list[Listed], object]:
        keys, position = answer
        return [Listed(*key) for key in keys], position

    return Call(client.list_keys, (prefix, position), page)


def _split(items: Iterable[tuple[Any, S]]) -> tuple[list[Any], list[S]]:
    firsts, seconds = [], []
    for first, second in items.items() if isinstance(items, Mapping) else items:
        firsts.append(first)
        seconds.append(second)
    return firsts, seconds
