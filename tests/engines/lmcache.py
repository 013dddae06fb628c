"""Drives LMCache's own classes on the pool, before, during and after a kill of the leader.

    pip download --no-deps lmcache==0.5.6 && unzip -q -d lmcache-wheel lmcache-*.whl
    python tests/engines/lmcache.py lmcache-wheel

The interpreter has the wheels of this project, torch, and what LMCache imports besides. Nothing of LMCache is replaced: without
a GPU it works on memory of the host.

- In-process mode: the connector of a URL `mooncakestore://`, with and without `save_chunk_meta`, through `mooncake.store`.
- Multiprocess mode: the adapter `native_plugin` of a `--l2-adapter` with `mc.lmcache`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import suite

from cluster import PATIENCE, Cluster, Process, until

CHUNKS = 8
TOKENS = 64
KIB = 1 << 10


class Memory:
    """LMCache's memory of the host, and the chunks in it."""

    def __init__(self, extra: dict[str, Any]) -> None:
        import torch
        from lmcache.v1.config import LMCacheEngineConfig
        from lmcache.v1.metadata import LMCacheMetadata
        from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend

        shape = (4, 2, TOKENS, 8, 32)
        self.metadata = LMCacheMetadata("model/of-a-test", 1, 1, 0, 0, torch.bfloat16, shape, chunk_size=TOKENS)
        self.config = LMCacheEngineConfig.from_defaults(chunk_size=TOKENS, local_cpu=False, max_local_cpu_size=0.1, extra_config=extra)
        self.backend = LocalCPUBackend(self.config, self.metadata, "cpu")

    def chunk(self, content: bytes = b"") -> Any:
        """A chunk with random bytes, or with these."""
        shapes, dtypes = self.metadata.get_shapes(), self.metadata.get_dtypes()
        made = self.backend.allocate(shapes, dtypes)
        assert made is not None, "LMCache's memory is full"
        memoryview(made.byte_array).cast("B")[:] = content or os.urandom(made.get_size())
        return made

    def chunks(self, count: int = CHUNKS) -> list[Any]:
        return [self.chunk() for _ in range(count)]


def content(chunk: Any) -> bytes:
    return bytes(memoryview(chunk.byte_array).cast("B"))


def free(chunks: list[Any]) -> None:
    for chunk in chunks:
        chunk.ref_count_down()


# In-process mode.


class InProcess:
    """LMCache's connector of `mooncakestore://` on an event loop of its own."""

    def __init__(self, cluster: Cluster, has_metadata: bool, segment: str = "67108864", **more: Any) -> None:
        from lmcache.v1.storage_backend.connector import CreateConnector

        # The names of LMCache's guide.
        extra = {
            "local_hostname": "localhost",
            "metadata_server": "P2PHANDSHAKE",
            "master_server_address": cluster.addresses,
            "global_segment_size": segment,
            "local_buffer_size": "16777216",
            "save_chunk_meta": has_metadata,
        }
        self.memory = Memory(extra | more)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        arguments = (self.loop, self.memory.backend, self.memory.config, self.memory.metadata)
        self.connector = CreateConnector("mooncakestore://ignored:1/", *arguments)
        self.own = self.connector.getWrappedConnector()

    def call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE)

    def key(self, name: str, number: int) -> Any:
        import torch
        from lmcache.utils import CacheEngineKey

        return CacheEngineKey(f"model-{name}", 1, 0, number, torch.bfloat16)

    def keys(self, name: str, count: int = CHUNKS) -> list[Any]:
        return [self.key(name, number) for number in range(count)]

    def put(self, keys: list[Any]) -> list[bytes]:
        """Puts random chunks, and returns them. LMCache frees their memory."""
        chunks = self.memory.chunks(len(keys))
        contents = [content(chunk) for chunk in chunks]
        self.call(self.connector.batched_put(keys, chunks))
        return contents

    def get(self, keys: list[Any]) -> list[bytes | None]:
        chunks = self.call(self.connector.batched_get(keys))
        contents = [None if chunk is None else content(chunk) for chunk in chunks]
        free([chunk for chunk in chunks if chunk is not None])
        return contents

    def close(self) -> None:
        self.call(self.connector.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@contextmanager
def in_process(cluster: Cluster, has_metadata: bool, **more: Any) -> Iterator[InProcess]:
    engine = InProcess(cluster, has_metadata, **more)
    try:
        yield engine
    finally:
        engine.close()


def calls_of_the_connector(engine: InProcess) -> str:
    connector, keys = engine.connector, engine.keys("calls")
    assert engine.own.registered_buffer_ptr is not None, "LMCache's memory is registered"
    assert engine.get(keys) == [None] * CHUNKS
    assert not connector.exists_sync(keys[0])

    (first,) = engine.memory.chunks(1)
    expected = [content(first)]
    engine.call(connector.put(keys[0], first))
    expected += engine.put(keys[1:])
    assert engine.call(connector.exists(keys[0])) and connector.exists_sync(keys[-1])
    assert engine.call(connector.batched_async_contains("lookup", [*keys, engine.key("calls", CHUNKS)])) == CHUNKS
    assert engine.get(keys) == expected
    assert engine.get([keys[2], engine.key("absent", 0), keys[1]]) == [expected[2], None, expected[1]]
    return f"{CHUNKS} chunks of {len(expected[0]) // KIB} KiB"


def handles_can_be_written_to(engine: InProcess) -> None:
    keys = engine.keys("handles", 1)
    engine.put(keys)
    text = keys[0].to_string()
    (handle,) = engine.own.store.batch_get_buffer([text])
    view = memoryview(handle)
    before = bytes(view)
    assert not view.readonly
    view[:] = bytes(len(view))
    assert engine.own.store.get(text) == before, "the handle is not the cached value"


def kill_under_the_connector(engine: InProcess, cluster: Cluster) -> str:
    """Puts and gets go on while the leader dies. What exists once it was put stays, with its bytes."""
    values: dict[Any, bytes] = {}
    unknown = 0

    def round_(number: int) -> int:
        nonlocal unknown
        keys = engine.keys(f"round-{number}", 4)
        contents = engine.put(keys)
        for key, expected, got in zip(keys, contents, engine.get(keys), strict=True):
            assert got in (None, expected), "wrong bytes"
            # LMCache looks at no result of a put: a chunk is acknowledged when it is seen.
            if got is not None and engine.connector.exists_sync(key):
                values[key] = expected
            else:
                unknown += 1
        return len(values)

    rounds = iter(range(1_000_000))
    with suite.LeaderKill(cluster, lambda _: len(values) >= 16) as kill:
        until("the leader is killed in the middle of a round", lambda: round_(next(rounds)) and kill.struck)
    seen = len(values)
    until("puts go on with another leader", lambda: round_(next(rounds)) >= seen + 16)
    assert engine.get(list(values)) == list(values.values())
    return f"{len(values)} chunks, {unknown} puts or gets failed in between"


def late_puts(cluster: Cluster, stopped: Process) -> str:
    """Puts run out of LMCache's second, and their memory is used for something else."""
    outcomes = []
    # Without memory of its own, the process writes to the store.
    with in_process(cluster, has_metadata=False, segment="0") as engine:
        keys, later = engine.keys(f"late-{stopped.name}", 3), engine.keys(f"later-{stopped.name}", 1)
        for key in keys:
            (chunk,) = engine.memory.chunks(1)
            expected = content(chunk)
            # A reference of ours, in place of the next chunk that gets the memory.
            chunk.ref_count_up()
            stopped.pause()
            engine.call(engine.connector.put(key, chunk))
            memoryview(chunk.byte_array).cast("B")[:] = os.urandom(len(expected))
            stopped.resume()
            until("puts succeed again", lambda: engine.put(later) and engine.get(later) != [None])
            free([chunk])
            (got,) = engine.get([key])
            assert got in (None, expected), "a put that ran out of time published bytes of the next chunk"
            outcomes.append("nothing" if got is None else "its own bytes")
    return f"published: {', '.join(outcomes)}"


# Multiprocess mode.


def spec(cluster: Cluster, segment: str = "64mb", **parameters: Any) -> str:
    """The flag of LMCache's server."""
    values = {
        "type": "native_plugin",
        "module_path": "mc.lmcache",
        "class_name": "Connector",
        "adapter_params": {"masters": cluster.addresses, "segment": segment, **parameters},
        "max_capacity_gb": 1,
    }
    return json.dumps(values)


def object_keys(name: str, count: int = CHUNKS) -> list[Any]:
    from lmcache.v1.distributed.api import ObjectKey

    return [ObjectKey(number.to_bytes(32, "big"), f"model-{name}", kv_rank=0, cache_salt="user") for number in range(count)]


class Adapter:
    """LMCache's adapter as its server makes it, and the waiting that its controllers do."""

    def __init__(self, cluster: Cluster, **parameters: Any) -> None:
        from lmcache.v1.distributed.l2_adapters import create_l2_adapter
        from lmcache.v1.distributed.l2_adapters.config import add_l2_adapters_args, parse_args_to_l2_adapters_config

        given = add_l2_adapters_args(argparse.ArgumentParser()).parse_args(["--l2-adapter", spec(cluster, **parameters)])
        (config,) = parse_args_to_l2_adapters_config(given).adapters
        self.adapter = create_l2_adapter(config)
        self.memory = Memory({})

    def _wait(self, descriptor: int, result: Callable[[], Any]) -> Any:
        def ready() -> Any:
            found = result()
            if found is None:
                select.select([descriptor], [], [], 0.1)
            return None if found is None else (found,)

        (found,) = until("the adapter answers", ready)
        return found

    def store(self, keys: list[Any], chunks: list[Any]) -> bool:
        task, done = self.adapter.submit_store_task(keys, chunks), {}

        def result() -> Any:
            done.update(self.adapter.pop_completed_store_tasks())
            return done.get(task)

        return bool(self._wait(self.adapter.get_store_event_fd(), result).is_successful())

    def lookup(self, keys: list[Any]) -> list[bool]:
        task = self.adapter.submit_lookup_and_lock_task(keys, {})
        found = self._wait(self.adapter.get_lookup_and_lock_event_fd(), lambda: self.adapter.query_lookup_and_lock_result(task))
        hits = [found.test(at) for at in range(len(keys))]
        self.adapter.submit_unlock([key for key, hit in zip(keys, hits, strict=True) if hit])
        return hits

    def load(self, keys: list[Any]) -> list[bytes | None]:
        chunks = [self.memory.chunk(bytes(self.size)) for _ in keys]
        task = self.adapter.submit_load_task(keys, chunks)
        loaded = self._wait(self.adapter.get_load_event_fd(), lambda: self.adapter.query_load_result(task))
        contents = [content(chunk) if loaded.test(at) else None for at, chunk in enumerate(chunks)]
        free(chunks)
        return contents

    @property
    def size(self) -> int:
        (shape,) = self.memory.metadata.get_shapes()
        return int(shape.numel()) * 2

    def put(self, keys: list[Any]) -> tuple[bool, list[bytes]]:
        """Stores random chunks; returns whether that succeeded, and the chunks."""
        chunks = self.memory.chunks(len(keys))
        contents = [content(chunk) for chunk in chunks]
        stored = self.store(keys, chunks)
        free(chunks)
        return stored, contents


@contextmanager
def adapter(cluster: Cluster, **parameters: Any) -> Iterator[Adapter]:
    made = Adapter(cluster, **parameters)
    try:
        yield made
    finally:
        made.adapter.close()


def calls_of_the_adapter(cluster: Cluster) -> str:
    with adapter(cluster, force_delete=True) as engine:
        keys, absent = object_keys("calls"), object_keys("absent", 1)
        assert engine.lookup(keys) == [False] * CHUNKS
        stored, contents = engine.put(keys)
        assert stored
        assert engine.lookup([keys[0], *absent, keys[1]]) == [True, False, True]
        assert engine.load(keys) == contents
        assert engine.load([keys[3], *absent, keys[2]]) == [contents[3], None, contents[2]]
        with adapter(cluster) as other:
            assert other.lookup(keys) == [True] * CHUNKS
            assert other.load(keys) == contents
        used = engine.adapter.get_usage().total_bytes_used
        assert used == CHUNKS * engine.size
        engine.adapter.delete(keys[:3])
        assert engine.lookup(keys) == [False] * 3 + [True] * (CHUNKS - 3)
        assert engine.adapter.get_usage().total_bytes_used == (CHUNKS - 3) * engine.size
        assert engine.adapter.report_status()["is_healthy"]
    return f"{CHUNKS} chunks of {engine.size // KIB} KiB"


def kill_under_the_adapter(cluster: Cluster) -> str:
    """Stores go on while the leader dies. What LMCache was told is stored stays, with its bytes."""
    values: dict[Any, bytes] = {}
    failed = 0
    with adapter(cluster) as engine:

        def round_(number: int) -> int:
            nonlocal failed
            keys = object_keys(f"round-{number}", 4)
            stored, contents = engine.put(keys)
            if stored:
                values.update(zip(keys, contents, strict=True))
            else:
                failed += 1
            assert all(got in (None, expected) for got, expected in zip(engine.load(keys), contents, strict=True))
            return len(values)

        rounds = iter(range(1_000_000))
        with suite.LeaderKill(cluster, lambda _: len(values) >= 32) as kill:
            until("the leader is killed in the middle of a round", lambda: round_(next(rounds)) and kill.struck)
        seen = len(values)
        until("stores go on with another leader", lambda: round_(next(rounds)) >= seen + 32)
        keys = list(values)
        assert engine.lookup(keys) == [True] * len(keys)
        assert engine.load(keys) == list(values.values())
    return f"{len(values)} chunks, {failed} stores failed in between"


def controllers_of_the_server(cluster: Cluster) -> str:
    """LMCache's storage manager writes chunks behind, and fetches what its own memory no longer has."""
    from lmcache.v1.distributed.api import GroupedObjectKeys, MemoryLayoutDesc, PrefetchTaskSpec
    from lmcache.v1.distributed.config import parse_args
    from lmcache.v1.distributed.storage_manager import StorageManager

    memory, keys = Memory({}), object_keys("controllers")
    layout = MemoryLayoutDesc(memory.metadata.get_shapes(), memory.metadata.get_dtypes())
    manager = StorageManager(parse_args(["--l1-size-gb", "0.1", "--eviction-policy", "LRU", "--l2-adapter", spec(cluster)]))
    try:
        chunks = manager.reserve_write(keys, layout)
        for chunk in chunks.values():
            memoryview(chunk.byte_array).cast("B")[:] = os.urandom(chunk.get_size())
        contents = [content(chunks[key]) for key in keys]
        manager.finish_write(keys)
        size = sum(map(len, contents))
        until("the chunks are stored", lambda: [used for used, _ in manager.get_l2_usages()] == [size])
        manager.clear(force=True)
        handle = manager.submit_prefetch_task(PrefetchTaskSpec([GroupedObjectKeys(keys, 0, layout)]))
        assert manager.wait_prefetch_status(handle, PATIENCE)
        assert manager.query_prefetch_status(handle).l2_hit_count == len(keys)
        with manager.read_prefetched_results(keys) as loaded:
            assert [content(chunk) for chunk in loaded] == contents
        manager.finish_read_prefetched(keys)
    finally:
        manager.close()
    return f"{len(keys)} chunks fetched"


def run(module: str, *arguments: str) -> str:
    """Runs a program of LMCache, and returns what it prints."""
    environ = {**os.environ, "PYTHONPATH": sys.path[0], "LMCACHE_DISABLE_BANNER": "1"}
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def lmcaches_check(cluster: Cluster) -> str:
    text = run("lmcache.v1.basic_check", "--mode", "test_l2_adapter", "--l2-adapter", spec(cluster))
    passed = re.findall(r"^\| (\w.*?) +\|.* (\d+)/(\d+) \|", text, re.MULTILINE)
    assert [count == total for _, count, total in passed] == [True] * 4, text
    return ", ".join(f"{name} {count}/{total}" for name, count, total in passed)


def lmcaches_benchmark(cluster: Cluster) -> str:
    flags = ["--no-skip-verify", "--num-keys", "16", "--in-flight", "4", "--rounds", "3", "--lookup-max-hit-rate", "1"]
    text = run("lmcache.cli.main", "bench", "l2", "--l2-adapter", spec(cluster, segment="256mb"), *flags)
    successes = re.findall(r"Total success: +(\d+)", text)
    assert successes == ["192"] * 3, text
    return "192 of 192 keys stored, found and loaded, and their bytes compared"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder into which LMCache's wheel was unpacked")
    # This file has the name of the package.
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != Path(__file__).resolve().parent]
    sys.path.insert(0, str(parser.parse_args().folder.resolve()))
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "CRITICAL")

    suite.headline("LMCache's own classes")
    with suite.cluster(3) as cluster:
        for has_metadata in (False, True):
            mode = f"in-process, {'put_parts and handles' if has_metadata else 'put_from and get_into'}"
            with in_process(cluster, has_metadata) as engine:
                with suite.step(f"{mode}: put, get, exists") as note:
                    note(calls_of_the_connector(engine))
                with suite.step(f"{mode}: handles can be written to"):
                    handles_can_be_written_to(engine)
                with suite.step(f"{mode}: the leader is killed") as note:
                    note(kill_under_the_connector(engine, cluster))
                with suite.step(f"{mode}: afterwards") as note:
                    note(f"{len(engine.put(engine.keys('later')))} chunks put")
            cluster.start()
        with suite.step("multiprocess: store, lookup, load, delete") as note:
            note(calls_of_the_adapter(cluster))
        with suite.step("multiprocess: LMCache's storage manager writes and fetches") as note:
            note(controllers_of_the_server(cluster))
        with suite.step("multiprocess: LMCache's own check, basic_check") as note:
            note(lmcaches_check(cluster))
        with suite.step("multiprocess: LMCache's own benchmark, bench l2") as note:
            note(lmcaches_benchmark(cluster))
        with suite.step("multiprocess: the leader is killed") as note:
            note(kill_under_the_adapter(cluster))
    with suite.cluster(1) as cluster:
        store = cluster.add_store("64mb")
        with suite.step("in-process, late put, the master stands still") as note:
            note(late_puts(cluster, cluster.masters[0]))
        with suite.step("in-process, late put, the store stands still") as note:
            note(late_puts(cluster, store))
    suite.finish()


if __name__ == "__main__":
    main()
