"""The forms of `setup`, what they read from the environment, and where they connect."""

from __future__ import annotations

import logging
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import MIB

from cluster import Cluster, free_ports, until
from mooncake._addresses import NoRoute, parse_masters, route_to, split_host_port
from mooncake.engine import TransferEngine
from mooncake.mooncake_config import MooncakeConfig
from mooncake.store import MooncakeDistributedStore, link
from mooncake.store.settings import InvalidSettings, Settings, from_arguments, from_mapping

Environ = dict[str, str]


def positional(environ: Environ | None = None, *, host: str = "localhost", master: str = "m:1", **more: Any) -> Settings:
    return from_arguments(environ or {}, host, "", 16 * MIB, 16 * MIB, master_server_addr=master, **more)


def mapping(environ: Environ | None = None, **config: Any) -> Settings:
    return from_mapping(environ or {}, {"local_hostname": "localhost", **config})


# Arguments of setup.


@pytest.mark.parametrize(
    ("text", "masters"),
    [
        ("h1:1", "h1:1"),
        ("h1:1,h2:2 , h3", "h1:1,h2:2,h3:50051"),
        ("10.0.0.1", "10.0.0.1:50051"),
        ("fe80::1", "[fe80::1]:50051"),
        ("[fe80::1]:7", "[fe80::1]:7"),
        ("etcd://a:2379;b:2379;c", "a:50051,b:50051,c:50051"),
        ("etcd://a:2379,b:2379", "a:50051,b:50051"),
    ],
)
def test_masters(text: str, masters: str) -> None:
    assert parse_masters(text) == masters
    assert positional(master=text).masters == masters


def test_masters_by_an_unknown_service_name_the_variable_to_set() -> None:
    with pytest.raises(InvalidSettings, match="MC_MASTERS"):
        positional(master="redis://a:6379")


def test_masters_of_the_environment_win_over_the_argument() -> None:
    assert positional({"MC_MASTERS": "x:9"}, master="etcd://a;b").masters == "x:9"
    assert positional({"MOONCAKE_MASTER": "y:9"}, master="").masters == "y:9"
    assert positional({"MOONCAKE_MASTER": "y:9"}, master="m:1").masters == "m:1"
    assert mapping().masters == "127.0.0.1:50051"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("host", ("host", None)),
        ("host:1", ("host", 1)),
        ("fe80::1", ("fe80::1", None)),
        ("[fe80::1]", ("fe80::1", None)),
        ("[fe80::1]:1", ("fe80::1", 1)),
    ],
)
def test_host_names(text: str, parts: tuple[str, int | None]) -> None:
    assert split_host_port(text) == parts


@pytest.mark.parametrize(
    ("size", "count"),
    [
        ("16mb", 16 * MIB),
        ("16 MB", 16 * MIB),
        ("4gb", 4096 * MIB),
        ("1.5g", 1536 * MIB),
        ("0", 0),
        (MIB, MIB),
        ("1048576", MIB),
    ],
)
def test_sizes(size: str | int, count: int) -> None:
    assert mapping(global_segment_size=size).segment == count


@pytest.mark.parametrize("size", ["50%", "", "mb", "-1", -1, "1023kb", float("inf"), float("nan")])
def test_sizes_that_are_none(size: str | float) -> None:
    with pytest.raises(InvalidSettings, match="global_segment_size"):
        mapping(global_segment_size=size)


def test_an_argument_of_a_wrong_type_is_named() -> None:
    store = MooncakeDistributedStore()
    arguments: list[Any] = ["localhost", "", MIB, MIB, "tcp", "", "m:1", None, False, "", "default"]
    names = ["local_hostname", "", "global_segment_size", "local_buffer_size", "protocol", "rdma_devices", "master_server_addr"]
    for place, name in [*enumerate(names), (10, "tenant_id")]:
        if name:
            with pytest.raises(TypeError, match=rf"^setup\(\): {name}"):
                store.setup(*arguments[:place], None, *arguments[place + 1 :])


def test_the_local_cache_has_the_size_of_the_local_buffer_or_of_the_variable() -> None:
    assert positional().cache == 16 * MIB
    assert positional({"MC_LOCAL_CACHE": "1gb"}).cache == 1024 * MIB
    assert mapping({"MC_LOCAL_CACHE": "1gb"}, local_buffer_size=0).local_buffer == 0


def test_put_deadlines() -> None:
    assert positional().put_seconds == 10
    assert mapping().put_seconds == 0.9
    assert mapping({"MC_PUT_TIMEOUT": "2.5"}).put_seconds == 2.5
    with pytest.raises(InvalidSettings, match="MC_PUT_TIMEOUT"):
        mapping({"MC_PUT_TIMEOUT": "soon"})


def test_spellings_of_lmcache() -> None:
    settings = mapping(master_server_address="m:1", device_name="mlx5_0", protocol="rdma")
    assert settings.masters == "m:1"
    assert settings.rdma_devices == "mlx5_0"


def test_the_default_tenant_has_no_name() -> None:
    assert positional().tenant == ""
    assert positional(tenant_id="team").tenant == "team"
    assert mapping(tenant_id="team").tenant == "team"


def test_devices_belong_to_rdma() -> None:
    assert positional(protocol="tcp", rdma_devices="ibp6s0").rdma_devices == ""
    assert positional(protocol="rdma", rdma_devices="auto-discovery").rdma_devices == ""
    assert positional(protocol="tcp").transports == "shm"
    assert positional({"MC_TRANSPORT": "tcp"}, protocol="rdma").transports == "tcp"
    assert positional(protocol="rdma").transports == "auto"


def test_an_unknown_argument_is_named() -> None:
    store = MooncakeDistributedStore()
    with pytest.raises(TypeError, match=r"^setup\(\).*'bogus'"):
        store.setup("localhost", "", 0, 0, "tcp", "", "m:1", bogus=1)
    assert "enable_ssd_offload" in (MooncakeDistributedStore.setup.__doc__ or "")


def test_what_has_no_effect_is_said(caplog: pytest.LogCaptureFixture) -> None:
    positional(enable_ssd_offload=True)
    mapping(enable_ssd_offload="true")
    assert [record.getMessage().split()[0] for record in caplog.records] == ["enable_ssd_offload"] * 2


@pytest.mark.parametrize(
    "config",
    [
        {"metadata_server": "P2PHANDSHAKE"},
        {"local_hostname": "localhost", "global_segment_size": "50%"},
        {"local_hostname": "localhost", "enable_embedded_master": "true"},
        {"local_hostname": "localhost", "master_server_addr": "zk://a"},
    ],
)
def test_a_configuration_that_can_not_be_used(config: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    assert MooncakeDistributedStore().setup(config) == -600
    assert caplog.records[-1].levelno == logging.ERROR


# Where it connects.


def close(store: MooncakeDistributedStore) -> None:
    assert store.close() == 0


def test_forms(one_master: Cluster, key: str) -> None:
    arguments = {
        "local_hostname": "localhost",
        "metadata_server": "http://127.0.0.1:8080/metadata",
        "global_segment_size": 16 * MIB,
        "local_buffer_size": 16 * MIB,
        "protocol": "tcp",
        "rdma_devices": "",
        "master_server_addr": one_master.addresses,
    }
    for number, call in enumerate(
        [
            lambda store: store.setup(*arguments.values()),
            lambda store: store.setup(*arguments.values(), None, tenant_id="default"),
            lambda store: store.setup(**arguments, engine=None),
            lambda store: store.setup({name: str(value) for name, value in arguments.items()}),
            lambda store: store.setup(config=arguments),
        ]
    ):
        store = MooncakeDistributedStore()
        assert call(store) == 0
        assert store.put(f"{key}-{number}", b"value") == 0
        assert store.get(f"{key}-{number}") == b"value"
        close(store)


def test_the_variable_moves_a_deployment(one_master: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MC_MASTERS", one_master.addresses)
    store = MooncakeDistributedStore()
    assert store.setup("localhost", "", 0, 16 * MIB, "tcp", "", "etcd://elsewhere:2379") == 0
    close(store)


def test_a_configuration_of_the_environment(one_master: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("MOONCAKE_MASTER", one_master.addresses)
    monkeypatch.setenv("MOONCAKE_GLOBAL_SEGMENT_SIZE", "2mb")
    config = MooncakeConfig.load_from_env()
    assert (config.global_segment_size, config.local_hostname, config.protocol) == (2 * MIB, "localhost", "tcp")
    path = tmp_path / "mooncake.json"
    path.write_text(
        f'{{"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE", "protocol": "RDMA",'
        f' "master_server_address": "{one_master.addresses}", "global_segment_size": "2mb"}}'
    )
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", str(path))
    config = MooncakeConfig.load_from_env()
    assert config.protocol == "rdma"
    store = MooncakeDistributedStore()
    assert store.setup(config.__dict__) == 0
    close(store)


def test_tenants_are_apart(one_master: Cluster, key: str) -> None:
    stores = [MooncakeDistributedStore() for _ in range(3)]
    for store, tenant in zip(stores, ["default", "default", "team"], strict=True):
        arguments = ("localhost", "", 4 * MIB, 4 * MIB, "tcp", "", one_master.addresses)
        assert store.setup(*arguments, tenant_id=tenant) == 0
    assert stores[0].put(key, b"value") == 0
    assert [store.is_exist(key) for store in stores] == [1, 1, 0]
    for store in stores:
        close(store)


def test_eight_small_stores_in_one_process(one_master: Cluster, key: str) -> None:
    stores = [MooncakeDistributedStore() for _ in range(8)]
    for store in stores:
        assert store.setup("localhost", "", MIB, MIB, "tcp", "", one_master.addresses) == 0
    names = {store.get_hostname() for store in stores}
    assert len(names) == 8
    assert names <= set(one_master.mounted())
    assert all(store.put(f"{key}-{number}", bytes(1000)) == 0 for number, store in enumerate(stores))
    assert stores[0].batch_is_exist([f"{key}-{number}" for number in range(8)]) == [1] * 8
    for store in stores:
        close(store)
    assert not names & set(one_master.mounted())


def test_dropping_the_object_unmounts(one_master: Cluster) -> None:
    store = MooncakeDistributedStore()
    assert store.setup("localhost", "", MIB, MIB, "tcp", "", one_master.addresses) == 0
    name = store.get_hostname()
    assert name in one_master.mounted()
    del store
    assert name not in one_master.mounted()


def test_a_host_name_with_a_port(one_master: Cluster) -> None:
    # SGLang passes the address of its transfer engine, which has the port.
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == 0
    port = engine.get_rpc_port()
    with socket.socket() as probe, pytest.raises(OSError):
        probe.bind(("", port))
    store = MooncakeDistributedStore()
    code = store.setup(f"127.0.0.1:{port}", "P2PHANDSHAKE", 16 * MIB, 16 * MIB, "rdma", "", one_master.addresses, engine.get_engine())
    assert code == 0
    host, _, data_port = store.get_hostname().partition(":")
    assert host == "127.0.0.1"
    assert int(data_port) != port
    close(store)


@pytest.mark.skipif(any(Path("/sys/class/infiniband").glob("*")), reason="this host has RDMA")
def test_rdma_on_a_host_without_it_is_said_once(
    one_master: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setattr("mooncake.store.link._rdma_warned", False)
    for number in range(2):
        store = MooncakeDistributedStore()
        arguments = ("localhost", "", 4 * MIB, 4 * MIB, "rdma", "mlx5_0", one_master.addresses)
        assert store.setup(*arguments) == 0
        assert store.put(f"{key}-{number}", b"value") == 0
        close(store)
    assert sum("rdma" in record.getMessage().lower() for record in caplog.records) == 1


def test_ports_come_from_the_range(one_master: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    monkeypatch.setenv("MC_STORE_CLIENT_MIN_PORT", str(port))
    monkeypatch.setenv("MC_STORE_CLIENT_MAX_PORT", str(port))
    arguments = ("localhost", "", MIB, MIB, "tcp", "", one_master.addresses)
    first, second = MooncakeDistributedStore(), MooncakeDistributedStore()
    assert first.setup(*arguments) == 0
    assert first.get_hostname() == f"localhost:{port}"
    assert second.setup(*arguments) == -600
    close(first)
    assert second.setup(*arguments) == 0
    close(second)


def test_a_second_setup_replaces_the_first(one_master: Cluster, key: str) -> None:
    store = MooncakeDistributedStore()
    arguments = ("localhost", "", MIB, MIB, "tcp", "", one_master.addresses)
    assert store.setup(*arguments) == 0
    name = store.get_hostname()
    assert store.setup(*arguments) == 0
    assert name not in one_master.mounted()
    close(store)


def test_segments_after_setup(one_master: Cluster) -> None:
    store = MooncakeDistributedStore()
    assert store.setup("localhost", "", 0, MIB, "tcp", "", one_master.addresses) == 0
    added = [store.allocate_and_mount_segment(2 * MIB) for _ in range(2)]
    assert [one["ret"] for one in added] == [0, 0]
    assert store.get_hostname() in one_master.mounted()
    for one in added:
        assert store.unmount_and_free_segment(one["segment_ids"]) == 0
        assert store.unmount_segment(one["segment_ids"]) == -600
    close(store)


def test_a_segment_that_was_refused_is_not_mounted_later(own_master: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MooncakeDistributedStore()
    assert store.setup("localhost", "", MIB, MIB, "tcp", "", own_master.addresses) == 0
    master = own_master.masters[0]
    master.pause()
    with monkeypatch.context() as impatient:
        impatient.setattr("mooncake.store.link.SETUP_SECONDS", 0.1)
        assert store.allocate_and_mount_segment(2 * MIB) == {"ret": -901, "segment_ids": [], "allocated_size": 0}
    master.resume()
    # The masters are told of all segments at once.
    assert store.allocate_and_mount_segment(4 * MIB)["ret"] == 0

    def capacity() -> int:
        return int(master.status()["stores"][0]["capacity_bytes"])

    until("the pool has the other two alone", lambda: capacity() == 5 * MIB)
    close(store)


def test_the_waits_of_a_setup_end_within_ten_seconds_together(one_master: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    now, left = 0.0, []

    def connect(settings: Settings, store: Any, deadline: float) -> Any:
        nonlocal now
        left.append(deadline - now)
        now += 8
        return connect_at_once(settings, store, time.monotonic() + 60)

    def start_store(settings: Settings, segments: list[int]) -> Any:
        nonlocal now
        now += 100
        return start_at_once(settings, segments)

    connect_at_once, start_at_once = link._connect, link._start_store
    monkeypatch.setattr(link, "_connect", connect)
    monkeypatch.setattr(link, "_start_store", start_store)
    monkeypatch.setattr(link, "time", SimpleNamespace(monotonic=lambda: now))
    store = MooncakeDistributedStore()
    store.setup("localhost", "", MIB, MIB, "tcp", "", one_master.addresses)
    # Masters took 8 s for the first answer. The memory of the segment took longer, which is no wait for them.
    assert left == [9.5, 1.5]
    monkeypatch.undo()
    close(store)


def test_the_address_of_this_host_is_the_one_that_a_remote_master_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    assert route_to("127.0.0.1:1,[::1]:1,localhost:1") is None, "all are on this host"
    # fe80::1 without an interface has no route.
    with pytest.raises(NoRoute, match="no route"):
        route_to("[fe80::1]:50051")
    monkeypatch.setattr("mooncake._addresses._resolve", lambda host, port: [(host, port)])
    routed = {("192.0.2.1", 1): "192.0.2.9"}

    def source_of(address: tuple[str, int]) -> str:
        if address not in routed:
            raise OSError("Network is unreachable")
        return routed[address]

    monkeypatch.setattr("mooncake._addresses.source_of", source_of)
    assert route_to("198.51.100.1:1,192.0.2.1:1") == "192.0.2.9", "the first one that has a route"
