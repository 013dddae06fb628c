"""HTTP with limits: the size of a request, the time that it takes, and the number of those served at once."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from .._addresses import bind_alone, listen_alone

_log = logging.getLogger(__name__)

_CONNECTIONS = 64
_BACKLOG = 128
# Time limit, in seconds, of the head of a request and of a silence. A body or an answer may also take its length at the slowest rate.
_PATIENCE = 10.0
_SLOWEST = 64 * 1024
_PIECE = 64 * 1024
# Maximum number of digits of a Content-Length.
_MOST_DIGITS = 18
# Read and thrown away after a refusal, so that the answer is not lost to a reset of the connection.
_DISCARDED = 16 << 20
_DISCARD_SECONDS = 2.0

JSON = "application/json"


@dataclass(frozen=True)
class Limits:
    """Bounds of a service."""

    body: int
    """Bytes of a body."""
    bodies: int
    """Bytes of all bodies that are held at once."""


@dataclass(frozen=True)
class Response:
    """An answer."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


class Refused(Exception):
    """The request can't be read. It has been answered."""


def text(status: int, message: str, content_type: str = JSON) -> Response:
    """An answer of plain words."""
    return Response(status, message.encode(), content_type)


def as_json(status: int, value: object) -> Response:
    """An answer in JSON."""
    return Response(status, json.dumps(value).encode())


@dataclass
class Request:
    """What was asked for. The body is read on demand."""

    method: str
    path: str
    """Path as it came: a key in it may have an escaped slash."""
    query: dict[str, list[str]]
    headers: Message[str, str]
    read_body: Callable[[], bytes]
    """Reads the body. `Refused` if it is too large, too slow or has no length: the request is answered then."""

    def argument(self, name: str) -> str:
        """The first value of this name in the query string, or an empty one."""
        return self.query.get(name, [""])[0]


Application = Callable[[Request], Response]


class Server(socketserver.ThreadingTCPServer):
    """A server that is bound at once, and accepts connections once it is started."""

    daemon_threads = True
    block_on_close = False

    application: Application

    def __init__(self, host: str, port: int, limits: Limits) -> None:
        """Binds the port. OSError if it is taken."""
        self.limits = limits
        self._slots = threading.BoundedSemaphore(_CONNECTIONS)
        self._guard = threading.Lock()
        self._held = 0
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self.address_family = family
        super().__init__((str(address[0]), port), _Handler, bind_and_activate=False)
        try:
            bind_alone(self.socket, self.server_address)
        except BaseException:
            self.server_close()
            raise

    def start(self, application: Application) -> None:
        """Accepts connections, on threads of its own, until the process ends or `stop`. OSError if the port is taken after all."""
        self.application = application
        try:
            listen_alone(self.socket, _BACKLOG)
        except BaseException:
            self.server_close()
            raise
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True, name="mooncake-http").start()

    def stop(self) -> None:
        """Accepts no more connections."""
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            try:
                super().process_request(request, client_address)
            except BaseException:
                self._slots.release()
                raise
            return
        # Answered by this thread, so it may not wait: a full socket loses the answer.
        request.setblocking(False)
        with contextlib.suppress(OSError):
            request.send(b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\nRetry-After: 1\r\n\r\n")
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        # The default prints to standard error, which may block.
        _log.info("connection of %s ended early", client_address, exc_info=True)

    def hold(self, size: int) -> bool:
        """Takes memory for a body, if there is enough."""
        with self._guard:
            if self._held + size > self.limits.bodies:
                return False
            self._held += size
            return True

    def release(self, size: int) -> None:
        """Gives it back."""
        with self._guard:
            self._held -= size


class _UntilDeadline(io.RawIOBase):
    """Bytes of a connection. TimeoutError once the deadline has passed, however slowly they come."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.deadline = time.monotonic() + _PATIENCE
        self.extension = 0.0
        """Seconds by which each byte extends the deadline."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        remaining = self.deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("the request did not come in time")
        # Bytes that came fast don't pay for a silence after them.
        self.connection.settimeout(min(remaining, _PATIENCE))
        count = self.connection.recv_into(buffer)
        self.deadline += count * self.extension
        return count


class _Handler(BaseHTTPRequestHandler):
    """One request of a connection, which ends with it."""

    server: Server
    protocol_version = "HTTP/1.1"
    # Of a request that can't be parsed: its answer has a status line, too.
    default_request_version = "HTTP/1.1"
    server_version = "mc"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self._incoming = _UntilDeadline(self.connection)
        self.rfile.close()
        self.rfile = io.BufferedReader(self._incoming)
        self._body = 0
        self._unread = False

    def handle(self) -> None:
        self.close_connection = True
        try:
            self.handle_one_request()
            if self._unread:
                self._discard()
        except OSError as error:
            _log.debug("connection of %s: %s", self.client_address, error)
        finally:
            self.server.release(self._body)

    def __getattr__(self, name: str) -> Any:
        # The methods of a request are called by name.
        if name.startswith("do_"):
            return self._serve
        raise AttributeError(name)

    def handle_expect_100(self) -> bool:
        # The body may be refused for its length, so the client is told to go on when it is read.
        return True

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug("%s: %s", self.client_address[0], format % args)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answers a request that can't be parsed."""
        self._unread = True
        self._send(text(code, message or HTTPStatus(code).phrase, "text/plain"))

    def _serve(self) -> None:
        self._unread = self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers
        try:
            parts = urlsplit(self.path)
            query = parse_qs(parts.query, keep_blank_values=True, errors="strict", max_num_fields=100)
        except ValueError as error:
            self._send(as_json(400, {"error": f"the address {self.path[:100]!r} can't be read: {error}"}))
            return
        request = Request(self.command, parts.path, query, self.headers, self._read_body)
        try:
            response = self.server.application(request)
        except Refused:
            return
        except Exception as error:
            _log.exception("%s %s", self.command, parts.path)
            response = as_json(500, {"error": str(error)})
        self._send(response)

    def _read_body(self) -> bytes:
        given = self.headers.get("Content-Length")
        if "Transfer-Encoding" in self.headers or (given is None and self.command in ("PUT", "POST")):
            raise self._refused(411, "the body has no length: send it with Content-Length")
        if given is not None and not (given.isascii() and given.isdigit()):
            raise self._refused(400, f"Content-Length is {given[:40]!r}: it is a number of bytes")
        digits = given or "0"
        # Python refuses to read a number of thousands of digits.
        if len(digits) > _MOST_DIGITS or int(digits) > self.server.limits.body:
            shown = digits[:_MOST_DIGITS]
            raise self._refused(413, f"the body has {shown} bytes, and at most {self.server.limits.body} are read: split the value")
        length = int(digits)
        if not self.server.hold(length):
            raise self._refused(503, "too many large bodies are on their way: try again")
        self._body = length
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        self._incoming.deadline, self._incoming.extension = time.monotonic() + _PATIENCE, 1 / _SLOWEST
        try:
            body = self.rfile.read(length)
        except TimeoutError:
            raise self._refused(408, f"the body of {length} bytes did not come in time") from None
        self._unread = False
        if len(body) < length:
            raise self._refused(400, f"the connection ended after {len(body)} of {length} bytes")
        return body

    def _refused(self, status: int, message: str) -> Refused:
        self._send(as_json(status, {"error": message}))
        return Refused(message)

    def _send(self, response: Response) -> None:
        _log.debug("%s: %r: %d", self.client_address[0], self.requestline, response.status)
        self.send_response_only(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        for name, value in response.headers.items():
            self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self._send_body(memoryview(response.body))

    def _send_body(self, body: memoryview) -> None:
        deadline = time.monotonic() + _PATIENCE
        for start in range(0, len(body), _PIECE):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError("the answer was not read in time")
            # `sendall` counts this for the whole of its bytes.
            self.connection.settimeout(min(remaining, _PATIENCE))
            self.connection.sendall(body[start : start + _PIECE])
            deadline += _PIECE / _SLOWEST

    def _discard(self) -> None:
        self.connection.shutdown(socket.SHUT_WR)
        self._incoming.deadline, self._incoming.extension = time.monotonic() + _DISCARD_SECONDS, 0.0
        left = _DISCARDED
        while left > 0 and (piece := self.rfile.read1(1 << 16)):
            left -= len(piece)
