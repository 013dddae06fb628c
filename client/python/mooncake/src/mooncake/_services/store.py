"""The store of a service from its start to its end, and what it says about its health."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Mapping
from typing import Any

from ..store import MooncakeDistributedStore
from ..store.codes import INVALID_PARAMS, OK
from .http import Limits, Request, Response, Server, as_json, text

_log = logging.getLogger(__name__)

_SIGNALS = {signal.SIGINT, signal.SIGTERM}
_RETRY_SECONDS = 1.0
_POLL_SECONDS = 0.1
# Time for an attempt to end after a signal. The kernel may take minutes to provide the memory of a store.
_CANCEL_SECONDS = 1.0
_PLAIN = "text/plain"
_HEALTH = {0: "healthy", 1: "not_initialized", 2: "master_unreachable"}


class StartFailed(Exception):
    """The service can't start. The text says why, and the log has the details."""


def block_signals() -> None:
    """Leaves SIGINT and SIGTERM to `wait_for_end`. Call it before the first thread is started: threads inherit this."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def wait_for_end() -> None:
    """Waits for SIGINT or SIGTERM."""
    number = signal.sigwait(_SIGNALS)
    _log.info("Received %s, shutting down", signal.Signals(number).name)


def open_store(config: Mapping[str, Any], seconds: float) -> MooncakeDistributedStore | None:
    """Opens a store, with attempts for so long: the masters may start later than this process.

    None if a signal asked for the end meanwhile: the process is to end then. Nothing is left mounted, or at worst a store without objects
    whose attempt ended just then. A second signal ends the process at once. StartFailed for arguments that can't work, or once the time
    is over.
    """
    opening = _Opening(config, seconds)
    opening.start()
    while opening.is_alive():
        if signal.sigtimedwait(_SIGNALS, _POLL_SECONDS) is not None:
            _cancel(opening)
            return None
    if opening.store is None:
        raise StartFailed(opening.reason)
    return opening.store


def _cancel(opening: _Opening) -> None:
    _log.info("Store startup cancelled by shutdown request")
    opening.stopping.set()
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    opening.join(_CANCEL_SECONDS)
    if opening.is_alive():
        _log.info("The attempt under way is given up")
    elif opening.store is not None:
        opening.store.close()


class _Opening(threading.Thread):
    """Attempts to open a store."""

    def __init__(self, config: Mapping[str, Any], seconds: float) -> None:
        super().__init__(daemon=True, name="mooncake-setup")
        self.config, self.seconds = config, seconds
        self.stopping = threading.Event()
        self.store: MooncakeDistributedStore | None = None
        self.reason = "the store could not be opened: see the log"

    def run(self) -> None:
        deadline, attempts = time.monotonic() + self.seconds, 0
        while not self.stopping.is_set():
            attempts += 1
            _log.info("Attempting to start store service (attempt %d)", attempts)
            store = MooncakeDistributedStore()
            code = store.setup(self.config)
            if code == OK:
                self.store = store
                return
            if code == INVALID_PARAMS:
                self.reason = "the store can't be opened with these settings: see the line above"
                return
            left = deadline - time.monotonic()
            if left <= 0:
                self.reason = f"the store could not be opened within {self.seconds:g} s, in {attempts} attempts: see the lines above"
                return
            _log.warning("Store startup failed: trying again for %.0f s", left)
            self.stopping.wait(min(_RETRY_SECONDS, left))


def start_health_server(store: MooncakeDistributedStore, port: int) -> Server | None:
    """Serves /health, /metrics and /metrics/summary on all addresses. As upstream, the service goes on without if the port is taken."""

    def answer(request: Request) -> Response:
        if request.path not in ("/health", "/metrics", "/metrics/summary"):
            return text(404, "404: Not Found", _PLAIN)
        if request.method not in ("GET", "HEAD"):
            return text(405, "405: Method Not Allowed", _PLAIN)
        if request.path == "/health":
            code = store.health_check()
            return as_json(200 if code == OK else 503, {"status": _HEALTH.get(code, "unknown"), "code": code})
        stats = store.stats()
        if request.path == "/metrics":
            lines = "".join(f"mc_client_{name} {value}\n" for name, value in stats.items())
            return text(200, lines, "text/plain; version=0.0.4")
        return text(200, " | ".join(f"{name}: {value}" for name, value in stats.items()) + "\n", _PLAIN)

    try:
        server = Server("0.0.0.0", port, Limits(body=0, bodies=0))
        server.start(answer)
    except OSError as error:
        _log.warning("no health and metrics on port %d: %s; choose another port", port, error)
        return None
    _log.info("Client HTTP server started on port %d", port)
    return server
