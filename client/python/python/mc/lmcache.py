"""LMCache's storage in the pool: :class:`Connector` is for the adapter ``native_plugin`` of LMCache's multiprocess mode.

A submit starts a call in the extension module and returns its number. There is no thread of Python: the call runs on the threads for the
bytes, its end makes the descriptor readable, and whoever drains it converts the results. So a submit never waits for the pool, and calls
that wait for a leader hold no others up.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, Unpack

from mc import _memory, _native
from mc._errors import McError
from mc._open import ClientOptions, Opened
from mc._types import Key, Put, Source, Target
from mc._types import options as put_options

__all__ = ["Completion", "Connector"]

CLOSE = 5.0
"""Seconds within which calls that :meth:`Connector.close` cancels have to end."""

Completion: TypeAlias = tuple[int, bool, str, list[bool]]
"""Number of an operation, whether it succeeded, why not, and the answer for each key."""


class _Outcome(NamedTuple):
    """What an operation answers for one key, and why it failed."""

    flag: bool
    reason: str | None = None


class _Call:
    """An operation that was started, with the memory that it reads or writes."""

    def __init__(self, number: int, what: str, keys: int, is_partial: bool, outcome: Callable[[int, Any], _Outcome], keep: object) -> None:
        self.number, self.what, self.keys, self.outcome, self.keep = number, what, keys, outcome, keep
        self.is_partial = is_partial
        """Whether the operation succeeds if some of its keys have an answer."""

    def failed(self, reason: str) -> Completion:
        return self.number, False, f"{self.what}: {reason}", [False] * self.keys

    def ended(self, results: Sequence[Any]) -> Completion:
        outcomes = [self.outcome(at, result) for at, result in enumerate(results)]
        flags, reasons = [outcome.flag for outcome in outcomes], [outcome.reason for outcome in outcomes if outcome.reason is not None]
        if not reasons:
            return self.number, True, "", flags
        error = f"{self.what}: {len(reasons)} of {self.keys} keys failed, the first one: {reasons[0]}"
        return self.number, self.is_partial and len(reasons) < self.keys, error, flags


class Connector:
    """Batches of objects that are put, read, looked up and deleted without waiting for them.

    Submits return a number. :meth:`drain_completions` answers it once, with a bool for each key in the order of the keys; the descriptor of
    :meth:`event_fd` is readable while there is something to drain. All of it may be called by several threads.

    - Memory stays exported from the submit until its completion was drained, or until :meth:`close` has returned.
    - Of ``max_pending`` operations that were not drained, the next one is not started: its completion says so at once.
    - Without a leader, sets and deletes fail, and lookups and gets find what the local cache has, by default nothing. That takes
      ``leader_timeout`` at first. No operation takes longer than its timeout: ``put_timeout``, ``get_timeout``, ``call_timeout``.
    - Arguments that no call can be made of raise, and nothing was started then.
    - A set keeps the object that a key has: keys of LMCache name contents.
    - A get succeeds for objects that are as long as their memory. After one that fails the memory may have other bytes.
    - A lookup leases the objects that it finds, so a get soon after it finds them, too. Objects with a lease are not deleted, but with
      ``force_delete``.

    ``masters`` and further keyword arguments are those of :class:`mc.Client`. With ``segment`` the process lends memory to the pool.
    """

    def __init__(
        self,
        masters: str | Sequence[str] = "127.0.0.1:50051",
        *,
        replicas: int = 1,
        put_timeout: float = 10.0,
        max_pending: int = 1024,
        force_delete: bool = False,
        **options: Unpack[ClientOptions],
    ) -> None:
        if max_pending < 1:
            raise ValueError(f"max_pending is {max_pending}: at least one operation has to be possible")
        self._put_options = put_options({"replicas": replicas, "timeout": put_timeout})
        self._max_pending, self._force_delete = max_pending, force_delete
        # LMCache has objects in memory itself, so a cache would hold them twice.
        self._opened = Opened(masters, {"local_cache": 0, **options})
        # Before the calls: when this object goes away, the queue waits until nothing touches their memory.
        self._queue = _native.Queue()
        self._started: set[_Call] = set()
        self._pending: dict[int, _Call] = {}
        self._done: list[Completion] = []
        self._numbers = itertools.count(1)
        # A call may have ended before the submit knows its number: whoever drains waits for the submit.
        self._lock, self._closing = threading.Lock(), threading.Lock()
        self._is_closed, self._is_stuck, self._process = False, False, os.getpid()

    def __del__(self) -> None:
        # In a cycle of references the collector might release the memory of calls before the queue has waited for them.
        self.__dict__.pop("_queue", None)

    def event_fd(self) -> int:
        """Returns the descriptor that is readable while there are completions. It lives as long as this object."""
        return self._queue.fileno()

    def submit_batch_set(self, keys: Sequence[Key], memoryviews: Sequence[Source]) -> int:
        """Puts objects."""
        raws = [_memory.raw(view) for view in memoryviews]
        call = _Call(next(self._numbers), "set", len(keys), False, _was_put, raws)
        client = self._opened.client
        return self._start(call, client.put_from, keys, [raw.address for raw in raws], [raw.length for raw in raws], self._put_options)

    def submit_batch_get(self, keys: Sequence[Key], memoryviews: Sequence[Target]) -> int:
        """Reads objects into memory."""
        raws = [_memory.raw(view, writable=True) for view in memoryviews]
        call = _Call(next(self._numbers), "get", len(keys), False, lambda at, read: _was_read(raws[at].length, read), raws)
        return self._start(call, self._opened.client.get_into, keys, [raw.address for raw in raws], [raw.length for raw in raws])

    def submit_batch_exists(self, keys: Sequence[Key]) -> int:
        """Looks objects up. It succeeds if the pool answers for any of the keys; the others are misses."""
        return self._start(_Call(next(self._numbers), "lookup", len(keys), True, _is_so, None), self._opened.client.exist, keys)

    def submit_batch_delete(self, keys: Sequence[Key]) -> int:
        """Removes objects; the answer for a key is whether there was one."""
        call = _Call(next(self._numbers), "delete", len(keys), False, _is_so, None)
        return self._start(call, self._opened.client.remove, keys, self._force_delete)

    def drain_completions(self) -> list[Completion]:
        """Returns the operations that have ended since the last call."""
        self._check_process()
        self._collect()
        with self._lock:
            done, self._done = self._done, []
        return done

    def close(self) -> None:
        """Cancels what is under way and disconnects, within seconds. Operations that were not drained can be drained afterwards.

        A set that was cancelled may have taken effect. In a process that was forked, nothing happens.
        """
        if self._process != os.getpid():
            return
        with self._closing:
            with self._lock:
                self._is_closed, pending = True, list(self._pending)
            for number in pending:
                # One that was drained meanwhile is unknown.
                with contextlib.suppress(ValueError):
                    self._queue.cancel(number)
            self._wait_for_end()
            self._opened.close()

    def _start(self, call: _Call, method: Callable[..., int], *arguments: Any) -> int:
        self._check_process()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the connector is closed")
            if len(self._pending) + len(self._done) >= self._max_pending:
                self._done.append(call.failed(f"{self._max_pending} operations are pending (max_pending)"))
                os.eventfd_write(self._queue.fileno(), 1)
                return call.number
            # An exception out of a signal's handler leaves the memory where it is.
            self._started.add(call)
            try:
                number = method(*arguments, queue=self._queue)
            except Exception:
                self._started.discard(call)
                raise
            self._pending[number] = call
        return call.number

    def _collect(self) -> None:
        """Takes the results of calls that have ended."""
        released = []
        with self._lock:
            for number, has_ended, results, error in self._queue.drain():
                call = self._pending.pop(number, None)
                if call is None:
                    continue
                self._started.discard(call)
                released.append(call)
                if error is not None:
                    self._done.append(call.failed(str(error)))
                elif has_ended:
                    self._done.append(call.ended(results))
                elif self._is_closed:
                    self._done.append(call.failed("the connector was closed"))
                else:
                    self._done.append(call.failed("the call panicked: see the log, and report it"))
        # Not under the lock: the end of an export may run code of the caller, which may submit.
        released.clear()

    def _wait_for_end(self) -> None:
        """Waits until nothing touches the memory of calls that were cancelled."""
        ended = select.poll()
        ended.register(self._queue.fileno(), select.POLLIN)
        deadline = time.monotonic() + CLOSE
        while len(self._queue) and time.monotonic() < deadline:
            # Another thread may have drained what the descriptor told of.
            ended.poll(20)
            self._collect()
        if self._done:
            os.eventfd_write(self._queue.fileno(), 1)
        if (running := len(self._queue)) and not self._is_stuck:
            # Devices may still write to its memory. A reference that nobody has keeps it, also when the interpreter ends, which would wait.
            self._is_stuck = True
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
            log = logging.getLogger("mc.lmcache")
            log.error("%d calls did not end within %g s of their cancellation: don't free their memory", running, CLOSE)

    def _check_process(self) -> None:
        # Before the locks, which another thread may have held when this process was forked.
        if self._process != os.getpid():
            raise RuntimeError("the connector belongs to the process that this one was forked from: make one in each process")


def _was_put(_at: int, result: int | McError) -> _Outcome:
    if isinstance(result, McError):
        return _Outcome(False, str(result))
    if result == Put.LOCAL.value:
        return _Outcome(False, "no leader is in reach")
    return _Outcome(True)


def _was_read(length: int, result: int | None | McError) -> _Outcome:
    if isinstance(result, McError):
        return _Outcome(False, str(result))
    if result is None:
        return _Outcome(False, "there is no such object")
    if result != length:
        return _Outcome(False, f"the object has {result} bytes, its memory {length}")
    return _Outcome(True)


def _is_so(_at: int, result: bool | McError) -> _Outcome:
    return _Outcome(False, str(result)) if isinstance(result, McError) else _Outcome(result)
