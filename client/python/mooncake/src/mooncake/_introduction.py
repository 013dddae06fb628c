"""How a dummy client learns what its real client knows: the masters, and the name of its memory.

A real client answers each connection with one line of JSON and closes it. It reads nothing, so that no connection holds it up, and a
probe that only connects sees that it is ready. A dummy client reads at most `_MOST_BYTES` within `_SECONDS`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
import time
from dataclasses import asdict, dataclass

from ._addresses import bind_alone, join_host_port, listen_alone, split_host_port

_log = logging.getLogger(__name__)

CLIENT_PORT = 50052
_SERVICE = "mooncake_client"
_VERSION = 1
_MOST_BYTES = 64 * 1024
_SECONDS = 3.0
# The line fits into the buffer of a socket, so sending it never waits for the other side.
_SEND_SECONDS = 1.0
_PAUSE_SECONDS = 0.1


class NoIntroduction(Exception):
    """The service at an address did not introduce itself. The text says why."""


@dataclass(frozen=True)
class Introduction:
    """What a real client says about itself."""

    masters: str
    """Addresses of its masters, with commas."""
    hostname: str
    """`host:port` of its memory, as `get_hostname` has it."""
    tenant_id: str
    protocol: str
    device_names: str

    def line(self) -> bytes:
        """The line that is sent."""
        return json.dumps({"service": _SERVICE, "version": _VERSION, **asdict(self)}).encode() + b"\n"


def ask(address: str) -> Introduction:
    """Asks the real client at `host[:port]`."""
    host, port = split_host_port(address)
    where = join_host_port(host, port or CLIENT_PORT)
    try:
        line = _read(host, port or CLIENT_PORT)
    # A name like `a..b` fails before it is looked up.
    except (OSError, UnicodeError) as error:
        raise NoIntroduction(f"no mooncake_client answers at {where}: {error}") from None
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or content.get("service") != _SERVICE:
        raise NoIntroduction(f"the service at {where} is no mooncake_client of this package: it sent {line[:60]!r}")
    fields = {name: content.get(name) for name in Introduction.__dataclass_fields__}
    for name, value in fields.items():
        if not isinstance(value, str):
            raise NoIntroduction(f"the mooncake_client at {where} (version {content.get('version')}) sent no text as {name!r}")
    return Introduction(**{name: str(value) for name, value in fields.items()})


def _read(host: str, port: int) -> bytes:
    deadline = time.monotonic() + _SECONDS
    content = b""
    with socket.create_connection((host, port), timeout=_SECONDS) as connection:
        while len(content) <= _MOST_BYTES:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
            piece = connection.recv(4096)
            if not piece:
                return content
            content += piece
    raise OSError(f"it sent more than {_MOST_BYTES} bytes")


class Reception:
    """The port of a real client at which it introduces itself. It is bound at once, and accepts connections once it is started."""

    def __init__(self, host: str, port: int) -> None:
        """Binds the port. OSError if it is taken, or if the host is not this one; UnicodeError if it can't be one."""
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            bind_alone(self._socket, address)
        except BaseException:
            self._socket.close()
            raise

    def start(self, introduction: Introduction) -> None:
        """Accepts connections, on a thread of its own. OSError if the port is taken after all."""
        listen_alone(self._socket, 128)
        threading.Thread(target=self._serve, args=(introduction.line(),), daemon=True, name="mooncake-client").start()

    def stop(self) -> None:
        """Accepts no more connections."""
        # A thread that waits in `accept` keeps a closed socket, and the shutdown wakes it.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self, line: bytes) -> None:
        while self._socket.fileno() >= 0:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if self._socket.fileno() >= 0:
                    # Out of descriptors, most likely: the connection waits until there are some.
                    _log.warning("cannot accept a connection of a dummy client: %s", error)
                    time.sleep(_PAUSE_SECONDS)
                continue
            with connection, contextlib.suppress(OSError):
                connection.settimeout(_SEND_SECONDS)
                connection.sendall(line)
                connection.shutdown(socket.SHUT_WR)
