"""`python -m mooncake.mooncake_store_service`: its settings, its REST API and its end."""

from __future__ import annotations

import json
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import MIB
from services import Service, Start, ask, ask_json, module, script, starting

from cluster import LOOPBACK, PATIENCE, Cluster, free_ports, until
from mooncake.mooncake_config import MooncakeConfig, override
from mooncake.store import MooncakeDistributedStore


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path, module("mooncake_store_service")) as start:
        yield start


@pytest.fixture
def port() -> int:
    (port,) = free_ports(1)
    return port


@pytest.fixture(scope="module")
def rest(one_master: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Port of a service that is shared by the tests of its paths."""
    (port,) = free_ports(1)
    environ = {"MOONCAKE_MASTER": one_master.addresses, "MOONCAKE_GLOBAL_SEGMENT_SIZE": "256mb", "MOONCAKE_LOCAL_BUFFER_SIZE": "16mb"}
    service = Service(tmp_path_factory.mktemp("rest"), [*module("mooncake_store_service"), "--port", str(port)], **environ)
    try:
        service.wait_until_listening(port)
        yield port
        assert service.end(signal.SIGTERM) == 0, service.text
    finally:
        service.end(signal.SIGKILL)


# Its paths.


def test_objects(rest: int) -> None:
    assert ask_json(rest, "PUT", "/api/put", {"key": "a/b c", "value": "välue"}) == (200, {"status": "success"})
    status, body, headers = ask(rest, "GET", "/api/get/a%2Fb%20c")
    assert (status, body.decode(), headers["Content-Type"]) == (200, "välue", "application/octet-stream")
    assert ask(rest, "HEAD", "/api/get/a%2Fb%20c")[:2] == (200, b"")
    assert ask_json(rest, "GET", "/api/exist/a%2Fb%20c") == (200, {"exists": True})
    assert ask_json(rest, "GET", "/api/exist/absent") == (200, {"exists": False})
    assert ask_json(rest, "GET", "/api/get/absent") == (404, {"error": "Key not found"})
    assert ask_json(rest, "DELETE", "/api/remove/absent")[0] == 500
    # A value that was read has a lease, and is not removed meanwhile.
    assert ask_json(rest, "PUT", "/api/put", {"key": "unread", "value": "v"})[0] == 200
    assert ask_json(rest, "DELETE", "/api/remove/unread") == (200, {"status": "success"})
    assert ask_json(rest, "PUT", "/api/put", {"key": "unread", "value": "v"})[0] == 200
    status, answer = ask_json(rest, "DELETE", "/api/remove_all")
    assert status == 200
    assert answer["status"].startswith("success removed ")


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"key": "k"}, 400, "Missing key or value"),
        ({"value": "v"}, 400, "Missing key or value"),
        ({"key": "", "value": "v"}, 400, "Missing key or value"),
        ({"key": "k", "value": None}, 400, "Missing key or value"),
        ({"key": 1, "value": "v"}, 500, "key and value are text, not int and str"),
        ({"key": "k", "value": ["v"]}, 500, "key and value are text, not str and list"),
        ({"key": "k", "value": ""}, 500, "PUT operation failed, ret=-600"),
        ({"key": "k" * 5000, "value": "v"}, 500, "PUT operation failed"),
        ([], 500, "the body is a JSON list"),
        (b"{", 500, "the body is no JSON"),
        (b"", 500, "the body is no JSON"),
        (b"\xff", 500, "the body is no JSON"),
        (b"[" * 100_000, 500, "the body is no JSON"),
    ],
)
def test_bad_objects(rest: int, body: Any, status: int, words: str) -> None:
    answered, answer = ask_json(rest, "PUT", "/api/put", body)
    assert answered == status
    assert words in answer["error"]


def test_the_limit_of_a_body(rest: int) -> None:
    head = b'{"key": "large", "value": "'
    most = 100 * MIB - len(head) - 2
    assert ask(rest, "PUT", "/api/put", head + b"x" * most + b'"}')[0] == 200
    assert len(ask(rest, "GET", "/api/get/large")[1]) == most
    with socket.create_connection((LOOPBACK, rest), timeout=PATIENCE) as connection:
        connection.sendall(f"PUT /api/put HTTP/1.1\r\nHost: h\r\nContent-Length: {100 * MIB + 1}\r\n\r\n".encode())
        answer = connection.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"at most 104857600" in answer


def test_segments(rest: int, one_master: Cluster) -> None:
    status, answer = ask_json(rest, "POST", "/api/mount", {"size": 16 * MIB, "protocol": "tcp", "location": "cpu:0"})
    assert status == 200
    assert answer["allocated_size"] == 16 * MIB
    segments = answer["segment_ids"]
    assert ask_json(rest, "POST", "/api/unmount", {"segment_ids": segments, "grace_period_seconds": 1}) == (200, {"status": "success"})
    status, answer = ask_json(rest, "POST", "/api/unmount", {"segment_ids": segments[0]})
    assert status == 500
    assert "ret=-600" in answer["error"]


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("mount", {}, 400, "Invalid size"),
        ("mount", {"size": "16mb"}, 400, "Invalid size"),
        ("mount", {"size": True}, 400, "Invalid size"),
        ("mount", {"size": 0}, 400, "Invalid size"),
        ("mount", {"size": 1 << 62}, 500, "Allocate and mount failed, ret="),
        ("mount", b"[", 500, "the body is no JSON"),
        ("unmount", {}, 400, "Missing segment_ids"),
        ("unmount", {"segment_ids": None}, 400, "Missing segment_ids"),
        ("unmount", {"segment_ids": [1]}, 500, "segment_ids is a list of text"),
        ("mount_shm", {"name": "a"}, 400, "Missing or invalid name or size"),
        ("mount_shm", {"name": "a/b", "size": 1}, 400, "Missing or invalid name or size"),
        ("mount_shm", {"name": 7, "size": 1}, 400, "Missing or invalid name or size"),
        ("mount_shm", {"name": "/a", "size": 1}, 501, "use /api/mount"),
        ("unmount_shm", {}, 400, "Missing segment_ids"),
        ("unmount_shm", {"segment_ids": "a"}, 501, "use /api/mount"),
        ("unmount_local_disk", b"{", 400, "Malformed JSON body"),
        ("unmount_local_disk", [], 400, "must be a JSON object"),
        ("unmount_local_disk", {"grace_period_seconds": True}, 400, "Invalid grace_period_seconds"),
        ("unmount_local_disk", {"grace_period_seconds": 3601}, 400, "Invalid grace_period_seconds"),
        ("unmount_local_disk", {}, 501, "keeps objects in memory"),
        ("reconfigure", {}, 400, "Invalid mode"),
        ("reconfigure", {"mode": "both"}, 400, "Invalid mode"),
        ("reconfigure", {"mode": "decode"}, 400, "Missing path or size"),
        ("reconfigure", {"mode": "decode", "path": "/p", "size": 1}, 501, "use /api/mount"),
    ],
)
def test_other_requests_about_segments(rest: int, path: str, body: Any, status: int, words: str) -> None:
    answered, answer = ask_json(rest, "POST", f"/api/{path}", body)
    assert answered == status
    assert words in answer["error"]


def test_the_mode_that_needs_no_segments(rest: int) -> None:
    assert ask_json(rest, "POST", "/api/reconfigure", {"mode": "Prefill"}) == (200, {"status": "success", "mode": "prefill"})


def test_other_paths_and_methods(rest: int) -> None:
    for path in ("/", "/api/nonsense", "/api/get/", "/api/get/a/b", "/api/remove"):
        assert ask(rest, "GET", path)[0] == 404
    status, _, headers = ask(rest, "POST", "/api/put", b"{}")
    assert (status, headers["Allow"]) == (405, "PUT")
    assert ask(rest, "PUT", "/api/get/k", b"{}")[0] == 405
    assert ask(rest, "GET", "/api/get/%ff")[0] == 400


# Its settings.


def environ_of(cluster: Cluster, **more: str) -> dict[str, str]:
    return {
        "MOONCAKE_MASTER": cluster.addresses,
        "MOONCAKE_TE_META_DATA_SERVER": "http://s-x-mooncake-master:8080/metadata",
        "MOONCAKE_GLOBAL_SEGMENT_SIZE": "64mb",
        "MOONCAKE_LOCAL_BUFFER_SIZE": "0",
        "MOONCAKE_PROTOCOL": "tcp",
        **more,
    }


def test_the_operator_example(own_master: Cluster, start: Start, port: int) -> None:
    (health,) = free_ports(1)
    more = {"MOONCAKE_ENABLE_CLIENT_HTTP_SERVER": "true", "MOONCAKE_CLIENT_HTTP_PORT": str(health)}
    service = start("--port", str(port), **environ_of(own_master, **more))
    service.wait_until_listening(port)
    assert len(own_master.mounted()) == 1
    engine = MooncakeDistributedStore()
    assert engine.setup("localhost", "", 0, 16 * MIB, "tcp", "", own_master.addresses) == 0
    assert engine.put("key", b"value") == 0
    assert ask(port, "GET", "/api/get/key")[1] == b"value"
    # It lends memory, and writes nothing itself.
    status, answer = ask_json(port, "PUT", "/api/put", {"key": "k", "value": "v"})
    assert status == 500
    assert "local_buffer_size is 0" in answer["error"]
    assert ask_json(health, "GET", "/health")[0] == 200
    engine.close()
    assert service.end(signal.SIGTERM) == 0, service.text
    assert own_master.mounted() == []


def test_settings_from_a_file_and_the_command_line(own_master: Cluster, start: Start, port: int, tmp_path: Path) -> None:
    file = tmp_path / "mooncake.json"
    fields = {"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE", "master_server_address": f"{LOOPBACK}:1"}
    file.write_text(json.dumps({**fields, "global_segment_size": "64mb", "local_buffer_size": 16 * MIB, "protocol": "tcp"}))
    given = ["--config", str(file), f"-Dmaster_server_address={own_master.addresses}", "-D", "tenant_id=blue", "-Dnonsense=1", "-Dx"]
    service = start(*given, "--port", str(port))
    service.wait_until_listening(port)
    assert ask_json(port, "PUT", "/api/put", {"key": "key", "value": "value"})[0] == 200
    blue = MooncakeDistributedStore()
    assert blue.setup("localhost", "", 0, MIB, "tcp", "", own_master.addresses, tenant_id="blue") == 0
    assert blue.get("key") == b"value"
    blue.close()
    assert "-Dnonsense=1 is ignored: there is no such setting" in service.text
    assert "Ignoring invalid CLI config: x" in service.text


def test_it_gives_up_after_its_time(start: Start, port: int) -> None:
    environ = {"MOONCAKE_MASTER": f"{LOOPBACK}:1", "MOONCAKE_GLOBAL_SEGMENT_SIZE": "1mb"}
    service = start("--port", str(port), "--max-wait-time", "0", **environ)
    assert service.code() == 1
    assert "could not be opened within 0 s, in 1 attempts" in service.text


def test_it_ends_while_it_looks_for_its_masters(start: Start, port: int) -> None:
    service = start("--port", str(port), MOONCAKE_MASTER=f"{LOOPBACK}:1", MOONCAKE_GLOBAL_SEGMENT_SIZE="1mb")
    until("it looks", lambda: "Attempting to start" in service.text)
    assert service.end(signal.SIGTERM) == 0
    assert "cancelled" in service.text


# An attempt that doesn't end: the kernel provides much memory slowly.
STUCK = """
import threading
from mooncake._services import log, store

store.MooncakeDistributedStore.setup = lambda self, config: threading.Event().wait()
store.block_signals()
log.start()
store.open_store({}, 60)
log.drain()
"""


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_wait(tmp_path: Path, second: signal.Signals) -> None:
    service = Service(tmp_path, [sys.executable, "-c", STUCK])
    until("it looks", lambda: "Attempting to start" in service.text)
    service.process.send_signal(signal.SIGTERM)
    until("it has noticed", lambda: "cancelled" in service.text)
    assert service.end(second) == -second


def test_an_attempt_that_does_not_end_is_given_up(tmp_path: Path) -> None:
    service = Service(tmp_path, [sys.executable, "-c", STUCK])
    until("it looks", lambda: "Attempting to start" in service.text)
    assert service.end(signal.SIGTERM) == 0
    assert "given up" in service.text


def test_it_survives_the_death_of_a_leader(own_masters: Cluster, start: Start, port: int) -> None:
    service = start("--port", str(port), **environ_of(own_masters, MOONCAKE_LOCAL_BUFFER_SIZE="16mb"))
    service.wait_until_listening(port)
    assert ask_json(port, "PUT", "/api/put", {"key": "before", "value": "v"})[0] == 200
    own_masters.wait_for_leader().kill()
    until("puts go on", lambda: ask_json(port, "PUT", "/api/put", {"key": "after", "value": "v"})[0] == 200)
    assert ask(port, "GET", "/api/get/before")[1] == b"v"
    assert service.end() == 0


def test_the_script_of_upstream(one_master: Cluster, tmp_path: Path, port: int) -> None:
    service = Service(tmp_path, [*script("mc_store_rest_server"), f"--port={port}"], **environ_of(one_master))
    service.wait_until_listening(port)
    assert service.end(signal.SIGINT) == 0


@pytest.mark.parametrize(
    ("arguments", "environ", "code", "words"),
    [
        ([], {}, 1, "Neither the environment variable 'MOONCAKE_CONFIG_PATH' nor 'MOONCAKE_MASTER' is set"),
        (["--port=x"], {}, 2, "--port"),
        (["--port=0"], {}, 2, "0 is no port"),
        (["--max-wait-time=-1"], {}, 2, "--max-wait-time"),
        (["--max-wait-time=nan"], {}, 2, "--max-wait-time"),
        (["--nonsense"], {}, 2, "--nonsense"),
        (["--config=/nowhere.json"], {}, 1, "the configuration of /nowhere.json can't be used"),
        ([], {"MOONCAKE_CONFIG_PATH": "/nowhere.json"}, 1, "the configuration of /nowhere.json can't be used"),
        (
            [],
            {"MOONCAKE_MASTER": "m", "MOONCAKE_GLOBAL_SEGMENT_SIZE": "lots"},
            1,
            "of Mooncake's configuration: 'lots'",
        ),
        (["-Dlocal_buffer_size=x"], {"MOONCAKE_MASTER": "m"}, 1, "'local_buffer_size' of Mooncake's configuration: 'x'"),
        (["-Dprotocol="], {"MOONCAKE_MASTER": "m"}, 1, "Invalid protocol"),
        (["-Dglobal_segment_size=4096"], {"MOONCAKE_MASTER": "m"}, 1, "global_segment_size is 4096 bytes"),
    ],
)
def test_mistakes(start: Start, arguments: list[str], environ: dict[str, str], code: int, words: str) -> None:
    service = start(*arguments, **environ)
    assert service.code() == code
    assert words in service.text


def test_a_taken_port_is_an_error_at_once(start: Start, one_master: Cluster) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        service = start(f"--port={taken.getsockname()[1]}", **environ_of(one_master))
        assert service.code() == 1
    assert "cannot listen on port" in service.text


REQUIRED = {"local_hostname": "h", "metadata_server": "P2PHANDSHAKE", "master_server_address": "m:1"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("local_hostname", ""),
        ("local_hostname", 7),
        ("metadata_server", None),
        ("master_server_address", []),
        ("global_segment_size", "x"),
        ("global_segment_size", -1),
        ("global_segment_size", [1]),
        ("global_segment_size", 1e400),
        ("local_buffer_size", {}),
        ("device_name", ["mlx5_0"]),
        ("enable_ssd_offload", "maybe"),
        ("ssd_offload_path", {}),
        ("tenant_id", []),
        ("enable_client_http_server", "maybe"),
        ("client_http_port", "http"),
        ("client_http_port", 0),
        ("client_http_port", None),
    ],
)
def test_a_bad_field_is_named(tmp_path: Path, field: str, value: Any) -> None:
    file = tmp_path / "mooncake.json"
    file.write_text(json.dumps({**REQUIRED, field: value}))
    with pytest.raises(ValueError, match=field):
        MooncakeConfig.from_file(str(file))
    with pytest.raises(ValueError, match=field):
        override(MooncakeConfig("h", "P2PHANDSHAKE", 0, 0, "tcp", "", "m:1"), {field: value})
