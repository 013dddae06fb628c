"""Clients and embedded stores from the start to the end of the process."""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.util
import os
import weakref
from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from mc import _log, _memory, _native
from mc._types import size_of

UNMOUNT = 2.0
"""Seconds within which an embedded store is unmounted when its client is closed."""


class ClientOptions(TypedDict, total=False):
    """Keyword arguments of clients."""

    tenant: str
    """Tenant of all keys. Default: the default tenant."""
    local_cache: int | str
    """Memory for objects that were recently read or written. Default: 256mb; 0 switches the cache off."""
    segment: int | str | Sequence[int | str]
    """Memory of this process to lend to the pool, at least 1mb: an embedded store. Several values make several segments. Default: none."""
    store_name: str
    """Name of the embedded store. ``{port}`` stands for its port. Default: the host name and the port."""
    advertise: str
    """Host under which others reach the embedded store. Default: the local address that routes to the masters."""
    listen: str
    """ip:port at which the embedded store listens. Default: a free port on every address."""
    transports: Literal["auto", "tcp", "shm", "rdma"]
    """Transports for the bytes. Default: auto, the best one that both ends have."""
    rdma_devices: str
    """Names of RDMA devices, with commas. Default: all."""
    shared_memory: Literal["off", "same-uid", "any"]
    """Stores of this host to share memory with, by the users of their processes. Default: same-uid."""
    connect_timeout: float
    """Seconds for connecting to a master. Default: 0.3."""
    leader_timeout: float
    """Seconds without a leader after which the client answers from its cache alone. Default: 1."""
    call_timeout: float
    """Seconds for a call to the masters. Default: 5."""
    get_timeout: float
    """Seconds for a get with its transfer. Default: 10."""
    require_leader: bool
    """Fail to connect without a leader. Default: start with the local cache alone, and go on looking."""
    publish_local: bool
    """Put objects that were kept locally into the pool once a leader is back. Default: no."""
    checksum: bool
    """Compare every value with the checksum of its writer. Default: yes."""


class Opened:
    """A client with its embedded store."""

    def __init__(self, masters: str | Sequence[str], given: ClientOptions) -> None:
        if unknown := given.keys() - ClientOptions.__annotations__.keys():
            raise TypeError(f"unknown keyword arguments: {', '.join(sorted(unknown))}")
        _log.start()
        masters = masters if isinstance(masters, str) else ",".join(masters)
        ours = {"segment", "store_name", "advertise", "listen"}
        of_client: dict[str, Any] = {name: value for name, value in given.items() if name not in ours}
        of_client["local_cache"] = size_of(given.get("local_cache", 256 << 20))
        self.store = _store(masters, given)
        try:
            self.client = _native.Client(masters, store=self.store, **of_client)
        except BaseException:
            if self.store is not None:
                self.store.stop(0.0)
            raise
        if self.store is not None and self.client.mode == "connected":
            self.store.wait_mounted(given.get("call_timeout", 5.0))
        self.registered: dict[int, _memory.Raw] = {}
        """Memory that is registered, by its address. A client that ends unregisters it before this frees it."""
        self._process = os.getpid()
        _close_at_exit()
        _all.add(self)

    def close(self) -> None:
        """Unmounts the store, and fails all calls of the client."""
        if self._process == os.getpid():
            if self.store is not None:
                self.store.stop(UNMOUNT)
            self.client.close()


def _store(masters: str, given: ClientOptions) -> _native.Store | None:
    segment = given.get("segment")
    if segment is None:
        if given.keys() & {"store_name", "advertise", "listen"}:
            raise ValueError("store_name, advertise and listen are for an embedded store: give segment, too")
        return None
    if isinstance(segment, bytes):
        raise TypeError("segment is a number, a text such as 4gb, or a list of them")
    sizes = [segment] if isinstance(segment, int | str) else list(segment)
    return _native.Store(
        masters,
        [size_of(size) for size in sizes],
        name=given.get("store_name"),
        advertise=given.get("advertise"),
        listen=given.get("listen", "0.0.0.0:0"),
        transports=given.get("transports", "auto"),
        rdma_devices=given.get("rdma_devices", ""),
        shared_memory=given.get("shared_memory", "same-uid"),
    )


_all: weakref.WeakSet[Opened] = weakref.WeakSet()
_process: int | None = None


def _close_at_exit() -> None:
    """Arranges the end of this process, once."""
    global _process
    if _process == os.getpid():
        return
    _process = os.getpid()
    _all.clear()
    if multiprocessing.parent_process() is None:
        atexit.register(_close_all)
    else:
        # A child of multiprocessing does not run the functions of atexit in every version and way of starting.
        multiprocessing.util.Finalize(None, _close_all, exitpriority=0)


def _close_all() -> None:
    here = [opened for opened in _all if opened._process == os.getpid()]
    _native.stop_stores([opened.store for opened in here if opened.store is not None], UNMOUNT)
    for opened in here:
        opened.client.close()
