"""The measured return values of upstream, case by case, and where ours are decided to differ."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from conftest import MIB, Open

from cluster import Cluster, free_ports
from mooncake.store import BufferHandle, MooncakeDistributedStore, ReplicaStatus, ReplicateConfig, SoftPinAction

PAGE = 4096


class Buffer:
    """Memory with an address."""

    def __init__(self, size: int) -> None:
        self.array = np.zeros(size, dtype=np.uint8)
        self.address: int = self.array.ctypes.data

    def fill(self, byte: int) -> bytes:
        self.array[:] = byte
        return bytes(self.array)

    def __bytes__(self) -> bytes:
        return bytes(self.array)


@pytest.fixture
def page() -> Buffer:
    return Buffer(PAGE)


def assert_ints(results: Any, expected: list[int]) -> None:
    """Engines check the exact types."""
    assert type(results) is list
    assert [type(result) for result in results] == [int] * len(expected)
    assert results == expected


def test_put_and_get(store: Any, key: str) -> None:
    assert store.put(key, b"hello") == 0
    assert store.put(key, b"other") == 0
    value = store.get(key)
    assert value == b"hello"
    assert type(value) is bytes


def test_upsert_replaces(store: Any, key: str) -> None:
    assert store.upsert(key, b"hello") == 0
    assert store.upsert(key, b"WORLD!") == 0
    assert store.get(key) == b"WORLD!"


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview, lambda value: np.frombuffer(value, dtype=np.uint8)])
def test_put_takes_buffers(store: Any, key: str, make: Any) -> None:
    assert store.put(key, make(b"abc")) == 0
    assert store.get(key) == b"abc"


def test_put_of_nothing_is_invalid(store: Any, key: str) -> None:
    assert store.put(key, b"") == -600
    assert store.put("", b"value") == -600


def test_put_of_text_is_a_type_error(store: Any, key: str) -> None:
    with pytest.raises(TypeError):
        store.put(key, "text")


def test_no_configuration_is_the_default_one(store: Any, key: str, page: Buffer) -> None:
    # Decided: upstream raises TypeError for None.
    assert store.put(key, b"value", None) == 0
    assert store.batch_put_from([f"{key}-b"], [page.address], [PAGE], None) == [0]
    assert store.batch_put_from_multi_buffers([f"{key}-m"], [[page.address]], [[PAGE]], None) == [0]


def test_misses(store: Any, key: str, page: Buffer) -> None:
    assert store.get(key) == b""
    assert store.get_batch([key]) == [b""]
    assert store.get_buffer(key) is None
    assert store.batch_get_buffer([key]) == [None]
    assert store.get_size(key) == -704
    assert store.is_exist(key) == 0
    assert store.get_into(key, page.address, PAGE) == -704
    assert store.get_replica_desc(key) == []
    assert store.batch_get_replica_desc([key]) == {}
    assert store.remove(key) == -704


def test_get_batch(store: Any, key: str) -> None:
    store.put(key, b"hit")
    assert store.get_batch([key, f"{key}-missing"]) == [b"hit", b""]


def test_buffer_handles(store: Any, key: str) -> None:
    store.put(key, b"WORLD!")
    handle, missing = store.batch_get_buffer([key, f"{key}-missing"])
    assert missing is None
    assert isinstance(handle, BufferHandle)
    assert len(handle) == handle.size() == 6
    assert bytes(handle) == b"WORLD!"
    assert ctypes.string_at(handle.ptr(), 6) == b"WORLD!"
    assert not memoryview(handle).readonly


def test_a_buffer_handle_is_the_callers_alone(store: Any, key: str) -> None:
    store.put(key, b"WORLD!")
    memoryview(store.get_buffer(key)).cast("B")[0] = 0
    assert store.get(key) == b"WORLD!"


def test_existence(store: Any, key: str) -> None:
    store.put(key, b"value")
    assert store.get_size(key) == 5
    assert_ints(store.batch_is_exist([key, f"{key}-missing"]), [1, 0])
    assert_ints(store.batch_is_exist([]), [])
    assert_ints(store.batch_is_exist((key,)), [1])
    assert store.is_exist("") == 0
    assert type(store.is_exist(key)) is int


def test_probes(store: Any, key: str) -> None:
    store.put(key, b"value")
    assert store.probe_key(key) == 1
    assert_ints(store.batch_probe_key([key, f"{key}-missing"]), [1, 0])
    assert_ints(store.batch_probe_key([key, key, f"{key}-missing"], "LastHitOnly", 2), [1, 1, 0])


def test_memory_needs_no_registration(store: Any, key: str, page: Buffer) -> None:
    value = page.fill(7)
    assert store.put_from(key, page.address, PAGE) == 0
    page.fill(0)
    assert store.get_into(key, page.address, PAGE) == PAGE
    assert bytes(page) == value


def test_registration(store: Any) -> None:
    memory = Buffer(64 * PAGE)
    assert store.register_buffer(memory.address, 64 * PAGE) == 0
    assert store.register_buffer(memory.address, 64 * PAGE) == -600
    assert store.register_buffer(memory.address + PAGE, PAGE) == -600
    assert store.register_buffer(memory.address, 0) == -600
    assert store.register_buffer(0, PAGE) == -600
    # As in 0.3.14.
    assert store.unregister_buffer(memory.address + 1) == -12
    assert store.unregister_buffer(memory.address) == 0
    assert store.unregister_buffer(memory.address) == -12


def test_put_from(store: Any, key: str, page: Buffer) -> None:
    assert store.put_from(key, page.address, PAGE) == 0
    assert store.put_from(key, page.address, PAGE) == 0
    # Decided: upstream answers 0 and stores nothing.
    assert store.put_from(f"{key}-nothing", page.address, 0) == -600


def test_get_into_needs_room(store: Any, key: str, page: Buffer) -> None:
    larger = Buffer(2 * PAGE)
    store.put_from(key, page.address, PAGE)
    assert store.get_into(key, larger.address, 2 * PAGE) == PAGE
    assert store.get_into(key, page.address, PAGE - 1) == -600


def test_get_into_past_the_registered_end(store: Any, key: str) -> None:
    memory = Buffer(2 * PAGE)
    assert store.register_buffer(memory.address, PAGE) == 0
    store.put(key, bytes(PAGE))
    assert store.get_into(key, memory.address + PAGE // 2, PAGE) == PAGE
    assert store.unregister_buffer(memory.address) == 0


def test_batch_put_from(store: Any, key: str, page: Buffer) -> None:
    address = page.address
    assert_ints(store.batch_put_from([f"{key}-1", f"{key}-2"], [address] * 2, [PAGE] * 2), [0, 0])
    assert_ints(store.batch_put_from([f"{key}-1", f"{key}-3"], [address] * 2, [PAGE] * 2), [0, 0])
    assert_ints(store.batch_put_from([f"{key}-4"] * 2, [address] * 2, [PAGE] * 2), [0, 0])
    assert_ints(store.batch_put_from([f"{key}-5", f"{key}-6"], [address] * 2, [0, PAGE]), [-600, 0])
    assert_ints(store.batch_put_from([], [], []), [])
    assert_ints(store.batch_put_from([f"{key}-7", f"{key}-8"], [address], [PAGE]), [-600, -600])
    numbers = np.array([address], dtype=np.uint64), np.array([PAGE], dtype=np.int64)
    assert_ints(store.batch_put_from([f"{key}-9"], *map(list, numbers)), [0])


def test_batch_get_into(store: Any, key: str, page: Buffer) -> None:
    store.put_from(key, page.address, PAGE)
    a, b, c = Buffer(PAGE), Buffer(PAGE), Buffer(2 * PAGE)
    keys = [key, f"{key}-missing", key]
    assert_ints(store.batch_get_into(keys, [a.address, b.address, c.address], [PAGE, PAGE, PAGE]), [PAGE, -704, PAGE])
    assert_ints(store.batch_get_into([key, key], [a.address, c.address], [PAGE - 1, 2 * PAGE]), [-600, PAGE])
    assert_ints(store.batch_get_into([], [], []), [])
    assert_ints(store.batch_get_into([key, key], [a.address], [PAGE]), [-600, -600])
    # Both into the same memory: allowed, and the bytes are the same.
    assert_ints(store.batch_get_into([key, key], [a.address] * 2, [PAGE] * 2), [PAGE, PAGE])


def test_multi_buffers(store: Any, key: str) -> None:
    a, b = Buffer(100), Buffer(200)
    value = a.fill(1) + b.fill(2)
    pointers, sizes = [a.address, b.address], [100, 200]
    keys = [f"{key}-1", f"{key}-2"]
    assert_ints(store.batch_put_from_multi_buffers(keys, [pointers] * 2, [sizes] * 2), [0, 0])
    assert_ints(store.batch_put_from_multi_buffers(keys[:1], [pointers], [sizes]), [0])
    assert_ints(store.batch_put_from_multi_buffers([f"{key}-3"], [pointers], [sizes], ReplicateConfig()), [0])
    missing = [f"{key}-1", f"{key}-missing"]
    assert_ints(store.batch_get_into_multi_buffers(missing, [pointers] * 2, [sizes] * 2), [300, -704])
    c = Buffer(400)
    assert_ints(store.batch_get_into_multi_buffers(keys[:1], [[c.address, c.address + 50]], [[50, 250]]), [300])
    assert bytes(c)[:300] == value
    # Decided: upstream answers -800 for room that is left over.
    assert_ints(store.batch_get_into_multi_buffers(keys[:1], [[c.address]], [[400]]), [-600])
    assert_ints(store.batch_get_into_multi_buffers(keys[:1], [[c.address]], [[299]]), [-600])
    prefer = store.batch_get_into_multi_buffers(keys[:1], [pointers], [sizes], prefer_alloc_in_same_node=True)
    assert_ints(prefer, [300])
    for uneven in ([pointers, pointers[:1]], [sizes, sizes]), ([pointers] * 2, [sizes, [1 << 63, 1]]):
        assert_ints(store.batch_put_from_multi_buffers(keys, *uneven), [-600, -600])
        assert_ints(store.batch_get_into_multi_buffers(keys, *uneven), [-600, -600])


def test_parts(store: Any, key: str) -> None:
    assert store.put_parts(key, b"meta", memoryview(b"data")) == 0
    assert store.get(key) == b"metadata"
    assert store.put_parts(key, b"other") == 0
    assert store.put_parts(f"{key}-c", b"a", b"b", config=ReplicateConfig()) == 0
    assert store.upsert_parts(key, b"new", b"er") == 0
    assert store.get(key) == b"newer"


def test_put_batch(store: Any, key: str) -> None:
    assert store.put_batch([f"{key}-1", f"{key}-2"], [b"1", b"2"]) == 0
    assert store.put_batch([f"{key}-2", f"{key}-3"], [b"x", b"3"]) == 0
    assert store.put_batch([f"{key}-4", f"{key}-5"], [b"x"]) == -600
    assert store.get_batch([f"{key}-{i}" for i in range(1, 4)]) == [b"1", b"2", b"3"]
    assert store.upsert_batch([f"{key}-1"], [b"one"]) == 0
    assert store.get(f"{key}-1") == b"one"


def test_put_with_metadata(store: Any, key: str) -> None:
    header, body = Buffer(10), Buffer(20)
    value = header.fill(1) + body.fill(2)
    assert store.put_from_with_metadata(key, body.address, header.address, 20, 10) == 0
    assert store.get(key) == value


@pytest.mark.parametrize("field", ["group_ids", "session_ids"])
def test_lists_of_a_configuration_have_one_entry_for_each_key(store: Any, key: str, page: Buffer, field: str) -> None:
    config = ReplicateConfig()
    setattr(config, field, ["a", "b"])
    keys = [f"{key}-1", f"{key}-2"]
    assert_ints(store.batch_put_from(keys, [page.address] * 2, [PAGE] * 2, config), [0, 0])
    assert_ints(store.batch_put_from([*keys, f"{key}-3"], [page.address] * 3, [PAGE] * 3, config), [-600] * 3)
    assert store.put(f"{key}-4", b"x", config) == -600
    assert store.is_exist(f"{key}-3") == 0


def test_long_group_names_are_hashed(store: Any, key: str, page: Buffer) -> None:
    config = ReplicateConfig()
    config.group_ids = ["g" * 5000]
    assert_ints(store.batch_put_from([key], [page.address], [PAGE], config), [0])


@pytest.mark.parametrize(
    "change",
    [
        {"replica_num": 2},
        {"with_hard_pin": True},
        {"soft_pin_action": SoftPinAction.ENABLE},
        {"soft_pin_action": SoftPinAction.ENABLE, "soft_pin_ttl_ms": 1000},
        {"with_soft_pin": True},
        {"preferred_segment": "unknown:1"},
        {"preferred_segments": ["unknown:1", "unknown:2"]},
        {"prefer_alloc_in_same_node": True},
    ],
)
def test_hints_of_a_configuration(store: Any, key: str, change: dict[str, Any]) -> None:
    config = ReplicateConfig()
    for field, value in change.items():
        setattr(config, field, value)
    assert store.put(key, b"value", config) == 0
    assert store.get(key) == b"value"
    assert store.remove(key, True) == 0


def test_own_segment_is_preferred(store: Any, key: str) -> None:
    config = ReplicateConfig()
    config.preferred_segment = store.get_hostname()
    assert store.put(key, b"value", config) == 0
    (replica,) = store.get_replica_desc(key)
    descriptor = replica.get_memory_descriptor().buffer_descriptor
    assert descriptor.transport_endpoint == store.get_hostname()
    assert descriptor.size == 5


@pytest.mark.parametrize("action", [SoftPinAction.PRESERVE, SoftPinAction.DISABLE])
def test_a_soft_pin_time_needs_a_soft_pin(store: Any, key: str, action: SoftPinAction) -> None:
    config = ReplicateConfig()
    config.soft_pin_action, config.soft_pin_ttl_ms = action, 1000
    assert store.upsert(key, b"value", config) == -600


def test_replica_descriptors(store: Any, key: str) -> None:
    store.put(key, bytes(PAGE))
    described = store.batch_get_replica_desc([key, f"{key}-missing"])
    assert list(described) == [key]
    (replica,) = described[key]
    assert replica.status is ReplicaStatus.COMPLETE
    assert replica.is_memory_replica()
    assert not replica.is_disk_replica()
    assert not replica.is_local_disk_replica()


def test_get_sessions(store: Any, key: str) -> None:
    value = bytes(range(256)) * 16
    store.put(key, value)
    target = Buffer(150)
    pieces = [[target.address, target.address + 100]], [[100, 50]], [[10, 1000]]
    assert_ints(store.batch_get_session_start([key, f"{key}-missing"]), [0, -704])
    assert_ints(store.batch_get_into_multi_buffer_ranges([key], *pieces), [150])
    assert bytes(target) == value[10:110] + value[1000:1050]
    assert_ints(store.batch_get_into_multi_buffer_ranges([key], [[target.address]], [[100]], [[len(value) - 99]]), [-600])
    assert store.batch_get_session_end([key]) == 0
    assert_ints(store.batch_get_into_multi_buffer_ranges([key], *pieces), [-600])
    assert store.batch_get_session_end([key]) == 0


def test_get_sessions_nest(store: Any, key: str, page: Buffer) -> None:
    store.put(key, bytes(PAGE))
    store.batch_get_session_start([key])
    store.batch_get_session_start([key])
    store.batch_get_session_end([key])
    assert_ints(store.batch_get_into_multi_buffer_ranges([key], [[page.address]], [[10]], [[0]]), [10])
    store.batch_get_session_end([key])
    assert_ints(store.batch_get_into_multi_buffer_ranges([key], [[page.address]], [[10]], [[0]]), [-600])


def test_put_sessions(store: Any, key: str, page: Buffer) -> None:
    value = page.fill(9)
    half = PAGE // 2
    assert_ints(store.batch_put_session_start([key], [PAGE]), [0])
    assert store.is_exist(key) == 0
    assert store.get_size(key) == -703
    parts = [[page.address + half, page.address]], [[half, half]], [[half, 0]]
    assert_ints(store.batch_put_from_multi_buffer_ranges([key], *parts), [PAGE])
    assert_ints(store.batch_put_session_end([key]), [0])
    assert store.is_exist(key) == 1
    assert store.get(key) == value
    assert_ints(store.batch_put_session_end([key]), [-600])
    assert_ints(store.batch_put_session_start([key], [PAGE]), [-705])


def test_a_revoked_put_session_leaves_nothing(store: Any, key: str) -> None:
    assert_ints(store.batch_put_session_start([key], [PAGE]), [0])
    assert_ints(store.batch_put_session_revoke([key]), [0])
    assert store.get_size(key) == -704


def test_ranges(store: Any, key: str) -> None:
    one, two = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", b"abcdefghijklmnopqrstuvwxyz0123456789"
    store.put(f"{key}-1", one)
    store.put(f"{key}-2", two)
    a, b = Buffer(32), Buffer(32)
    for buffer in (a, b):
        assert store.register_buffer(buffer.address, 32) == 0
    arguments = (
        [a.address, b.address],
        [[f"{key}-1", f"{key}-2"], [f"{key}-2", f"{key}-1"]],
        [[[0, 20], [8]], [[4], [16]]],
        [[[1, 30], [2]], [[0], [10]]],
        [[[4, 3], [5]], [[6], [4]]],
    )
    expected = [[[4, 3], [5]], [[6], [4]]]
    assert store.get_into_ranges(*arguments) == expected
    assert bytes(a)[0:4] == one[1:5]
    assert bytes(a)[8:13] == two[2:7]
    assert bytes(a)[20:23] == one[30:33]
    assert bytes(b)[4:10] == two[0:6]
    assert bytes(b)[16:20] == one[10:14]

    snapshot = store.prepare_get_into_ranges_snapshot([f"{key}-1", f"{key}-2", f"{key}-missing"])
    assert store.get_into_ranges_from_snapshot(snapshot, *arguments) == expected
    missing = [a.address], [[f"{key}-missing", f"{key}-1"]], [[[0], [8]]], [[[0], [0]]], [[[4], [4]]]
    assert store.get_into_ranges(*missing) == [[[-704], [4]]]
    assert store.get_into_ranges_from_snapshot(snapshot, *missing) == [[[-704], [4]]]

    past_the_object = [a.address], [[f"{key}-1"]], [[[0, 4]]], [[[len(one) - 1, 0]]], [[[4, 4]]]
    assert store.get_into_ranges(*past_the_object) == [[[-600, 4]]]
    past_the_buffer = [a.address], [[f"{key}-1"]], [[[31]]], [[[0]]], [[[4]]]
    assert store.get_into_ranges(*past_the_buffer) == [[[-600]]]
    unlike = [a.address], [[f"{key}-1", f"{key}-2"]], [[[0], []]], [[[0, 1], []]], [[[], []]]
    assert store.get_into_ranges(*unlike) == [[[-600], []]]
    for buffer in (a, b):
        assert store.unregister_buffer(buffer.address) == 0


def test_removal(store: Any, key: str) -> None:
    store.put(key, b"value")
    assert store.remove(key) == 0
    store.put(key, b"value")
    store.get(key)
    # The copy in this process answers reads without asking for a lease; the check asks.
    assert store.is_exist(key) == 1
    assert store.remove(key) == -706
    assert store.remove(key, True) == 0
    assert store.remove(key) == -704


def test_batch_removal(store: Any, key: str) -> None:
    store.put(f"{key}-leased", b"value")
    store.put(f"{key}-unread", b"value")
    store.is_exist(f"{key}-leased")
    keys = [f"{key}-leased", f"{key}-missing", f"{key}-unread"]
    assert_ints(store.batch_remove(keys), [-706, -704, 0])
    assert_ints(store.batch_remove(keys[:1], force=True), [0])


def test_removal_by_pattern_and_of_all(own_master: Cluster, open_store: Open, key: str) -> None:
    store = open_store(own_master)
    for index in range(4):
        store.put(f"{key}-a{index}", b"value")
        store.put(f"{key}-b{index}", b"value")
    store.is_exist(f"{key}-a0")
    assert store.remove_by_regex(f"^{key}-a") == 3
    assert store.remove_by_regex("(") == -600
    assert store.remove_all() == 4
    assert store.remove_all(True) == 1
    assert store.remove_all() == 0


def test_replica_clear(store: Any, key: str) -> None:
    for name in ("a", "b", "leased"):
        store.put(f"{key}-{name}", b"value")
    store.is_exist(f"{key}-leased")
    assert store.batch_replica_clear([f"{key}-a", f"{key}-leased", f"{key}-missing"]) == [f"{key}-a"]
    assert store.batch_replica_clear([f"{key}-b"], "nowhere:1") == []
    assert store.batch_replica_clear([f"{key}-b"], store.get_hostname()) == [f"{key}-b"]
    assert store.batch_replica_clear([]) == []


def test_a_full_pool(own_master: Cluster, open_store: Open, key: str) -> None:
    store = open_store(own_master, segment=64 * MIB)
    config = ReplicateConfig()
    config.with_hard_pin = True
    block = Buffer(8 * MIB)
    results = store.batch_put_from([f"{key}-{i}" for i in range(12)], [block.address] * 12, [8 * MIB] * 12, config)
    assert set(results) == {0, -200}
    # Small objects may still fit.
    assert store.put(f"{key}-small", b"value") in (0, -200)


def test_an_object_larger_than_the_segment(own_master: Cluster, open_store: Open, key: str) -> None:
    store = open_store(own_master, segment=4 * MIB)
    # Decided: upstream answers -600, after which vLLM gives its client up.
    assert store.put(key, bytes(5 * MIB)) == -200


def test_no_segment(own_master: Cluster, open_store: Open, key: str) -> None:
    store = open_store(own_master, segment=0)
    assert store.put(key, b"value") == -200
    assert store.is_exist(key) == 0


def test_no_local_buffer(one_master: Cluster, open_store: Open, key: str, page: Buffer) -> None:
    store = open_store(one_master, segment=16 * MIB, local_buffer=0)
    assert store.put(key, b"value") == -600
    assert store.is_exist(key) == 0
    assert store.put_from(key, page.address, PAGE) == 0
    assert store.get_into(key, page.address, PAGE) == PAGE


def test_the_life_of_a_store(one_master: Cluster, key: str, page: Buffer) -> None:
    store = MooncakeDistributedStore()
    assert store.health_check() == 1
    assert store.close() == 0
    assert store.put(key, b"value") == -600
    assert store.get(key) == b""
    assert_ints(store.batch_is_exist([key, key]), [0, 0])
    assert_ints(store.batch_get_into([key], [page.address], [PAGE]), [-600])
    assert store.setup("localhost", "", 16 * MIB, 16 * MIB, "tcp", "", one_master.addresses) == 0
    assert store.health_check() == 0
    name, _, port = store.get_hostname().partition(":")
    assert name == "localhost"
    assert 12300 <= int(port) <= 14300
    assert store.close() == 0
    assert store.close() == 0
    assert store.health_check() == 1
    assert store.put(key, b"value") == -600
    # And again.
    assert store.setup("localhost", "", 16 * MIB, 16 * MIB, "tcp", "", one_master.addresses) == 0
    assert store.put(key, b"value") == 0
    assert store.close() == 0


def test_an_unreachable_master(caplog: pytest.LogCaptureFixture) -> None:
    master = f"127.0.0.1:{free_ports(1)[0]}"
    store = MooncakeDistributedStore()
    # After ten seconds. Upstream takes ninety.
    assert store.setup({"local_hostname": "localhost", "master_server_address": master}) == -1
    assert master in caplog.text
    assert "MC_MASTERS" in caplog.text
    assert store.is_exist("key") == 0, "LMCache takes any other number for a hit"
