"""The client for asyncio.

A call is started in the extension module and gives a number. Its result comes through a queue whose descriptor the event loop watches.
A cancelled task waits until nothing of its call can touch memory any more, so buffers may be used again after it.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar, Unpack

from mc import _calls, _memory, _native
from mc._calls import Call, many, maybe, one, same, stored
from mc._client import Registration
from mc._errors import McError
from mc._native import Memory
from mc._open import ClientOptions, Opened
from mc._types import Description, Key, Listed, Put, PutOptions, Removed, Source, Target
from mc._types import options as put_options

T = TypeVar("T")


class _Loop:
    """Results on their way to the futures of one event loop."""

    def __init__(self) -> None:
        self._loop, self._process = asyncio.get_running_loop(), os.getpid()
        # Before the calls: when this object goes away, the queue waits until nothing touches their memory.
        self._queue = _native.Queue()
        self._waiting: dict[int, tuple[asyncio.Future[Any], Call[Any]]] = {}
        self._started: set[Call[Any]] = set()
        self._loop.add_reader(self._queue.fileno(), self._drain)

    async def run(self, call: Call[T]) -> T:
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("the client belongs to another event loop: connect one in each")
        # The frame of this coroutine may go away before the call has ended. What holds its memory must not.
        self._started.add(call)
        try:
            number: int = call.method(*call.arguments, queue=self._queue)
        except BaseException:
            self._started.discard(call)
            raise
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[number] = (future, call)
        try:
            return call.convert(await asyncio.shield(future))
        except asyncio.CancelledError:
            if not future.done():
                self._queue.cancel(number)
            while not future.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
            # Nobody else asks for it.
            future.exception()
            raise

    def _drain(self) -> None:
        for number, has_ended, result, error in self._queue.drain():
            future, call = self._waiting.pop(number)
            self._started.discard(call)
            if error is not None:
                future.set_exception(error)
            elif has_ended:
                future.set_result(result)
            else:
                future.set_exception(RuntimeError("the call was cancelled: its client was closed"))

    async def close(self) -> None:
        """Cancels the calls that are under way, and waits for them."""
        futures = []
        for number, (future, _) in self._waiting.items():
            self._queue.cancel(number)
            futures.append(future)
        if futures:
            await asyncio.wait(futures)
        self._loop.remove_reader(self._queue.fileno())

    @property
    def is_of_this_process(self) -> bool:
        return self._process == os.getpid()


class AsyncClient:
    """:class:`mc.Client` for asyncio, and for loops like it: ``async with AsyncClient(masters) as client``."""

    def __init__(self, masters: str | Sequence[str] = "127.0.0.1:50051", **options: Unpack[ClientOptions]) -> None:
        self._open: Callable[[], Opened] = lambda: Opened(masters, options)
        self._opened: Opened | None = None
        self._loop: _Loop | None = None

    async def connect(self) -> AsyncClient:
        """Connects. The client belongs to the running event loop then."""
        if self._opened is not None:
            raise RuntimeError("the client is connected already")
        self._opened = await asyncio.to_thread(self._open)
        self._loop = _Loop()
        return self

    async def close(self) -> None:
        """Unmounts the embedded store, and ends the client."""
        loop, self._loop = self._loop, None
        if loop is None or self._opened is None or not loop.is_of_this_process:
            return
        try:
            await loop.close()
        finally:
            await asyncio.to_thread(self._opened.close)

    async def __aenter__(self) -> AsyncClient:
        return await self.connect()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    @property
    def _native(self) -> _native.Client:
        if self._opened is None:
            raise RuntimeError("the client is not connected: use `async with`, or await connect()")
        return self._opened.client

    async def _run(self, call: Call[T]) -> T:
        if self._loop is None:
            raise RuntimeError("the client is closed")
        return await self._loop.run(call)

    async def put(self, key: Key, value: Source, **options: Unpack[PutOptions]) -> Put:
        """:meth:`mc.Client.put`"""
        return await self._run(_calls.put(self._native, [(key, value)], options, one(stored)))

    async def put_parts(self, key: Key, parts: Sequence[Source], **options: Unpack[PutOptions]) -> Put:
        """:meth:`mc.Client.put_parts`"""
        return await self._run(_calls.put_parts(self._native, key, parts, options))

    async def get(self, key: Key) -> bytes | None:
        """:meth:`mc.Client.get`"""
        return await self._run(Call(self._native.get, ([key],), one(same)))

    async def get_memory(self, key: Key) -> Memory | None:
        """:meth:`mc.Client.get_memory`"""
        return await self._run(Call(self._native.get_owned, ([key],), one(same)))

    async def get_into(self, key: Key, target: Target) -> int | None:
        """:meth:`mc.Client.get_into`"""
        return await self._run(_calls.get_into(self._native, [(key, target)], one(maybe)))

    async def get_range(self, key: Key, offset: int, length: int) -> bytes | None:
        """:meth:`mc.Client.get_range`"""
        return await self._run(_calls.get_range(self._native, key, offset, length))

    async def get_ranges_into(self, key: Key, ranges: Iterable[tuple[int, Target]]) -> int | None:
        """:meth:`mc.Client.get_ranges_into`"""
        return await self._run(_calls.get_ranges_into(self._native, key, ranges))

    async def exists(self, key: Key) -> bool:
        """:meth:`mc.Client.exists`"""
        return await self._run(_calls.exists(self._native, [key], one(bool)))

    async def size(self, key: Key) -> int | None:
        """:meth:`mc.Client.size`"""
        return await self._run(_calls.size(self._native, [key], one(maybe)))

    async def remove(self, key: Key, *, force: bool = False) -> bool:
        """:meth:`mc.Client.remove`"""
        return await self._run(_calls.remove(self._native, [key], force, one(bool)))

    async def describe(self, key: Key) -> Description | None:
        """:meth:`mc.Client.describe`"""
        return await self._run(_calls.describe(self._native, key))

    async def put_many(
        self, items: Mapping[Key, Source] | Iterable[tuple[Key, Source]], **options: Unpack[PutOptions]
    ) -> builtins.list[Put | McError]:
        """:meth:`mc.Client.put_many`"""
        pairs = items.items() if isinstance(items, Mapping) else items
        return await self._run(_calls.put(self._native, pairs, options, many(stored)))

    async def get_many(self, keys: Sequence[Key]) -> builtins.list[bytes | None | McError]:
        """:meth:`mc.Client.get_many`"""
        return await self._run(Call(self._native.get, (keys,), same))

    async def get_many_into(self, items: Mapping[Key, Target] | Iterable[tuple[Key, Target]]) -> builtins.list[int | None | McError]:
        """:meth:`mc.Client.get_many_into`"""
        pairs = items.items() if isinstance(items, Mapping) else items
        return await self._run(_calls.get_into(self._native, pairs, many(maybe)))

    async def exists_many(self, keys: Sequence[Key]) -> builtins.list[bool | McError]:
        """:meth:`mc.Client.exists_many`"""
        return await self._run(_calls.exists(self._native, keys, many(same)))

    async def size_many(self, keys: Sequence[Key]) -> builtins.list[int | None | McError]:
        """:meth:`mc.Client.size_many`"""
        return await self._run(_calls.size(self._native, keys, many(maybe)))

    async def remove_many(self, keys: Sequence[Key], *, force: bool = False) -> builtins.list[bool | McError]:
        """:meth:`mc.Client.remove_many`"""
        return await self._run(_calls.remove(self._native, keys, force, many(same)))

    async def remove_all(self, *, force: bool = False) -> Removed:
        """:meth:`mc.Client.remove_all`"""
        return await self._run(_calls.remove_all(self._native, force))

    async def remove_matching(self, pattern: str, *, force: bool = False) -> Removed:
        """:meth:`mc.Client.remove_matching`"""
        return await self._run(_calls.remove_matching(self._native, pattern, force))

    async def list(self, prefix: Key = b"") -> AsyncIterator[Listed]:
        """:meth:`mc.Client.list`"""
        position: object = None
        while True:
            page, position = await self._run(_calls.list_page(self._native, prefix, position))
            for listed in page:
                yield listed
            if position is None:
                return

    async def read_session(self, key: Key) -> AsyncReadSession | None:
        """:meth:`mc.Client.read_session`"""
        session = await self._run(Call(self._native.open_gets, ([key],), one(same)))
        return None if session is None else AsyncReadSession(self, session)

    async def read_sessions(self, keys: Sequence[Key]) -> builtins.list[AsyncReadSession | McError | None]:
        """:meth:`mc.Client.read_sessions`"""
        opened = await self._run(Call(self._native.open_gets, (keys,), same))
        return [AsyncReadSession(self, item) if isinstance(item, _native.GetSession) else item for item in opened]

    async def write_session(self, key: Key, size: int, **options: Unpack[PutOptions]) -> AsyncWriteSession | None:
        """:meth:`mc.Client.write_session`"""
        arguments = ([key], [size], put_options(options))
        session = await self._run(Call(self._native.open_puts, arguments, one(same)))
        return None if session is None else AsyncWriteSession(self, session)

    async def register(self, target: Target) -> Registration:
        """:meth:`mc.Client.register`. The result is an ordinary context manager."""
        if self._opened is None:
            raise RuntimeError("the client is not connected: use `async with`, or await connect()")
        return await asyncio.to_thread(Registration, self._opened, _memory.raw(target, writable=True))

    @property
    def mode(self) -> Literal["connected", "local-only"]:
        """:attr:`mc.Client.mode`"""
        return self._native.mode

    @property
    def last_error(self) -> str | None:
        """:attr:`mc.Client.last_error`"""
        return self._native.last_error

    def stats(self) -> dict[str, int]:
        """:meth:`mc.Client.stats`"""
        return self._native.stats()

    def transports(self) -> builtins.list[dict[str, Any]]:
        """:meth:`mc.Client.transports`"""
        return self._native.transports()


class AsyncReadSession:
    """:class:`mc.ReadSession` of an :class:`AsyncClient`."""

    def __init__(self, client: AsyncClient, session: _native.GetSession) -> None:
        self._client, self._session = client, session

    @property
    def size(self) -> int:
        """Bytes of the object."""
        return self._session.size

    @property
    def version(self) -> str:
        """Id of the put that wrote this version."""
        return self._session.version

    async def read(self, offset: int, length: int) -> bytes:
        """:meth:`mc.ReadSession.read`"""
        return await self._client._run(_calls.read(self._client._native, self._session, offset, length))

    async def read_into(self, ranges: Iterable[tuple[int, Target]]) -> int:
        """:meth:`mc.ReadSession.read_into`"""
        return await self._client._run(_calls.read_into(self._client._native, self._session, ranges))

    async def __aenter__(self) -> AsyncReadSession:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._session.close()


class AsyncWriteSession:
    """:class:`mc.WriteSession` of an :class:`AsyncClient`."""

    def __init__(self, client: AsyncClient, session: _native.PutSession) -> None:
        self._client, self._session = client, session
        self._open = True

    @property
    def size(self) -> int:
        """Bytes of the object."""
        return self._session.size

    async def write(self, offset: int, value: Source) -> int:
        """:meth:`mc.WriteSession.write`"""
        return await self.write_from([(offset, value)])

    async def write_from(self, ranges: Iterable[tuple[int, Source]]) -> int:
        """:meth:`mc.WriteSession.write_from`"""
        return await self._client._run(_calls.write(self._client._native, self._session, ranges))

    async def finish(self) -> Put:
        """:meth:`mc.WriteSession.finish`"""
        result = await self._client._run(Call(self._client._native.finish, ([self._session],), one(stored)))
        self._open = False
        return result

    async def abort(self) -> None:
        """:meth:`mc.WriteSession.abort`"""
        self._open = False
        await self._client._run(Call(self._client._native.abort, ([self._session],), same))

    async def __aenter__(self) -> AsyncWriteSession:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._open:
            await (self.finish() if kind is None else self.abort())
