"""The package `mc` against real processes."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import mc
from cluster import Cluster, until

MIB = 1 << 20


@pytest.fixture(scope="module")
def client(one_master: Cluster) -> Iterator[mc.Client]:
    with mc.Client(one_master.addresses, segment="64mb", local_cache="16mb") as client:
        yield client


def test_a_value_is_read_back_and_kept_until_it_is_removed(client: mc.Client, key: str) -> None:
    assert client.get(key) is None
    assert client.put(key, b"value") is mc.Put.STORED
    assert client.put(key, b"other") is mc.Put.EXISTS
    assert client.get(key) == b"value"
    assert (client.exists(key), client.size(key)) == (True, 5)
    assert client.put(key, b"third", upsert=True) is mc.Put.STORED
    assert client.get(key.encode()) == b"third", "a string stands for its UTF-8"
    assert client.remove(key, force=True)
    assert (client.exists(key), client.size(key), client.remove(key)) == (False, None, False)


@pytest.mark.parametrize(
    "value",
    [b"abcd", bytearray(b"abcd"), memoryview(b"abcd"), np.frombuffer(b"abcd", dtype=np.uint8), np.ones((2, 3), dtype=np.float32)],
    ids=["bytes", "bytearray", "memoryview", "array", "matrix"],
)
def test_whatever_has_the_buffer_protocol_is_a_value(client: mc.Client, key: str, value: object) -> None:
    client.put(key, value)
    assert client.get(key) == bytes(memoryview(value).cast("B"))  # type: ignore[arg-type]


class Exchanged:
    """An object with `__dlpack__` and nothing else."""

    def __init__(self, array: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> None:
        self.array = array

    def __dlpack__(self) -> object:
        return self.array.__dlpack__()


def test_tensors_of_dlpack_are_read_from_and_written_to_in_place(client: mc.Client, key: str) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert client.put(key, Exchanged(array)) is mc.Put.STORED
    target = np.zeros((3, 4), dtype=np.float32)
    assert client.get_into(key, Exchanged(target)) == 48
    assert (target == array).all()
    with pytest.raises(ValueError, match="not contiguous"):
        client.put(key, Exchanged(array.T))


class OfADevice(Exchanged):
    """A tensor in memory of a CUDA device, as far as its capsule says."""

    def __dlpack__(self) -> object:
        capsule = super().__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        ctypes.c_int32.from_address(pointer(capsule, b"dltensor") + 8).value = 2
        return capsule


def test_memory_of_a_device_is_refused(client: mc.Client, key: str) -> None:
    with pytest.raises(ValueError, match="memory of a device"):
        client.put(key, OfADevice(np.zeros(4, dtype=np.float32)))


def test_lengths_that_no_memory_has_are_refused(client: mc.Client, key: str) -> None:
    native = client._native
    for addresses, sizes in ([4096], [1 << 63]), ([4096, 4096], [1 << 62, 1 << 62]), ([(1 << 64) - 4096], [8192]):
        with pytest.raises(ValueError, match="no memory is that long"):
            native.put_from([key], [addresses], [sizes])


def test_large_values_are_read_in_batches(client: mc.Client, key: str) -> None:
    values = {f"{key}{number}": bytes([number]) * (1 << 18) for number in range(8)}
    client.put_many(values)
    assert client.get_many([*values, "absent"]) == [*values.values(), None]


def test_bytes_that_are_not_in_one_piece_are_refused(client: mc.Client, key: str) -> None:
    with pytest.raises(ValueError, match="one piece"):
        client.put(key, np.arange(10)[::2])
    with pytest.raises(TypeError):
        client.put(key, "text")
    assert not client.exists(key)


def test_objects_are_read_into_memory_of_the_caller(client: mc.Client, key: str) -> None:
    client.put(key, b"0123456789")
    target = bytearray(12)
    assert client.get_into(key, target) == 10
    assert target == b"0123456789\0\0"
    with pytest.raises(mc.InvalidArgument, match="4 bytes of memory for an object of 10 bytes"):
        client.get_into(key, bytearray(4))
    with pytest.raises(BufferError, match="read-only"):
        client.get_into(key, b"0123456789")
    assert client.get_into("absent", target) is None


def test_a_value_in_memory_of_its_own_does_not_change_the_cached_one(client: mc.Client, key: str) -> None:
    client.put(key, b"value")
    memory = client.get_memory(key)
    assert memory is not None and bytes(memory) == b"value"
    view = memoryview(memory)
    view[0] = ord("V")
    assert bytes(memory) == b"Value"
    assert client.get(key) == b"value"
    with pytest.raises(BufferError, match="1 buffers"):
        memory.release()
    view.release()
    memory.release()
    assert memory.released
    with pytest.raises(ValueError, match="released"):
        memoryview(memory)


def test_ranges_are_parts_of_the_value(client: mc.Client, key: str) -> None:
    client.put(key, b"0123456789")
    assert client.get_range(key, 3, 4) == b"3456"
    first, second = bytearray(2), bytearray(3)
    assert client.get_ranges_into(key, [(0, first), (7, second)]) == 5
    assert (first, second) == (b"01", b"789")
    with pytest.raises(mc.InvalidArgument):
        client.get_range(key, 8, 3)
    assert client.get_range("absent", 0, 1) is None


def test_batches_have_a_result_for_each_item(client: mc.Client, key: str) -> None:
    keys = [f"{key}{number}" for number in range(3)]
    stored = client.put_many({keys[0]: b"a", "": b"b", keys[2]: b"c"})
    assert stored[0] is mc.Put.STORED and stored[2] is mc.Put.STORED
    assert isinstance(stored[1], mc.InvalidArgument) and stored[1].is_definite
    assert client.get_many(keys) == [b"a", None, b"c"]
    assert client.exists_many(keys) == [True, False, True]
    assert client.size_many(keys) == [1, None, 1]
    into = [bytearray(1) for _ in keys]
    assert client.get_many_into(zip(keys, into, strict=True)) == [1, None, 1]
    assert into[2] == b"c"
    assert client.remove_many(keys, force=True) == [True, False, True]
    assert client.get_many([]) == [] and client.put_many({}) == []


def test_a_value_in_pieces_is_one_object(client: mc.Client, key: str) -> None:
    assert client.put_parts(key, [b"head", np.arange(2, dtype=np.uint8), b"tail"]) is mc.Put.STORED
    assert client.get(key) == b"head\0\1tail"


def test_an_object_is_written_and_read_layer_by_layer(client: mc.Client, key: str) -> None:
    session = client.write_session(key, 8)
    assert session is not None
    with session:
        session.write(4, b"5678")
        assert not client.exists(key), "readers see it once it is finished"
        session.write_from([(0, b"12"), (2, b"34")])
    assert client.get(key) == b"12345678"
    assert client.write_session(key, 8) is None, "the key exists"
    opened = client.read_session(key)
    assert opened is not None and opened.size == 8
    with opened:
        assert opened.read(2, 3) == b"345"
        part = bytearray(2)
        assert opened.read_into([(6, part)]) == 2
        assert part == b"78"
    with pytest.raises(mc.McError, match="closed"):
        opened.read(0, 1)
    assert client.read_session("absent") is None


def test_a_session_that_fails_leaves_no_object(client: mc.Client, key: str) -> None:
    session = client.write_session(key, 8)
    assert session is not None
    with pytest.raises(KeyError), session:
        session.write(0, b"1234")
        raise KeyError
    assert not client.exists(key)
    again = client.write_session(key, 8)
    assert again is not None
    with pytest.raises(mc.McError), again:
        again.write(0, b"1234")
    again.abort()


def test_listing_and_removal_go_by_prefix_and_pattern(client: mc.Client, key: str) -> None:
    client.put_many({f"{key}/{number}": b"v" * (number + 1) for number in range(5)})
    assert sorted(client.list(f"{key}/")) == [(f"{key}/{number}".encode(), number + 1) for number in range(5)]
    assert client.remove_matching(f"^{key}/[0-2]$", force=True).removed == 3
    assert len(list(client.list(f"{key}/"))) == 2


def test_options_are_those_of_the_put(client: mc.Client, key: str) -> None:
    client.put(key, b"v", pin="hard", data_type=7, group="pages")
    description = client.describe(key)
    assert description is not None
    assert (description["pin"], description["data_type"], description["size"]) == ("hard", 7, 1)
    assert description["group"] is not None and len(description["replicas"]) == 1
    client.put(key, b"v", upsert=True, pin="none")
    client.remove(key, force=True)
    for wrong in ({"pin": "strong"}, {"near": "moon"}, {"timeout": -1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            client.put(key, b"v", **wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="colour"):
        client.put(key, b"v", colour="red")  # type: ignore[call-arg]


def test_tenants_do_not_see_each_other(one_master: Cluster, client: mc.Client, key: str) -> None:
    client.put(key, b"v")
    with mc.Client(one_master.addresses, tenant="other") as other:
        assert other.get(key) is None


def test_memory_is_registered_once(client: mc.Client, key: str) -> None:
    pool = np.zeros(1 << 16, dtype=np.uint8)
    with client.register(pool) as registered:
        assert len(registered) == pool.nbytes
        with pytest.raises(mc.InvalidArgument, match="overlaps"):
            client.register(pool[100:200])
        client.put(key, pool)
    with client.register(pool[100:200]):
        pass
    with pytest.raises(mc.InvalidArgument, match="not zero"):
        client.register(bytearray())


@pytest.mark.parametrize("kind", ["read", "write"])
def test_registered_memory_is_kept_while_a_session_has_the_client(one_master: Cluster, key: str, kind: str) -> None:
    class Pool(bytearray):
        """Memory that can be referred to weakly."""

    client = mc.Client(one_master.addresses, segment="16mb")
    client.put(key, b"value")
    session: object = client.read_session(key) if kind == "read" else client.write_session(f"{key}-written", 5)
    pool = Pool(1 << 16)
    client.register(pool)
    gone = weakref.ref(pool)
    del client, pool
    gc.collect()
    assert gone() is not None
    del session
    gc.collect()
    assert gone() is None


def test_registered_memory_is_kept_until_it_is_unregistered(client: mc.Client) -> None:
    pool = bytearray(1 << 16)
    client.register(pool)
    gc.collect()
    with pytest.raises(BufferError):
        pool.clear()
    with mc.Client("127.0.0.1:1", leader_timeout=0.1) as other:
        again = other.register(pool)
        again.close()
        again.close()


def test_allocated_memory_is_shared_with_clients(client: mc.Client, key: str) -> None:
    memory = mc.allocate(1 << 16)
    array = np.frombuffer(memory, dtype=np.uint8)
    array[:] = 7
    assert client.put(key, memory) is mc.Put.STORED
    array[:] = 0
    assert client.get_into(key, memory) == 1 << 16
    assert (array == 7).all()


def test_errors_say_what_to_do_and_survive_pickling(client: mc.Client) -> None:
    with pytest.raises(mc.InvalidArgument, match="1 to 4096") as raised:
        client.put("x" * 5000, b"v")
    error = raised.value
    assert (error.name, error.code, error.is_definite) == ("INVALID_KEY", -400, True)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.code) == (type(error), str(error), error.code)


def test_the_log_goes_to_logging(one_master: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="mc"), mc.Client(one_master.addresses):
        until("the client has logged", lambda: [record for record in caplog.records if record.name.startswith("mc.")])


def test_without_masters_a_client_works_alone_and_says_why(tmp_path: Path) -> None:
    with mc.Client("127.0.0.1:1", leader_timeout=0.2) as client:
        assert client.mode == "local-only"
        assert "127.0.0.1:1" in (client.last_error or "")
        assert client.put("k", b"v") is mc.Put.LOCAL
        assert client.get("k") == b"v"
        assert client.stats()["puts_local"] == 1
    with pytest.raises(mc.ConnectionLost, match="no leader"):
        mc.Client("127.0.0.1:1", require_leader=True, leader_timeout=0.2)
    with pytest.raises(mc.InvalidArgument, match="too small"):
        mc.Client("127.0.0.1:1", segment="1kb")


def test_keys_survive_the_death_of_the_leader(own_masters: Cluster) -> None:
    with mc.Client(own_masters.addresses, segment="16mb", local_cache=0) as client:
        assert client.put("before", b"v") is mc.Put.STORED
        own_masters.wait_for_leader().kill()
        assert until("another leader answers", lambda: client.get("before")) == b"v"
        assert client.put("after", b"v") is mc.Put.STORED


def test_dropping_a_client_unmounts_its_store(own_master: Cluster) -> None:
    client = mc.Client(own_master.addresses, segment="1mb")
    assert len(own_master.mounted()) == 1
    gone = weakref.ref(client)
    del client
    gc.collect()
    assert gone() is None
    until("the store is unmounted", lambda: not own_master.mounted())


def test_ctrl_c_interrupts_a_call(own_master: Cluster) -> None:
    with mc.Client(own_master.addresses, segment="1mb", local_cache=0, call_timeout=60, leader_timeout=60) as client:
        own_master.masters[0].pause()
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            client.get("k")
        own_master.masters[0].resume()


IN_ANOTHER_PROCESS = """
import mc, os, sys, threading
assert threading.active_count() == 1, "importing starts no thread"
assert len(os.listdir("/proc/self/task")) == 1
client = mc.Client(sys.argv[1], segment="1mb")
client.put("k" + sys.argv[2], b"v")
child = os.fork()
if child == 0:
    try:
        client.get("k")
    except mc.McError as error:
        assert "parent process" in str(error), error
    else:
        os._exit(3)
    del client
    with mc.Client(sys.argv[1]) as own:
        os._exit(0 if own.get("k" + sys.argv[2]) == b"v" else 4)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert client.exists("k" + sys.argv[2]), "the child has unmounted nothing"
"""


def test_a_forked_child_has_clients_of_its_own_and_the_exit_unmounts(own_master: Cluster) -> None:
    command = [sys.executable, "-c", IN_ANOTHER_PROCESS, own_master.addresses]
    subprocess.run([*command, "1"], check=True, timeout=60)
    until("the store is unmounted", lambda: not own_master.mounted())


OF_MULTIPROCESSING = """
import multiprocessing, sys, mc

def work(masters, key, all_read):
    client = mc.Client(masters, segment="1mb")
    client.put(key, b"v")
    assert client.get(key) == b"v"
    # The value may lie in the other child's store, which is gone once that child is.
    all_read.wait(60)

if __name__ == "__main__":
    for way in ("fork", "spawn", "forkserver"):
        own = mc.Client(sys.argv[1])
        context = multiprocessing.get_context(way)
        all_read = context.Barrier(2)
        children = [
            context.Process(target=work, args=(sys.argv[1], way + str(number), all_read)) for number in range(2)
        ]
        for child in children:
            child.start()
        for child in children:
            child.join()
            assert child.exitcode == 0, way
"""


def test_the_exit_of_a_child_of_multiprocessing_unmounts(own_master: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(OF_MULTIPROCESSING)
    subprocess.run([sys.executable, script, own_master.addresses], check=True, timeout=120)
    until("the stores are unmounted", lambda: not own_master.mounted())


def test_eight_embedded_stores_live_side_by_side(own_master: Cluster) -> None:
    clients = [mc.Client(own_master.addresses, segment="1mb", store_name="rank:{port}") for _ in range(8)]
    assert len(set(own_master.mounted())) == 8
    clients[0].put("k", b"v", replicas=8)
    description = clients[1].describe("k")
    assert description is not None and len(description["replicas"]) == 8
    for client in clients:
        client.close()
    until("all are unmounted", lambda: not own_master.mounted())
