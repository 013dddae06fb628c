"""An open connection to the pool, and its end."""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import multiprocessing.util
import os
import threading
import time
import weakref
from dataclasses import dataclass, field, replace
from pathlib import Path

from mc import McError, _native
from mc import _log as _native_log

from .._addresses import NoRoute, data_ports, is_free, is_local, join_host_port, route_to
from .codes import INVALID_PARAMS
from .settings import Settings

_log = logging.getLogger(__name__)

SETUP_SECONDS = 10.0
_STOP_SECONDS = 2.0
# Left of the deadline of `setup` for taking back what a failed attempt started.
_CLEANUP_SECONDS = 0.5
_ATTEMPT_SECONDS = 1.0

_RDMA_DEVICES = Path("/sys/class/infiniband")
_rdma_warned = False


class SetupFailed(Exception):
    """The connection could not be opened. The text says what was tried."""

    def __init__(self, message: str, *, invalid: bool = False) -> None:
        super().__init__(message)
        self.invalid = invalid
        """Whether the arguments are at fault, and not the pool."""


@dataclass(eq=False)
class Link:
    """A client, the store embedded in this process if there is one, and what the calls of one store object share."""

    settings: Settings
    client: _native.Client
    store: _native.Store | None
    process: int = field(default_factory=os.getpid)
    guard: threading.Lock = field(default_factory=threading.Lock)
    """Protects the fields below. Never held during a call of the native module."""
    mounting: threading.Lock = field(default_factory=threading.Lock)
    """Held while the embedded store is started for its first segment: there is one store, whoever asks."""
    registered: dict[int, int] = field(default_factory=dict)
    """Registered buffers: length by address."""
    pool: dict[int, _native.Memory] = field(default_factory=dict)
    """Memory handed out by `alloc_from_mem_pool`."""
    get_sessions: dict[str, tuple[_native.GetSession, int]] = field(default_factory=dict)
    """Open get sessions, with how many times each was started and not ended."""
    put_sessions: dict[str, _native.PutSession] = field(default_factory=dict)

    @property
    def may_put(self) -> bool:
        """Whether `put` of a value is accepted: a process without a local buffer serves memory only."""
        return self.settings.local_buffer > 0

    @property
    def name(self) -> str:
        """`host:port` under which the pool knows the embedded store, or this host's name and the port in the arguments, else 0."""
        store = self.store
        if store is not None:
            return store.name
        return join_host_port(self.settings.host, self.settings.port or 0)

    def mount(self, size: int) -> int:
        """Adds a segment to the pool and returns its number, with the embedded store that the first one needs."""
        with self.mounting:
            if self.store is not None:
                return self.store.mount(size, SETUP_SECONDS)
            started = _start_store(self.settings, [size])
            if not started.wait_mounted(SETUP_SECONDS):
                started.stop(_STOP_SECONDS)
                raise SetupFailed(f"the masters {self.settings.masters} did not take the segment in {SETUP_SECONDS:g} s")
            self.store = started
            return started.segments()[0][0]

    def unmount(self, number: int) -> None:
        """Takes a segment out of the pool. The embedded store ends with its last one."""
        with self.mounting:
            if self.store is None:
                raise SetupFailed("this process has no segments", invalid=True)
            if [number] == [mounted for mounted, _ in self.store.segments()]:
                self.store.stop(_STOP_SECONDS)
                self.store = None
            else:
                self.store.unmount(number)

    def close(self, seconds: float = _STOP_SECONDS) -> None:
        """Unmounts the embedded store and closes the client.

        In a forked child it does neither: both belong to the parent.
        """
        _open.discard(self)
        if self.process != os.getpid():
            return
        deadline = time.monotonic() + seconds
        self.client.close()
        if self.store is not None:
            self.store.stop(max(deadline - time.monotonic(), 0.05))


_open: weakref.WeakSet[Link] = weakref.WeakSet()
_closes_at_exit = False


def open_link(settings: Settings) -> Link:
    """Finds a leader, starts the embedded store and waits until its segment is mounted.

    Both waits end within ten seconds together. Not counted is the time in which the kernel provides the segment's memory: seconds for
    tens of gigabytes. SetupFailed says what was tried. Nothing is left running then.
    """
    _native_log.start()
    deadline, store, client = time.monotonic() + SETUP_SECONDS - _CLEANUP_SECONDS, None, None
    if settings.segment:
        # A store touches all of its memory when it starts, so a leader is looked for first.
        _connect(replace(settings, cache=0), None, deadline).close()
        begun = time.monotonic()
        store = _start_store(settings, [settings.segment])
        deadline += time.monotonic() - begun
    try:
        client = _connect(settings, store, deadline)
        if store is not None and not store.wait_mounted(max(deadline - time.monotonic(), 0.0)):
            raise SetupFailed(
                f"the masters {settings.masters} answer, but did not mount the segment of {settings.segment} bytes of"
                f" {store.name} within {SETUP_SECONDS:g} s"
            )
    except BaseException:
        if client is not None:
            client.close()
        if store is not None:
            store.stop(_CLEANUP_SECONDS)
        raise
    _warn_without_rdma(settings, client)
    link = Link(settings, client, store)
    _close_at_exit()
    _open.add(link)
    return link


def _connect(settings: Settings, store: _native.Store | None, deadline: float) -> _native.Client:
    tried = ""
    # A leader may be elected any moment: attempts are short, and go on until the deadline.
    while time.monotonic() + _ATTEMPT_SECONDS <= deadline:
        try:
            return _native.Client(
                settings.masters,
                tenant=settings.tenant,
                local_cache=settings.cache,
                transports=settings.transports,
                rdma_devices=_rdma_devices(settings),
                leader_timeout=_ATTEMPT_SECONDS,
                require_leader=True,
                store=store,
                codes=True,
            )
        except McError as error:
            if error.code == INVALID_PARAMS:
                raise SetupFailed(str(error), invalid=True) from None
            if error.name != "NO_LEADER":
                # The masters answer, and refuse this client.
                raise SetupFailed(str(error)) from None
            tried = f": {error}"
    raise SetupFailed(
        f"no leader found within {SETUP_SECONDS:g} s at {settings.masters}{tried}. Check that the masters run; MC_MASTERS, if"
        " set, takes the place of the address in the arguments"
    )


def _start_store(settings: Settings, segments: list[int]) -> _native.Store:
    host, listen = _data_host(settings)
    last = None
    for port in data_ports():
        if not is_free(listen, port):
            continue
        name = join_host_port(host, port)
        try:
            return _native.Store(
                settings.masters,
                segments,
                name=name,
                advertise="127.0.0.1" if is_local(host) else host,
                listen=join_host_port(listen, port),
                transports=settings.transports,
                rdma_devices=_rdma_devices(settings),
            )
        except McError as error:
            # Another process was faster, or the store can't be started at any port.
            if is_free(listen, port):
                raise SetupFailed(f"cannot start a store with segments of {segments} bytes: {error}", invalid=True) from None
            last = error
    raise SetupFailed(
        "the store found no free port between MC_STORE_CLIENT_MIN_PORT (12300) and MC_STORE_CLIENT_MAX_PORT (14300)"
        f"{'' if last is None else f': {last}'}",
        invalid=True,
    )


def _data_host(settings: Settings) -> tuple[str, str]:
    """Name of this host for the embedded store, and the address that it listens on."""
    if not is_local(settings.host):
        return settings.host, "::" if ":" in settings.host else "0.0.0.0"
    # Ranks are often all called "localhost", which tells other hosts nothing.
    try:
        routed = route_to(settings.masters)
    except NoRoute as error:
        raise SetupFailed(str(error)) from None
    if routed is None:
        return settings.host or "localhost", "127.0.0.1"
    return routed, "::" if ":" in routed else "0.0.0.0"


def _warn_without_rdma(settings: Settings, client: _native.Client) -> None:
    global _rdma_warned
    if not settings.rdma or _rdma_warned:
        return
    devices, reason = client.rdma()
    if not devices:
        _rdma_warned = True
        _log.warning("protocol 'rdma' was asked for: using shared memory and TCP, because %s", reason)


def _rdma_devices(settings: Settings) -> str:
    # Engines name devices that some of their hosts don't have. Without any device the names would be an error.
    return settings.rdma_devices if _has_rdma() else ""


def _has_rdma() -> bool:
    return any(_RDMA_DEVICES.glob("*"))


def _close_at_exit() -> None:
    """Arranges the end of this process, once."""
    global _closes_at_exit
    if _closes_at_exit:
        return
    _closes_at_exit = True
    if multiprocessing.parent_process() is None:
        atexit.register(_close_all)
    else:
        # A child of multiprocessing does not run the functions of atexit in every version and way of starting.
        multiprocessing.util.Finalize(None, _close_all, exitpriority=0)


def _close_all() -> None:
    """Unmounts at the exit of the interpreter what is still held by something, a daemon thread for instance."""
    links = [link for link in _open if link.process == os.getpid()]
    _native.stop_stores([link.store for link in links if link.store is not None], _STOP_SECONDS)
    for link in links:
        link.close()


def _forget_all() -> None:
    """Leaves a forked child without open connections: they are the parent's."""
    global _closes_at_exit
    _closes_at_exit = False
    for link in list(_open):
        # A thread that the child does not have may hold them, and calls are to raise, not to wait for it.
        link.guard, link.mounting = threading.Lock(), threading.Lock()
    _open.clear()


os.register_at_fork(after_in_child=_forget_all)
