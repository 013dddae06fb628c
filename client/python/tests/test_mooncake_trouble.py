"""Masters that are gone, processes that are killed, forked or interrupted, and what must not leak."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import uvloop
from conftest import MIB, Open

from cluster import PATIENCE, Cluster, until
from mooncake.async_store import MooncakeDistributedStoreAsync
from mooncake.store import MooncakeDistributedStore

T = TypeVar("T")

PAGE = 4096
# A put may answer these: engines then count on their buffer being free again.
SAFE_PUT_CODES = {0, -200, -703, -704, -705, -900, -901, -1700}
SOAK_SECONDS = float(os.environ.get("MC_TEST_SOAK_SECONDS", "60"))


def ends(call: Callable[[], T]) -> T:
    """Result of a call that must not block. It runs in a thread, so that the test fails and does not hang."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert results, "the call did not end"
    return results[0]


def script(code: str, cluster: Cluster, **more: Any) -> subprocess.Popen[str]:
    """A Python process in which `setup(store)` connects to the cluster."""
    prelude = f"""
        import os, sys, threading
        from mooncake.store import MooncakeDistributedStore, ReplicateConfig
        def setup(store, segment={4 * MIB}):
            assert store.setup("localhost", "", segment, {4 * MIB}, "tcp", "", {cluster.addresses!r}) == 0
        """
    source = textwrap.dedent(prelude) + textwrap.dedent(code)
    return subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, **more)


def output(code: str, cluster: Cluster) -> str:
    process = script(code, cluster)
    text, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    return text.strip()


# Without masters.


def test_without_masters_and_with_them_again(own_master: Cluster, open_store: Open, key: str) -> None:
    store, other = open_store(own_master), open_store(own_master, segment=0)
    known, unknown, local = f"{key}-known", f"{key}-unknown", f"{key}-local"
    value = bytes(range(256)) * 16
    assert store.put(known, value) == 0
    memory = np.zeros(PAGE, dtype=np.uint8)

    own_master.kill_masters()

    assert ends(lambda: store.batch_is_exist([known, unknown])) == [1, 0]
    assert ends(lambda: store.get(known)) == value
    assert ends(lambda: store.get(unknown)) == b""
    assert ends(lambda: store.batch_get_into([known, unknown], [memory.ctypes.data] * 2, [PAGE] * 2)) == [PAGE, -900]
    assert ends(lambda: store.put(known, b"other")) == -900
    assert ends(lambda: store.put(local, b"local")) == -900
    assert ends(lambda: store.get(local)) == b"local"
    assert ends(lambda: store.put_from(f"{local}-2", memory.ctypes.data, PAGE)) == -900
    assert ends(lambda: store.batch_is_exist([known, local, unknown])) == [1, 1, 0]
    assert ends(lambda: store.remove(known)) == -900
    assert ends(lambda: store.remove_all()) == -900
    assert ends(lambda: store.get_size(unknown)) == -900
    assert ends(lambda: store.health_check()) == 2
    assert ends(lambda: other.batch_is_exist([known, unknown])) == [0, 0]

    own_master.start()

    until("the leader is found again", lambda: store.health_check() == 0)
    until("the other client sees the old key", lambda: other.get(known) == value)
    assert store.put(f"{key}-new", b"value") == 0
    assert other.get(f"{key}-new") == b"value"
    # Kept for that process only: the put was refused.
    assert other.is_exist(local) == 0


def test_close_ends_without_masters(own_master: Cluster, open_store: Open, key: str) -> None:
    store = open_store(own_master)
    store.put(key, b"value")
    own_master.kill_masters()
    assert ends(store.close) == 0


def test_a_leader_kill_goes_unnoticed(own_masters: Cluster, open_store: Open, key: str) -> None:
    cluster = own_masters
    store = open_store(cluster, segment=256 * MIB)
    before = [f"{key}-before-{number}" for number in range(50)]
    value = os.urandom(PAGE)
    assert store.put_batch(before, [value] * 50) == 0
    stop, wrong, rounds = threading.Event(), [], [0] * 8

    def work(thread: int) -> None:
        memory = np.zeros((4, PAGE), dtype=np.uint8)
        addresses, sizes = [int(row.ctypes.data) for row in memory], [PAGE] * 4
        # Slow enough that objects which were read within their lease don't fill the pool.
        while not stop.wait(0.01):
            rounds[thread] += 1
            memory[:] = (thread * 31 + rounds[thread]) % 251
            keys = [f"{key}-{thread}-{rounds[thread]}-{number}" for number in range(4)]
            put = store.batch_put_from(keys, addresses, sizes)
            found = store.batch_is_exist(keys)
            expected = memory[0].tobytes()
            got = store.batch_get_into(keys, addresses, sizes)
            if put != [0] * 4 or found != [1] * 4 or got != sizes or memory.tobytes() != expected * 4:
                wrong.append((put, found, got))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    until("all threads work", lambda: min(rounds) > 2)
    leader = cluster.wait_for_leader()
    leader.kill()
    cluster.wait_for_leader()
    seen = list(rounds)
    until("all threads go on", lambda: all(now > then + 2 for now, then in zip(rounds, seen, strict=True)))
    leader.start()
    stop.wait(SOAK_SECONDS)
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert store.get_batch(before) == [value] * 50


# Processes.


def test_the_exit_of_the_interpreter_unmounts(one_master: Cluster) -> None:
    held_by_a_thread = "threading.Thread(target=lambda s: threading.Event().wait(), args=(store,), daemon=True).start()"
    for end in ("", "sys.exit(0)", "threading.Thread(target=lambda: store.is_exist('key')).start()", held_by_a_thread):
        name = output(f"store = MooncakeDistributedStore()\nsetup(store)\nprint(store.get_hostname())\n{end}", one_master)
        assert name.startswith("localhost:")
        assert name not in one_master.mounted()


def test_a_killed_engine_mounts_again_at_once(one_master: Cluster) -> None:
    code = "store = MooncakeDistributedStore()\nsetup(store)\nprint('ready', flush=True)\nsys.stdin.read()"
    for _ in range(3):
        process = script(code, one_master, stdin=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
        process.communicate()


def test_fork(one_master: Cluster) -> None:
    code = """
        from mc import McError
        store = MooncakeDistributedStore()
        setup(store)
        assert store.put("before the fork", b"value") in (0, -705)
        child = os.fork()
        if child == 0:
            refused = 0
            for call in (lambda: store.put("key", b"value"), lambda: store.get("key"), lambda: store.is_exist("key")):
                try:
                    call()
                except McError:
                    refused += 1
            mine = MooncakeDistributedStore()
            setup(mine)
            right = refused == 3 and mine.get("before the fork") == b"value" and store.close() == 0
            del store
            mine.close()
            sys.exit(0 if right else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        # The child has unmounted nothing of ours.
        assert store.put("after the fork", b"value") == 0 and store.get("before the fork") == b"value"
        assert store.remove("before the fork", True) == 0 and store.remove("after the fork", True) == 0
        print(store.get_hostname())
        """
    assert output(code, one_master).startswith("localhost:")


def test_fork_after_import(one_master: Cluster) -> None:
    code = """
        child = os.fork()
        store = MooncakeDistributedStore()
        setup(store)
        # The other process may take its memory out of the pool at any moment.
        config = ReplicateConfig()
        config.preferred_segment = store.get_hostname()
        assert store.put(f"{os.getpid()}", b"value", config) == 0
        store.close()
        if child:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        """
    output(code, one_master)


def test_processes_of_multiprocessing(one_master: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "main.py"
    path.write_text(
        textwrap.dedent(
            f"""
            import multiprocessing
            from mooncake.store import MooncakeDistributedStore, ReplicateConfig

            def use(number):
                store = MooncakeDistributedStore()
                assert store.setup("localhost", "", {MIB}, {MIB}, "tcp", "", {one_master.addresses!r}) == 0
                # The other process may take its memory out of the pool at any moment.
                config = ReplicateConfig()
                config.preferred_segment = store.get_hostname()
                code = store.upsert(f"process {{number}}", b"value", config)
                assert code == 0, code
                assert store.get(f"process {{number}}") == b"value"
                return number

            if __name__ == "__main__":
                mine = MooncakeDistributedStore()
                assert mine.setup("localhost", "", {4 * MIB}, {MIB}, "tcp", "", {one_master.addresses!r}) == 0
                for method in ("fork", "spawn", "forkserver"):
                    with multiprocessing.get_context(method).Pool(2) as pool:
                        assert pool.map(use, range(2)) == [0, 1], method
                assert mine.health_check() == 0
                print("done")
            """
        )
    )
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


def test_interrupts(own_master: Cluster) -> None:
    own_master.kill_masters()
    code = f"""
        store = MooncakeDistributedStore()
        try:
            print("ready", flush=True)
            store.setup("localhost", "", {MIB}, {MIB}, "tcp", "", {own_master.addresses!r})
            print("returned")
        except KeyboardInterrupt:
            print("interrupted")
        """
    process = script(code, own_master)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=PATIENCE)[0] == "interrupted\n"
    assert process.returncode == 0


MEMORY = np.zeros(PAGE, dtype=np.uint8)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda store, key: store.get(key), id="get"),
        pytest.param(lambda store, key: store.get_into(key, MEMORY.ctypes.data, PAGE), id="get_into"),
        pytest.param(lambda store, key: store.put(key, b"value"), id="put"),
        pytest.param(lambda store, key: store.put_from(key, MEMORY.ctypes.data, PAGE), id="put_from"),
        pytest.param(lambda store, key: store.is_exist(key), id="is_exist"),
        pytest.param(lambda store, key: store.get_size(key), id="get_size"),
        pytest.param(lambda store, key: store.remove(key), id="remove"),
    ],
)
def test_interrupts_of_calls(own_master: Cluster, open_store: Open, key: str, call: Callable[[Any, str], object]) -> None:
    store = open_store(own_master)
    master = own_master.masters[0]
    # Whether a call is under way, and which state the client was in when it was interrupted.
    calling, states = threading.Event(), [-1]

    def interrupt(*_: object) -> None:
        states.append(store.health_check() if calling.is_set() else -1)
        raise KeyboardInterrupt

    def interrupted_while_it_waited() -> bool:
        """Whether the call was under way. It ends by itself once the client finds that there is no leader."""
        master.pause()
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                calling.set()
                call(store, key)
                calling.clear()
                until("the signal comes", lambda: None)
        finally:
            master.resume()
        until("the leader is found again", lambda: store.health_check() == 0)
        return states[-1] == 0

    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        until("a call was interrupted while it waited", interrupted_while_it_waited)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert store.put(f"{key}-after", b"value") == 0
    assert store.get(f"{key}-after") == b"value"


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_asyncio(one_master: Cluster, key: str, loop: Any) -> None:
    async def use() -> None:
        store = MooncakeDistributedStoreAsync()
        assert await store.async_setup("localhost", "", 4 * MIB, 4 * MIB, "tcp", "", one_master.addresses) == 0
        keys = [f"{key}-{number}" for number in range(32)]
        assert await asyncio.gather(*(store.async_put(one, one.encode()) for one in keys)) == [0] * 32
        assert await asyncio.gather(*(store.async_get(one) for one in keys)) == [one.encode() for one in keys]
        with pytest.raises(AttributeError):
            store.async_nothing()
        with pytest.raises(AttributeError):
            store.nothing()
        assert await store.async_close() == 0

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(use())


# Leaks.


def held() -> tuple[int, int]:
    """Threads and descriptors of this process."""
    return len(list(Path("/proc/self/task").iterdir())), len(list(Path("/proc/self/fd").iterdir()))


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_calls_leak_nothing(one_master: Cluster, open_store: Open, key: str) -> None:
    store = open_store(one_master)
    memory = np.zeros(PAGE, dtype=np.uint8)
    store.put(key, bytes(PAGE))
    keys, addresses, sizes = [key] * 8, [memory.ctypes.data] * 8, [PAGE] * 8

    def calls(count: int) -> None:
        for _ in range(count):
            store.get_buffer(key)
            store.batch_get_into(keys, addresses, sizes)
            store.put_from(key, memory.ctypes.data, PAGE)
            store.batch_is_exist(keys)
            store.get(f"{key}-missing")

    calls(1000)
    before, threads = resident(), held()
    calls(20_000)
    # A page leaked by one of the five calls would be 80 MiB.
    assert resident() - before < 8 * MIB
    assert all(now <= then for now, then in zip(held(), threads, strict=True))


def test_connections_leak_nothing(one_master: Cluster, key: str) -> None:
    def attach() -> None:
        store = MooncakeDistributedStore()
        assert store.setup("localhost", "", MIB, MIB, "tcp", "", one_master.addresses) == 0
        assert store.put(key, b"value") in (0, -200)
        del store

    for _ in range(10):
        attach()
    before = resident()
    until("the first connections are gone", lambda: held()[1] < 200)
    threads, descriptors = held()
    for _ in range(90):
        attach()
    until("threads and descriptors are those of before", lambda: held()[0] <= threads and held()[1] <= descriptors)
    # Each has a segment and a cache of a megabyte.
    assert resident() - before < 30 * MIB


def test_results_are_safe_under_load_and_faults(own_masters: Cluster, open_store: Open, key: str) -> None:
    store = open_store(own_masters, segment=16 * MIB)
    memory = np.zeros(256 * 1024, dtype=np.uint8)
    stop, codes = threading.Event(), set()

    def put(thread: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            codes.update(store.batch_put_from([f"{key}-{thread}-{number}"], [memory.ctypes.data], [memory.nbytes]))

    threads = [threading.Thread(target=put, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    until("puts work", lambda: 0 in codes)
    own_masters.kill_masters()
    until("puts are refused", lambda: -900 in codes)
    own_masters.start()
    codes.clear()
    until("puts work again", lambda: 0 in codes)
    stop.set()
    for thread in threads:
        thread.join()
    assert codes <= SAFE_PUT_CODES


KEEPS_ITS_STORE = """
import multiprocessing, sys
from mooncake.store import MooncakeDistributedStore

store = MooncakeDistributedStore()

def work(masters):
    assert store.setup("localhost", "", 1 << 20, 1 << 20, "tcp", "", masters) == 0

if __name__ == "__main__":
    for way in ("fork", "spawn", "forkserver"):
        child = multiprocessing.get_context(way).Process(target=work, args=(sys.argv[1],))
        child.start()
        child.join()
        assert child.exitcode == 0, way
"""


def test_a_child_of_multiprocessing_that_keeps_its_store_unmounts_at_its_end(own_master: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "main.py"
    path.write_text(KEEPS_ITS_STORE)
    subprocess.run([sys.executable, path, own_master.addresses], check=True, timeout=120)
    until("the stores are unmounted", lambda: not own_master.mounted())


def test_a_put_session_outlasts_the_time_of_a_put(one_master: Cluster, open_store: Open, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("MC_PUT_TIMEOUT", "0.1")
    store = open_store(one_master)
    value = np.frombuffer(b"value", dtype=np.uint8)
    begun = time.monotonic()
    assert store.batch_put_session_start([key], [5]) == [0]
    until("the time of a put is over", lambda: time.monotonic() > begun + 0.2)
    assert store.batch_put_from_multi_buffer_ranges([key], [[value.ctypes.data]], [[5]], [[0]]) == [5]
    assert store.batch_put_session_end([key]) == [0]


def test_revoking_a_session_without_masters_answers_codes(own_master: Cluster, open_store: Open, key: str) -> None:
    store = open_store(own_master)
    assert store.batch_put_session_start([key], [5]) == [0]
    own_master.kill_masters()
    assert store.batch_put_session_revoke([key]) == [-900]


def test_the_last_reference_to_an_asynchronous_store_unmounts(own_master: Cluster) -> None:
    async def use() -> None:
        store = MooncakeDistributedStoreAsync()
        assert await store.async_setup("localhost", "", MIB, MIB, "tcp", "", own_master.addresses) == 0
        assert own_master.mounted()

    gc.disable()
    try:
        asyncio.run(use())
        until("the store is unmounted", lambda: not own_master.mounted())
    finally:
        gc.enable()
