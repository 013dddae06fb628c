"""`python -m mooncake.http_metadata_server`, and the HTTP with limits below it and the other services."""

from __future__ import annotations

import fcntl
import logging
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from services import Service, ask, module, script

from cluster import LOOPBACK, PATIENCE, free_ports, until
from mooncake._services import http
from mooncake._services.http import Limits, Request, Response, Server, text
from mooncake._services.log import PatientHandler

Serve = Callable[..., int]
RPC_KEY = "/metadata?key=mooncake%2Frpc_meta%2Fh%3A1"


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts the service, and returns its port."""
    services: list[Service] = []

    def start(*arguments: str, **environ: str) -> int:
        (port,) = free_ports(1)
        service = Service(tmp_path, [*module("http_metadata_server"), "--port", str(port), *arguments], **environ)
        services.append(service)
        service.wait_until_listening(port)
        return port

    yield start
    for service in services:
        assert service.end(signal.SIGTERM) == 0, service.text


def test_records(serve: Serve) -> None:
    port = serve()
    path = "/metadata?key=mooncake%2Fram%2Fh%3A1"
    assert ask(port, "GET", path)[:2] == (404, b"metadata not found")
    assert ask(port, "PUT", path, b'{"a": 1}')[:2] == (200, b"metadata updated")
    status, body, headers = ask(port, "GET", path)
    assert (status, body, headers["Content-Type"]) == (200, b'{"a": 1}', "application/json")
    assert ask(port, "PUT", path, b"")[0] == 200
    assert ask(port, "GET", path)[:2] == (200, b"")
    assert ask(port, "HEAD", path)[:2] == (200, b"")
    assert ask(port, "DELETE", path)[:2] == (200, b"metadata deleted")
    assert ask(port, "DELETE", path)[0] == 404


def test_an_address_of_an_engine_is_not_taken_over(serve: Serve) -> None:
    port = serve()
    assert ask(port, "PUT", RPC_KEY, b"a")[:2] == (200, b"metadata updated")
    assert ask(port, "PUT", RPC_KEY, b"a")[:2] == (200, b"metadata unchanged")
    assert ask(port, "PUT", RPC_KEY, b"b")[:2] == (400, b"Duplicate rpc_meta key not allowed")
    assert ask(port, "GET", RPC_KEY)[1] == b"a"


def test_bad_requests(serve: Serve) -> None:
    port = serve()
    for path in ("/metadata", "/metadata?key=", "/metadata?key=%20", "/metadata?other=1"):
        assert ask(port, "GET", path)[:2] == (400, b"metadata key is required")
    assert ask(port, "POST", "/metadata?key=a", b"")[:2] == (405, b"Method not allowed")
    assert ask(port, "GET", "/")[0] == 404
    assert ask(port, "PUT", "/metadata?key=a", headers={"Transfer-Encoding": "chunked"})[0] == 411
    assert ask(port, "PUT", "/metadata?key=a", headers={"Content-Length": "-1"})[0] == 400
    assert ask(port, "GET", "/metadata?" + "&".join(f"{n}=1" for n in range(200)))[0] == 400
    assert ask(port, "GET", "/metadata?key=" + "k" * 70_000)[0] == 414
    assert ask(port, "PUT", "/metadata?key=a", headers={"Content-Length": "9" * 5000})[0] == 413
    status, body, _ = ask(port, "GET", "/metadata?key=%ff")
    assert status == 400
    assert b"can't be read" in body


def test_limits_of_the_environment(serve: Serve) -> None:
    port = serve(MC_METADATA_MAX_BODY_BYTES="100", MC_METADATA_MAX_KEYS="2", MC_METADATA_MAX_TOTAL_BYTES="150")
    assert ask(port, "PUT", "/metadata?key=a", b"x" * 101)[0] == 413
    assert ask(port, "PUT", "/metadata?key=a", b"x" * 99)[0] == 200
    assert ask(port, "PUT", "/metadata?key=b", b"x" * 99)[:2] == (507, b"metadata size budget exhausted")
    assert ask(port, "PUT", "/metadata?key=b", b"x" * 9)[0] == 200
    assert ask(port, "PUT", "/metadata?key=c", b"x")[:2] == (507, b"metadata key budget exhausted")
    assert ask(port, "PUT", "/metadata?key=a", b"x" * 9)[0] == 200, "a smaller value takes less"
    assert ask(port, "DELETE", "/metadata?key=b")[0] == 200
    assert ask(port, "PUT", "/metadata?key=c", b"x" * 99)[0] == 200


def test_a_token(serve: Serve) -> None:
    port = serve(MC_METADATA_HTTP_TOKEN="secret")
    path = "/metadata?key=a"
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}, {"Authorization": "Bearer \xff"}):
        assert ask(port, "PUT", path, b"v", headers)[:2] == (401, b"unauthorized")
    assert ask(port, "PUT", path, b"v", {"Authorization": "bearer secret"})[0] == 200
    assert ask(port, "GET", path, headers={"Authorization": "Bearer secret"})[1] == b"v"


def test_a_token_from_a_file_that_is_not_ascii(serve: Serve) -> None:
    port = serve(MC_METADATA_HTTP_TOKEN="s\u00e9cret \u00e0\n")
    for token, status in [("s\u00e9cret \u00e0", 404), ("s\u00e9cret", 401)]:
        # As curl sends it: the bytes of UTF-8.
        headers = {"Authorization": f"Bearer {token}".encode().decode("latin-1")}
        assert ask(port, "GET", "/metadata?key=a", headers=headers)[0] == status


def test_it_warns_without_a_token_and_starts(tmp_path: Path) -> None:
    for arguments, environ, warned in [
        ([], {}, True),
        ([], {"MC_METADATA_HTTP_TOKEN": "secret"}, False),
        (["--host", LOOPBACK], {}, False),
    ]:
        (port,) = free_ports(1)
        service = Service(tmp_path, [*script("mooncake_http_metadata_server"), "--port", str(port), *arguments], **environ)
        service.wait_until_listening(port)
        assert service.end(signal.SIGINT) == 0
        assert ("no token is set" in service.text) == warned


def test_a_pipe_that_nobody_reads_stalls_nothing(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    service = Service(tmp_path, [*module("http_metadata_server"), f"--port={port}", "--log-level=DEBUG"], log=writing)
    try:
        service.wait_until_listening(port)
        # Each request is a line of the log.
        for _ in range(200):
            assert ask(port, "GET", "/metadata?key=a")[0] == 404
    finally:
        code = service.end()
    assert code == 0
    assert select.select([reading], [], [], 0)[0], "there was something to read"
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    ("arguments", "environ", "words"),
    [
        (["--port=x"], {}, "--port"),
        (["--port=70000"], {}, "70000 is no port"),
        (["--host=192.0.2.77"], {}, "cannot listen on 192.0.2.77:8080"),
        (["--host=a..b"], {}, "cannot listen on a..b:8080"),
        (["--log-level=LOUD"], {}, "--log-level"),
        (["--nonsense"], {}, "--nonsense"),
        ([], {"MC_METADATA_MAX_KEYS": "many"}, "MC_METADATA_MAX_KEYS must be a positive integer, got 'many'"),
        ([], {"MC_METADATA_MAX_BODY_BYTES": "0"}, "MC_METADATA_MAX_BODY_BYTES"),
        ([], {"MC_METADATA_HTTP_TOKEN": "\n"}, "MC_METADATA_HTTP_TOKEN is blank"),
    ],
)
def test_mistakes(tmp_path: Path, arguments: list[str], environ: dict[str, str], words: str) -> None:
    service = Service(tmp_path, [*module("http_metadata_server"), *arguments], **environ)
    assert service.code() == 2
    assert words in service.text


# The server below.


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that answers each body with its length."""

    def answer(request: Request) -> Response:
        if request.path == "/fail":
            raise ValueError("what failed")
        return text(200, str(len(request.read_body())))

    (port,) = free_ports(1)
    server = Server(LOOPBACK, port, Limits(body=1000, bodies=1500))
    server.start(answer)
    yield server
    server.stop()


def test_a_port_is_bound_once_although_nobody_listens_yet() -> None:
    limits = Limits(body=0, bodies=0)
    (port,) = free_ports(1)
    first = Server(LOOPBACK, port, limits)
    with pytest.raises(OSError, match="in use"):
        Server(LOOPBACK, port, limits)
    first.start(lambda request: text(200, ""))
    with pytest.raises(OSError, match="in use"):
        Server(LOOPBACK, port, limits)
    # The side that closes first keeps the connection for a minute, and here that is the server.
    assert rest_of(connect(first, b"GET / HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")
    first.stop()
    again = Server(LOOPBACK, port, limits)
    again.start(lambda request: text(200, ""))
    assert ask(port, "GET", "/")[0] == 200
    again.stop()


def connect(server: Server, content: bytes) -> socket.socket:
    connection = socket.create_connection(server.server_address[:2], timeout=PATIENCE)
    connection.sendall(content)
    return connection


def rest_of(connection: socket.socket) -> bytes:
    with connection, connection.makefile("rb") as file:
        return file.read()


def put(length: int, body: bytes = b"", more: str = "") -> bytes:
    return f"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n{more}\r\n".encode() + body


def test_a_refused_body_is_answered_although_it_is_still_sent(server: Server) -> None:
    answer = rest_of(connect(server, put(10_000_000, b"x" * 10_000_000)))
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"at most 1000" in answer


def test_a_client_that_waits_to_go_on_is_told(server: Server) -> None:
    with connect(server, put(5, more="Expect: 100-continue\r\n")) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(b"12345")
        assert rest_of(connection).endswith(b"\r\n\r\n5")
    assert rest_of(connect(server, put(5000, more="Expect: 100-continue\r\n"))).startswith(b"HTTP/1.1 413")


def test_a_failure_is_an_answer(server: Server) -> None:
    answer = rest_of(connect(server, b"GET /fail HTTP/1.1\r\n\r\n"))
    assert answer.startswith(b"HTTP/1.1 500")
    assert answer.endswith(b'{"error": "what failed"}')
    assert rest_of(connect(server, b"GET / HTTP/nonsense\r\n\r\n")).startswith(b"HTTP/1.1 400")
    assert rest_of(connect(server, put(0))).endswith(b"\r\n\r\n0")


def test_slow_requests_are_dropped(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_PATIENCE", 0.3)
    trickling = connect(server, b"GET /")

    def dropped() -> bool:
        # A byte now and then does not extend the time.
        try:
            trickling.sendall(b"x")
            trickling.settimeout(0.01)
            return trickling.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True

    with trickling:
        until("the slow connection is dropped", dropped)
    assert rest_of(connect(server, b"")) == b""
    assert rest_of(connect(server, put(900, b"x"))).startswith(b"HTTP/1.1 408")


@pytest.fixture
def large() -> Iterator[Server]:
    """A server of large bodies, which answers each with as many bytes."""
    (port,) = free_ports(1)
    server = Server(LOOPBACK, port, Limits(body=1 << 30, bodies=1 << 30))
    server.start(lambda request: Response(200, request.read_body()))
    yield server
    server.stop()


def test_a_long_body_buys_no_silence(large: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    # At the slowest rate, what comes at once takes four minutes, and the whole takes hours.
    monkeypatch.setattr(http, "_PATIENCE", 0.3)
    assert rest_of(connect(large, put(1 << 30, b"x" * (16 << 20)))).startswith(b"HTTP/1.1 408")


def test_an_answer_that_nobody_reads_is_dropped(large: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    # More than the buffers of both sockets hold.
    size = 64 << 20

    def answer(request: Request) -> Response:
        body = request.read_body()
        monkeypatch.setattr(http, "_PATIENCE", 0.3)
        return Response(200, body)

    large.application = answer
    connection = connect(large, put(size, b"x" * size))
    until("it is given up", lambda: large._held == 0)
    part = rest_of(connection)
    assert part.startswith(b"HTTP/1.1 200")
    assert len(part) < size


def test_bodies_together_have_a_bound(server: Server) -> None:
    first = connect(server, put(900, b"x"))
    until("the first body is being read", lambda: server._held == 900)
    assert rest_of(connect(server, put(900))).startswith(b"HTTP/1.1 503")
    first.sendall(b"x" * 899)
    assert rest_of(first).endswith(b"\r\n\r\n900")
    until("its memory is free", lambda: server._held == 0)
    assert rest_of(connect(server, put(900, b"x" * 900))).endswith(b"\r\n\r\n900")


def test_connections_have_a_bound(server: Server) -> None:
    waiting = [connect(server, b"GET") for _ in range(http._CONNECTIONS)]
    # Those beyond are answered at once, and a place is free when one ends.
    answer = until("there is no place", lambda: rest_of(connect(server, b"")))
    assert answer.startswith(b"HTTP/1.1 503")
    for connection in waiting:
        connection.close()
    until("there is a place", lambda: rest_of(connect(server, put(1, b"x"))).endswith(b"\r\n\r\n1"))


# The log.


def test_a_log_that_nobody_reads_stalls_nothing_and_counts() -> None:
    reading, writing = os.pipe()
    handler = PatientHandler(writing)
    record = logging.LogRecord("name", logging.INFO, __file__, 1, "x" * 200, None, None)
    for _ in range(10_000):
        handler.emit(record)
    handler.drain(0.01)
    kept = dropped = 0
    with os.fdopen(reading, "rb") as file:
        while kept + dropped < 10_000:
            line = file.readline()
            if b"were dropped" in line:
                dropped += int(line.split()[0])
            else:
                kept += 1
    assert kept + dropped == 10_000
    assert kept >= 2000
    assert dropped > 0
