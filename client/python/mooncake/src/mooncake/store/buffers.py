"""Memory of objects that were read, and a pool of buffers to read into."""

from __future__ import annotations

import os
import threading
import time
import weakref
from bisect import bisect_left, insort
from operator import index
from typing import TYPE_CHECKING, TypeAlias

from mc import McError, _native

from .codes import OK

if TYPE_CHECKING:
    from .distributed import MooncakeDistributedStore

BufferHandle: TypeAlias = _native.BufferHandle

_PAGE = 4096


class BufferLease:
    """A buffer of a pool, until it is released or dropped."""

    def __init__(self, pool: BufferPool, memory: _native.Memory, size: int) -> None:
        self._pool = pool
        self._memory: _native.Memory | None = memory
        self._size = size

    @property
    def ptr(self) -> int:
        """Address of the first byte."""
        return self._held().address

    @property
    def size(self) -> int:
        """Bytes that were asked for."""
        self._held()
        return self._size

    @property
    def buffer(self) -> memoryview:
        """The bytes, writable."""
        return memoryview(self._held())[: self._size]

    def release(self) -> None:
        """Gives the buffer back. RuntimeError while a view of `buffer` exists, or if it was released before."""
        memory = self._held()
        if memory.exports:
            raise RuntimeError("cannot release a buffer lease with exported views")
        self._memory = None
        self._pool._take_back(memory)

    def _held(self) -> _native.Memory:
        if self._memory is None:
            raise RuntimeError("buffer lease is closed")
        return self._memory

    def __enter__(self) -> BufferLease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        memory = getattr(self, "_memory", None)
        if memory is not None:
            self._pool._take_back(memory)


class BufferLeaseView:
    """Upstream's type of what `buffer` returns, which is a memoryview here."""

    def __init__(self) -> None:
        raise NotImplementedError("the buffer of a lease is a memoryview")


class BufferPool:
    """Registered buffers of one store, kept for the next use.

    They hold at most `max_bytes` together, or twice the store's `local_buffer_size`. `alignment` is checked; buffers
    begin at a page. In a forked child the pool is closed: the buffers are the parent's.
    """

    def __init__(
        self,
        store: MooncakeDistributedStore,
        max_bytes: int = 0,
        min_size_class: int = 64 << 10,
        max_size_class: int | None = None,
        alignment: int = 8 << 20,
        block_on_exhaustion: bool = True,
        default_timeout: float | None = None,
        max_regions: int | None = None,
        prewarm_size: int | None = None,
        prewarm_count: int = 0,
    ) -> None:
        max_bytes, min_size_class, alignment = map(index, (max_bytes, min_size_class, alignment))
        if min_size_class <= 0 or alignment <= 0:
            raise RuntimeError("min_size_class and alignment must be positive")
        if alignment < 8 or alignment & (alignment - 1):
            raise RuntimeError("alignment must be a power of two and at least 8")
        local_buffer = store._local_buffer()
        if local_buffer is None:
            raise RuntimeError("MooncakeDistributedStore is not initialized")
        if local_buffer == 0:
            raise RuntimeError("BufferPool requires a store configured with a local buffer")
        self._store = store
        self._max_bytes = max(max_bytes, local_buffer) if max_bytes else 2 * local_buffer
        self._min_class = min_size_class
        self._max_class = self._max_bytes if max_size_class is None else max_size_class
        self._max_regions = max_regions
        self._block = block_on_exhaustion
        self._timeout = default_timeout
        # Guards the fields below, and wakes those that wait for a buffer.
        self._changed = threading.Condition()
        self._idle: list[tuple[int, int, _native.Memory]] = []
        self._total = 0
        self._regions = 0
        self._leased = 0
        self._closed = False
        _pools.add(self)
        if prewarm_size is not None and prewarm_count:
            self.prewarm(prewarm_size, prewarm_count)

    def acquire(self, size: int, block: bool | None = None, timeout: float | None = None) -> BufferLease:
        """A buffer of `size` bytes. RuntimeError if there is none, at once or after the time limit."""
        size = index(size)
        if timeout is not None and timeout < 0:
            raise RuntimeError("timeout must be non-negative")
        length = self._length(size)
        seconds = self._timeout if timeout is None else timeout
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._changed:
            while True:
                if self._closed:
                    raise RuntimeError("buffer pool is closed")
                memory = self._find(length)
                if memory is not None:
                    self._leased += 1
                    return BufferLease(self, memory, size)
                if not (self._block if block is None else block):
                    raise RuntimeError("buffer pool is exhausted")
                if not self._leased:
                    # Nobody will give a buffer back.
                    raise RuntimeError("the buffer can't be allocated or registered: see the log")
                if not self._changed.wait(None if deadline is None else max(deadline - time.monotonic(), 0.0)):
                    raise RuntimeError("timed out waiting for buffer")

    def buffer(self, size: int, block: bool | None = None, timeout: float | None = None) -> BufferLease:
        """`acquire` for a `with` statement."""
        return self.acquire(size, block, timeout)

    def prewarm(self, size: int, count: int) -> None:
        """Makes `count` buffers of `size` bytes ready."""
        leases = [self.acquire(size, block=False) for _ in range(count)]
        for lease in leases:
            lease.release()

    def close(self) -> None:
        """Frees all buffers. RuntimeError while one is leased."""
        with self._changed:
            if self._leased:
                raise RuntimeError("cannot close buffer pool with active leases")
            self._closed = True
            self._changed.notify_all()
            self._free_idle()

    def __del__(self) -> None:
        if getattr(self, "_closed", True):
            return
        self._free_idle()

    def _length(self, size: int) -> int:
        """Bytes of the buffer for a request: classes double, so that one serves many sizes."""
        if size < 0 or size > self._max_bytes:
            raise RuntimeError("requested buffer size exceeds pool capacity")
        length = max(self._min_class, _PAGE)
        while length < size:
            length *= 2
        return max(size, _PAGE) if length > min(self._max_class, self._max_bytes) else length

    def _find(self, length: int) -> _native.Memory | None:
        """A free buffer of at least that length, or a new one if the limits allow it."""
        place = bisect_left(self._idle, (length,))
        if place < len(self._idle):
            return self._idle.pop(place)[2]
        while self._idle and not self._fits(length):
            self._free(self._idle.pop()[2])
        if not self._fits(length):
            return None
        try:
            memory = _native.allocate(length)
        except (MemoryError, McError):
            return None
        if self._store.register_buffer(memory.address, len(memory)) != OK:
            memory.release()
            return None
        self._total += len(memory)
        self._regions += 1
        return memory

    def _fits(self, length: int) -> bool:
        free_region = self._max_regions is None or self._regions < self._max_regions
        return free_region and self._total + length <= self._max_bytes

    def _take_back(self, memory: _native.Memory) -> None:
        with self._changed:
            self._leased -= 1
            if memory.exports:
                # A dropped lease whose view lives on: the memory goes with the view, and not to another caller.
                self._forget(memory)
            else:
                insort(self._idle, (len(memory), memory.address, memory))
            self._changed.notify()

    def _free_idle(self) -> None:
        while self._idle:
            self._free(self._idle.pop()[2])

    def _free(self, memory: _native.Memory) -> None:
        self._forget(memory)
        memory.release()

    def _forget(self, memory: _native.Memory) -> None:
        self._total -= len(memory)
        self._regions -= 1
        self._store.unregister_buffer(memory.address)

    def _leave_to_parent(self) -> None:
        # A thread that the child does not have may hold the lock.
        self._changed = threading.Condition()
        self._closed = True


_pools: weakref.WeakSet[BufferPool] = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    for pool in list(_pools):
        pool._leave_to_parent()
    _pools.clear()


os.register_at_fork(after_in_child=_leave_all_to_parent)

RegisteredBufferPool = BufferPool
RegisteredBufferLease = BufferLease
RegisteredBufferLeaseView = BufferLeaseView
