"""`mooncake_client`: memory for the pool, and what it tells dummy clients."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import MIB
from services import Start, ask, ask_json, check_guide, script, starting

from cluster import LOOPBACK, PATIENCE, Cluster, free_ports, until
from mooncake import _introduction
from mooncake._introduction import Introduction, NoIntroduction, Reception
from mooncake._services.client_flags import TABLE
from mooncake._services.flags import Effect
from mooncake.store import MooncakeDistributedStore


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path, script("mooncake_client")) as start:
        yield start


@pytest.fixture
def ports() -> list[int]:
    return free_ports(2)


def harness(cluster: Cluster, port: int, http: int, size: str = "64mb") -> list[str]:
    """The command line of SGLang's harness."""
    return [
        f"--host={LOOPBACK}",
        f"--port={port}",
        f"--master_server_address={cluster.addresses}",
        "--metadata_server=http://127.0.0.1:8080/metadata",
        "--protocol=tcp",
        "--device_names=",
        f"--global_segment_size={size}",
        "--enable_http_server=true",
        f"--http_port={http}",
    ]


def test_its_memory_serves_dummy_clients_until_it_ends(own_master: Cluster, start: Start, ports: list[int]) -> None:
    port, http = ports
    service = start(*harness(own_master, port, http), MC_MS_AUTO_DISC="0")
    service.wait_until_listening(port)
    (name,) = own_master.mounted()

    # No address of the masters is in the environment.
    dummy = MooncakeDistributedStore()
    assert dummy.setup_dummy(16 * MIB, 16 * MIB, f"{LOOPBACK}:{port}") == 0
    assert dummy.get_hostname() == name
    assert dummy.put("key", b"value") == 0
    assert dummy.get("key") == b"value"
    (descriptor,) = dummy.get_replica_desc("key")
    assert descriptor.get_memory_descriptor().buffer_descriptor.transport_endpoint == name
    assert ask_json(http, "GET", "/health") == (200, {"status": "healthy", "code": 0})
    assert b"mc_client_hits 0\n" in ask(http, "GET", "/metrics")[1]
    assert b"hits: 0 | " in ask(http, "GET", "/metrics/summary")[1]
    assert ask(http, "POST", "/health", b"")[0] == 405
    assert ask(http, "GET", "/")[0] == 404

    assert service.end(signal.SIGTERM) == 0, service.text
    assert own_master.mounted() == []
    dummy.close()


def test_dummy_clients_are_in_its_tenant(own_master: Cluster, start: Start, ports: list[int]) -> None:
    port, http = ports
    service = start(*harness(own_master, port, http), "--tenant_id=blue")
    service.wait_until_listening(port)
    dummy, other = MooncakeDistributedStore(), MooncakeDistributedStore()
    assert dummy.setup_dummy(MIB, MIB, f"{LOOPBACK}:{port}") == 0
    assert other.setup("localhost", "", 0, MIB, "tcp", "", own_master.addresses, tenant_id="blue") == 0
    assert dummy.put("key", b"value") == 0
    assert other.get("key") == b"value"
    for store in (dummy, other):
        store.close()


def test_it_waits_for_its_masters(own_master: Cluster, start: Start, ports: list[int]) -> None:
    port, http = ports
    own_master.kill_masters()
    service = start(*harness(own_master, port, http))
    until("it looks for the masters", lambda: "no leader found" in service.text)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((LOOPBACK, port), timeout=PATIENCE)
    own_master.start()
    service.wait_until_listening(port)
    assert service.end() == 0


def test_health_without_a_leader(own_master: Cluster, start: Start, ports: list[int]) -> None:
    port, http = ports
    service = start(*harness(own_master, port, http))
    service.wait_until_listening(port)
    own_master.kill_masters()
    until("the loss is noticed", lambda: ask_json(http, "GET", "/health") == (503, {"status": "master_unreachable", "code": 2}))
    assert service.end() == 0


def test_it_ends_while_it_looks_for_its_masters(start: Start, ports: list[int]) -> None:
    port, _ = ports
    service = start(f"--port={port}", f"--master_server_address={LOOPBACK}:1", "--global_segment_size=1mb")
    until("it looks", lambda: "Attempting to start" in service.text)
    assert service.end(signal.SIGINT) == 0
    assert "cancelled" in service.text


@pytest.mark.parametrize(
    ("argument", "code", "words"),
    [
        ("--nonsense", 1, "unknown command line flag 'nonsense'"),
        ("--port=0", 1, "--port=0 is no port"),
        ("--http_port=70000", 1, "--http_port=70000 is no port"),
        ("--enable_http_server=maybe", 1, "illegal value 'maybe'"),
        ("--host=192.0.2.77", 1, "cannot listen on 192.0.2.77"),
        ("--host=a..b", 1, "cannot listen on a..b"),
        ("--global_segment_size=lots", 1, "global_segment_size: 'lots' is not a size"),
        ("--global_segment_size=4096", 1, "global_segment_size is 4096 bytes"),
        ("--local_buffer_size=-1", 1, "local_buffer_size"),
        ("--master_server_address=redis://a", 1, "cannot find masters by 'redis://a'"),
    ],
)
def test_mistakes(start: Start, ports: list[int], argument: str, code: int, words: str) -> None:
    service = start(f"--port={ports[0]}", argument)
    assert service.code() == code
    assert words in service.text


def test_a_taken_port_is_an_error_at_once(start: Start, one_master: Cluster) -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        service = start(f"--host={LOOPBACK}", f"--port={port}", f"--master_server_address={one_master.addresses}")
        assert service.code() == 1
    assert f"cannot listen on {LOOPBACK}:{port}" in service.text


def test_a_taken_health_port_is_a_warning(start: Start, one_master: Cluster, ports: list[int]) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        service = start(*harness(one_master, ports[0], taken.getsockname()[1]))
        service.wait_until_listening(ports[0])
    assert "no health and metrics on port" in service.text
    assert service.end() == 0


def test_help_and_version(start: Start) -> None:
    for argument, words in [("--help", "--global_segment_size"), ("--version", "mooncake_client of mc")]:
        service = start(argument)
        assert service.code() == 0
        assert words in service.text


def test_the_guide_has_the_table() -> None:
    check_guide("mooncake_client", TABLE)


def test_each_flag_of_upstream_is_in_the_table() -> None:
    # Counted in `mooncake_client --help` of 0.3.13.post1.
    assert len(TABLE) == 51
    for flag in TABLE.values():
        assert flag.effect in (Effect.MAPPED, Effect.NONE)
        assert flag.note
        flag.read(flag.default)


# The introduction.

SAID = Introduction("a:1,b:2", "h:3", "default", "tcp", "")


@pytest.fixture
def reception() -> Iterator[int]:
    (port,) = free_ports(1)
    reception = Reception(LOOPBACK, port)
    reception.start(SAID)
    yield port
    reception.stop()


def test_an_introduction(reception: int) -> None:
    assert _introduction.ask(f"{LOOPBACK}:{reception}") == SAID
    # Probes that send nothing, something, or never read hold nobody up.
    held = [socket.create_connection((LOOPBACK, reception)) for _ in range(20)]
    for connection in held[::2]:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert _introduction.ask(f"{LOOPBACK}:{reception}") == SAID
    for connection in held:
        connection.close()


def test_a_port_is_bound_once_although_nobody_listens_yet() -> None:
    (port,) = free_ports(1)
    reception = Reception(LOOPBACK, port)
    with pytest.raises(OSError, match="in use"):
        Reception(LOOPBACK, port)
    reception.stop()


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"", "is no mooncake_client"),
        (b"HTTP/1.1 400 Bad Request\r\n", "is no mooncake_client"),
        (b"[1]\n", "is no mooncake_client"),
        (b"[" * 60_000, "is no mooncake_client"),
        (b"x" * 100_000, "more than 65536 bytes"),
        (json.dumps({"service": "mooncake_client", "version": 2}).encode(), r"\(version 2\) sent no text as 'masters'"),
        (SAID.line().replace(b'"a:1,b:2"', b"7"), "sent no text as 'masters'"),
        (None, "timed out"),
    ],
)
def test_other_services_are_told_apart(monkeypatch: pytest.MonkeyPatch, sent: bytes | None, words: str) -> None:
    monkeypatch.setattr(_introduction, "_SECONDS", 0.3 if sent is None else PATIENCE)
    with socket.create_server((LOOPBACK, 0)) as server:
        accepted: list[socket.socket] = []

        def serve() -> None:
            connection, _ = server.accept()
            accepted.append(connection)
            if sent is not None:
                with connection:
                    connection.sendall(sent)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(NoIntroduction, match=words):
            _introduction.ask(f"{LOOPBACK}:{server.getsockname()[1]}")
        thread.join()
        for connection in accepted:
            connection.close()


def test_a_service_that_trickles_does_not_hold_a_dummy_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_introduction, "_SECONDS", 0.5)
    ended = threading.Event()
    with socket.create_server((LOOPBACK, 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                # An end that only comes without a deadline on the other side.
                for _ in range(100):
                    if ended.wait(0.05):
                        break
                    connection.sendall(b"x")

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(NoIntroduction, match="timed out"):
            _introduction.ask(f"{LOOPBACK}:{server.getsockname()[1]}")
        ended.set()
        thread.join()


def test_a_dummy_client_without_its_service(one_master: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    (port,) = free_ports(1)
    store = MooncakeDistributedStore()
    assert store.setup_dummy(MIB, MIB, f"{LOOPBACK}:{port}") == -1
    assert f"no mooncake_client answers at {LOOPBACK}:{port}" in caplog.text
    assert store.setup_dummy(MIB, MIB, "a..b:1") == -1
    assert "no mooncake_client answers at a..b:1" in caplog.text
    monkeypatch.setenv("MOONCAKE_MASTER", one_master.addresses)
    assert store.setup_dummy(MIB, MIB, f"{LOOPBACK}:{port}") == 0
    store.close()
