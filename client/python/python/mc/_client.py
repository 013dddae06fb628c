"""The client that waits."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar, Unpack

from mc import _calls, _memory, _native
from mc._calls import Call, many, maybe, one, same, stored
from mc._errors import McError
from mc._open import ClientOptions, Opened
from mc._types import Description, Key, Listed, Put, PutOptions, Removed, Source, Target
from mc._types import options as put_options

T = TypeVar("T")


class Client:
    """A client of one cluster and one tenant. Safe to share between threads.

    ``masters`` are the client addresses of the masters, as a list or with commas; one that is reachable is enough to find the others.
    A name with several DNS records stands for several masters.

    Every call ends by its deadline, also if every master and store is down. Without a leader, gets answer from the local cache and the
    embedded store, and puts are kept there: see :attr:`mode`.
    """

    def __init__(self, masters: str | Sequence[str] = "127.0.0.1:50051", **options: Unpack[ClientOptions]) -> None:
        self._opened = Opened(masters, options)
        self._native = self._opened.client

    # Single objects.

    def put(self, key: Key, value: Source, **options: Unpack[PutOptions]) -> Put:
        """Puts an object, if its key is absent or with ``upsert=True``."""
        return _run(_calls.put(self._native, [(key, value)], options, one(stored)))

    def put_parts(self, key: Key, parts: Sequence[Source], **options: Unpack[PutOptions]) -> Put:
        """Puts an object whose value is in several pieces of memory."""
        return _run(_calls.put_parts(self._native, key, parts, options))

    def get(self, key: Key) -> bytes | None:
        """Reads an object; ``None`` is a miss."""
        got: bytes | None = _calls.only(self._native.get([key]))
        return got

    def get_memory(self, key: Key) -> _native.Memory | None:
        """Reads an object into memory that the caller alone owns and can write to."""
        got: _native.Memory | None = _calls.only(self._native.get_owned([key]))
        return got

    def get_into(self, key: Key, target: Target) -> int | None:
        """Reads an object into memory, which may be longer; returns its bytes."""
        return _run(_calls.get_into(self._native, [(key, target)], one(maybe)))

    def get_range(self, key: Key, offset: int, length: int) -> bytes | None:
        """Reads a range of an object, which has to lie within it."""
        return _run(_calls.get_range(self._native, key, offset, length))

    def get_ranges_into(self, key: Key, ranges: Iterable[tuple[int, Target]]) -> int | None:
        """Reads ranges of one version of an object, each given by its offset and the memory for it; returns their bytes."""
        return _run(_calls.get_ranges_into(self._native, key, ranges))

    def exists(self, key: Key) -> bool:
        """Says whether an object can be read; it is not evicted for a while then."""
        return _run(_calls.exists(self._native, [key], one(bool)))

    def size(self, key: Key) -> int | None:
        """Returns the bytes of an object; ``None`` if there is none, or it is being written or can't be read now."""
        return _run(_calls.size(self._native, [key], one(maybe)))

    def remove(self, key: Key, *, force: bool = False) -> bool:
        """Removes an object, with ``force`` also one that is being read; returns whether there was one."""
        return _run(_calls.remove(self._native, [key], force, one(bool)))

    def describe(self, key: Key) -> Description | None:
        """Returns what the masters know of an object."""
        return _run(_calls.describe(self._native, key))

    # Many objects, in one call to the masters. A failed item is an exception in its place.

    def put_many(
        self, items: Mapping[Key, Source] | Iterable[tuple[Key, Source]], **options: Unpack[PutOptions]
    ) -> builtins.list[Put | McError]:
        """Puts objects."""
        pairs = items.items() if isinstance(items, Mapping) else items
        return _run(_calls.put(self._native, pairs, options, many(stored)))

    def get_many(self, keys: Sequence[Key]) -> builtins.list[bytes | None | McError]:
        """Reads objects."""
        got: builtins.list[bytes | None | McError] = self._native.get(keys)
        return got

    def get_many_into(self, items: Mapping[Key, Target] | Iterable[tuple[Key, Target]]) -> builtins.list[int | None | McError]:
        """Reads objects into memory."""
        pairs = items.items() if isinstance(items, Mapping) else items
        return _run(_calls.get_into(self._native, pairs, many(maybe)))

    def exists_many(self, keys: Sequence[Key]) -> builtins.list[bool | McError]:
        """Says of each object whether it can be read."""
        return _run(_calls.exists(self._native, keys, many(same)))

    def size_many(self, keys: Sequence[Key]) -> builtins.list[int | None | McError]:
        """Returns the bytes of objects."""
        return _run(_calls.size(self._native, keys, many(maybe)))

    def remove_many(self, keys: Sequence[Key], *, force: bool = False) -> builtins.list[bool | McError]:
        """Removes objects."""
        return _run(_calls.remove(self._native, keys, force, many(same)))

    def remove_all(self, *, force: bool = False) -> Removed:
        """Removes all objects of the tenant, with ``force`` also those that are being read."""
        return _run(_calls.remove_all(self._native, force))

    def remove_matching(self, pattern: str, *, force: bool = False) -> Removed:
        """Removes objects whose keys match a regular expression, in the syntax of Rust's crate ``regex``; it is not anchored."""
        return _run(_calls.remove_matching(self._native, pattern, force))

    def list(self, prefix: Key = b"") -> Iterator[Listed]:
        """Lists the objects of the tenant whose keys begin with ``prefix``, in no particular order."""
        position: object = None
        while True:
            page, position = _run(_calls.list_page(self._native, prefix, position))
            yield from page
            if position is None:
                return

    # Sessions.

    def read_session(self, key: Key) -> ReadSession | None:
        """Opens a session to read one version of an object range by range; ``None`` is a miss."""
        session = _calls.only(self._native.open_gets([key]))
        return None if session is None else ReadSession(self._opened, session)

    def read_sessions(self, keys: Sequence[Key]) -> builtins.list[ReadSession | None | McError]:
        """Opens sessions with one call to the leader."""
        opened = self._native.open_gets(keys)
        return [ReadSession(self._opened, item) if isinstance(item, _native.GetSession) else item for item in opened]

    def write_session(self, key: Key, size: int, **options: Unpack[PutOptions]) -> WriteSession | None:
        """Opens a session to put an object range by range; ``None``: the key exists."""
        session = _calls.only(self._native.open_puts([key], [size], put_options(options)))
        return None if session is None else WriteSession(self._opened, session)

    # Memory.

    def register(self, target: Target) -> Registration:
        """Registers memory of the caller, so that bytes go to and from it without a copy where the transport can do that."""
        return Registration(self._opened, _memory.raw(target, writable=True))

    # State.

    @property
    def mode(self) -> Literal["connected", "local-only"]:
        """Whether a leader is in reach."""
        return self._native.mode

    @property
    def last_error(self) -> str | None:
        """Why no leader is in reach."""
        return self._native.last_error

    def stats(self) -> dict[str, int]:
        """Returns the counters of the client."""
        return self._native.stats()

    def transports(self) -> builtins.list[dict[str, Any]]:
        """Says by which transport bytes go to and from each store, and why not by a better one."""
        return self._native.transports()

    def close(self) -> None:
        """Unmounts the embedded store, and ends the client."""
        self._opened.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class ReadSession:
    """One version of an object that is read range by range, for example layer by layer. Its read lease is renewed until it is closed."""

    def __init__(self, opened: Opened, session: _native.GetSession) -> None:
        # A client frees registered memory at its end, so a session keeps the whole client.
        self._opened, self._client, self._session = opened, opened.client, session

    @property
    def size(self) -> int:
        """Bytes of the object."""
        return self._session.size

    @property
    def version(self) -> str:
        """Id of the put that wrote this version."""
        return self._session.version

    def read(self, offset: int, length: int) -> bytes:
        """Reads a range."""
        return _run(_calls.read(self._client, self._session, offset, length))

    def read_into(self, ranges: Iterable[tuple[int, Target]]) -> int:
        """Reads ranges, each given by its offset and the memory for it; returns their bytes."""
        return _run(_calls.read_into(self._client, self._session, ranges))

    def close(self) -> None:
        """Ends the session."""
        self._session.close()

    def __enter__(self) -> ReadSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class WriteSession:
    """An object that is put range by range. The end of a ``with`` block finishes it, an exception in it gives it up."""

    def __init__(self, opened: Opened, session: _native.PutSession) -> None:
        # As in a session that reads.
        self._opened, self._client, self._session = opened, opened.client, session
        self._open = True

    @property
    def size(self) -> int:
        """Bytes of the object."""
        return self._session.size

    def write(self, offset: int, value: Source) -> int:
        """Writes a range."""
        return _run(_calls.write(self._client, self._session, [(offset, value)]))

    def write_from(self, ranges: Iterable[tuple[int, Source]]) -> int:
        """Writes ranges, each given by its offset and the memory with its bytes; returns their bytes."""
        return _run(_calls.write(self._client, self._session, ranges))

    def finish(self) -> Put:
        """Makes the object visible. The ranges have to cover it. A call that fails can be repeated."""
        result = Put(_calls.only(self._client.finish([self._session])))
        self._open = False
        return result

    def abort(self) -> None:
        """Gives the put up, and frees its space."""
        self._open = False
        self._client.abort([self._session])

    def __enter__(self) -> WriteSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._open:
            if kind is None:
                self.finish()
            else:
                self.abort()


class Registration:
    """Registered memory, until it is closed or the client ends. The client keeps the memory until then, also if this object goes away.

    Close it if the memory's object refers to the client, directly or not: the garbage collector can't see that the client keeps the
    memory, because devices may still write to what the collector would free.
    """

    def __init__(self, opened: Opened, raw: _memory.Raw) -> None:
        opened.client.register(raw.address, raw.length)
        opened.registered[raw.address] = raw
        self._opened, self._address, self._length = opened, raw.address, raw.length
        self._is_open = True

    @property
    def address(self) -> int:
        """Address of the first byte."""
        return self._address

    def __len__(self) -> int:
        return self._length

    def close(self) -> None:
        """Ends the registration. One that fails, because a call uses the memory, can be repeated."""
        if self._is_open:
            self._opened.client.unregister(self._address)
            self._is_open = False
            del self._opened.registered[self._address]

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _run(call: Call[T]) -> T:
    # `call` holds the caller's memory until the result is there.
    return call.convert(call.method(*call.arguments))
