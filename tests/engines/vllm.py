"""Drives vLLM's own `MooncakeStoreConnector` and embedding client, through a kill of the leader.

    pip download --no-deps vllm==0.33.0 && unzip -q -d vllm-wheel vllm-*.whl 'vllm/*.py'
    python tests/engines/vllm.py vllm-wheel

The interpreter has the wheels of this project, torch, transformers, and what vLLM's modules import besides: cbor2,
cachetools, openai, openai-harmony and py-cpuinfo on top of what SGLang needs. Nothing of vLLM is replaced; vllm_worker.py
says what stands for a GPU.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import suite

import gpu
from cluster import Cluster, until

REQUESTS, TENSORS = 6, 20
# Larger than the pool that is filled.
MANY = 200


@dataclass
class Report:
    saved: list[str] = field(default_factory=list)
    failed: int = 0
    loaded: int = 0
    missed: int = 0
    longest: float = 0.0
    codes: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [f"{len(self.saved)} saved, {self.failed} not"] if self.saved or self.failed else []
        parts += [f"{self.loaded} loaded, {self.missed} not", *(f"{count} x {code}" for code, count in sorted(self.codes.items()))]
        return ", ".join([*parts, f"longest {self.longest:.1f} s"])


class Worker:
    """What one process has."""

    def __init__(self, scratch: Path, masters: str, driver: Path) -> None:
        import vllm_worker

        self.module, self.scratch = vllm_worker, scratch
        # The working directory of the parent may have a module of the name `vllm`.
        os.chdir(scratch)
        logging.getLogger("vllm").setLevel(logging.CRITICAL)
        self.config = vllm_worker.start(scratch)
        self.driver = gpu.Driver(driver)
        vllm_worker.use(scratch, masters)
        self.engines = {
            "host": vllm_worker.Engine(self.config, vllm_worker.HostCache("host")),
            "device": vllm_worker.Engine(self.config, vllm_worker.DeviceCache("device", self.driver)),
        }
        self.embeddings = vllm_worker.Embeddings()


def worker() -> Worker:
    assert isinstance(state, Worker)
    return state


state: Worker | None = None


def start(scratch: Path, masters: str, driver: Path) -> None:
    global state
    state = Worker(scratch, masters, driver)


def save_requests(kind: str, label: str) -> Report:
    """Saves requests, and loads them into other blocks of this process."""
    names = [f"{label} {kind} {number}" for number in range(REQUESTS)]
    engine = worker().engines[kind]
    engine.longest = 0.0
    assert all(engine.save(name) for name in names), "not all requests were saved"
    report = load_requests(kind, names)
    report.saved = names
    return report


def load_requests(kind: str, names: list[str]) -> Report:
    """Looks up and loads what any process has saved. All of it must be there."""
    engine = worker().engines[kind]
    copies = worker().driver.calls("cuMemcpyHtoDAsync_v2")
    for name in names:
        found = engine.lookup(name)
        assert found.hit_length == engine.tokens, f"{name}: {found}"
        assert engine.load(name, found), f"{name} was not loaded"
    if kind == "device":
        assert worker().driver.calls("cuMemcpyHtoDAsync_v2") > copies, "nothing was copied to a device"
    return Report(loaded=len(names), longest=engine.longest, codes=dict(engine.store.codes))


def storm_requests(stop: Path) -> dict[str, Report]:
    """Saves, looks up and loads until a file appears. Transfers may fail, but may not give wrong bytes."""
    reports = {"host": Report(), "device": Report()}
    for engine in worker().engines.values():
        engine.longest = 0.0
    number = 0
    while not stop.exists():
        for kind, report in reports.items():
            engine, name = worker().engines[kind], f"storm {kind} {number}"
            if engine.save(name):
                report.saved.append(name)
            else:
                report.failed += 1
            found = engine.lookup(name)
            if found.hit_length and engine.load(name, found):
                report.loaded += 1
            else:
                report.missed += 1
        number += 1
    for kind, report in reports.items():
        engine = worker().engines[kind]
        report.longest, report.codes = engine.longest, dict(engine.store.codes)
    return reports


def put_tensors(label: str) -> Report:
    """Puts tensors, and loads them."""
    embeddings = worker().embeddings
    embeddings.longest = 0.0
    keys = [f"{label} {number}" for number in range(TENSORS)]
    assert all(embeddings.put(key) for key in keys), "not all tensors were put"
    report = load_tensors(keys)
    report.saved = keys
    return report


def found(keys: list[str]) -> bool:
    return all(worker().embeddings.client.batch_exists(keys))


def load_tensors(keys: list[str]) -> Report:
    embeddings = worker().embeddings
    assert found(keys), "not all tensors are found"
    loaded = embeddings.load(keys)
    assert loaded == len(keys), f"{loaded} of {len(keys)} tensors were loaded"
    return Report(loaded=loaded, longest=embeddings.longest, codes=dict(embeddings.store.codes))


def storm_tensors(label: str, stop: Path) -> Report:
    """Puts and loads until a file appears. Calls may fail, but may not poison the client."""
    embeddings, report, number = worker().embeddings, Report(), 0
    embeddings.longest = 0.0
    while not stop.exists():
        key = f"{label} {number}"
        if embeddings.put(key):
            report.saved.append(key)
        else:
            report.failed += 1
        loaded = embeddings.load([key, f"{key} that nobody has put"])
        report.loaded += loaded
        report.missed += 1 - loaded
        number += 1
    report.longest, report.codes = embeddings.longest, dict(embeddings.store.codes)
    return report


def fill_with_tensors(masters: str) -> Report:
    """Puts and loads tensors until the pool has no room, as read leases keep all of them, and still loads them."""
    own = worker()
    own.module.use(own.scratch, masters)
    embeddings, report = own.module.Embeddings(), Report()
    leased = []
    for number in range(MANY):
        key = f"much {number}"
        if not embeddings.put(key):
            report.failed += 1
            continue
        report.saved.append(key)
        # Between the put and its first load, it may be the one object that can be evicted.
        if embeddings.load([key]):
            leased.append(key)
    report.loaded, report.missed = len(leased), len(report.saved) - len(leased)
    assert embeddings.store.codes["put -200"], "the pool was not filled"
    assert embeddings.load(leased) == len(leased), "a leased tensor is gone"
    report.longest, report.codes = embeddings.longest, dict(embeddings.store.codes)
    embeddings.client.close()
    return report


def press(masters: str) -> str:
    """Saves requests into a pool without room: vLLM holds back, and goes on once there is room again."""
    own = worker()
    own.module.use(own.scratch, masters)
    engine = own.module.Engine(own.config, own.module.HostCache("host"))
    assert not engine.save("refused")
    assert engine.store.codes["put -200"], f"the pool was not full: {engine.store.codes}"
    assert engine.worker.kv_send_thread._store_pressure_active
    assert engine.lookups.reset(), "the store was not cleared"
    assert engine.save("accepted")
    assert not engine.worker.kv_send_thread._store_pressure_active
    assert engine.load("accepted", engine.lookup("accepted"))
    codes = dict(engine.store.codes)
    engine.connector.shutdown()
    return f"{codes}, and saved after remove_all"


def keys(cluster: Cluster) -> int:
    return int(cluster.wait_for_leader().status().get("keys", 0))


class Both:
    """Two processes of vLLM."""

    def __init__(self, one: ProcessPoolExecutor, other: ProcessPoolExecutor, cluster: Cluster, scratch: Path) -> None:
        self.one, self.other, self.cluster, self.scratch = one, other, cluster, scratch
        self.requests: dict[str, list[str]] = {"host": [], "device": []}
        self.tensors: list[str] = []

    def save_and_load(self, label: str) -> None:
        for kind, saved in self.requests.items():
            with suite.step(f"{label}: KV cache in {kind} memory, saved and loaded") as note:
                report = self.one.submit(save_requests, kind, label).result()
                saved += report.saved
                note(str(report))
            with suite.step(f"{label}: KV cache in {kind} memory, loaded by another process") as note:
                note(str(self.other.submit(load_requests, kind, saved).result()))
        with suite.step(f"{label}: embeddings, put and loaded") as note:
            report = self.other.submit(put_tensors, label).result()
            self.tensors += report.saved
            note(str(report))
        with suite.step(f"{label}: embeddings, loaded by another process") as note:
            note(str(self.one.submit(load_tensors, self.tensors).result()))

    def kill_the_leader(self) -> None:
        stop = self.scratch / "stop"
        with suite.step("during: kill -9 of the leader while both processes save and load") as note:
            running: list[Any] = [self.one.submit(storm_requests, stop), self.other.submit(storm_tensors, "storm", stop)]

            def grows() -> None:
                count = keys(self.cluster)
                until("keys are written", lambda: any(each.done() for each in running) or keys(self.cluster) > count + 100)

            try:
                grows()
                self.cluster.wait_for_leader().kill()
                grows()
            finally:
                stop.touch()
            reports, tensors = (each.result() for each in running)
            for kind, report in reports.items():
                self.requests[kind] += report.saved
                note(f"{kind}: {report}")
            self.tensors += tensors.saved
            note(f"embeddings: {tensors}")

    def stop_a_store(self) -> None:
        stop = self.scratch / "stop-again"
        with suite.step("a store is stopped with SIGSTOP while embeddings are put and loaded") as note:
            running = self.other.submit(storm_tensors, "stopped", stop)
            store = self.cluster.stores[0]
            try:
                count = keys(self.cluster)
                until("tensors are put", lambda: running.done() or keys(self.cluster) > count + 5)
                store.pause()
                count = keys(self.cluster)
                until("tensors are put into the other store", lambda: running.done() or keys(self.cluster) > count + 20)
            finally:
                stop.touch()
                report = running.result()
                store.resume()
            note(str(report))
        with suite.step("the store goes on: the embeddings are loaded") as note:
            # Objects of a store that the leader suspects are not found.
            until("all tensors are found", lambda: self.one.submit(found, report.saved).result())
            note(str(self.one.submit(load_tensors, report.saved).result()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder into which vLLM's modules were unpacked")
    folder = parser.parse_args().folder.resolve()

    suite.headline("vLLM's MooncakeStoreConnector and embedding client, 3 masters and 2 stores")
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        import vllm_worker

        # They come first: this folder has a module of the same name.
        sys.path[:0] = vllm_worker.prepare(scratch, folder)
        driver = gpu.build(scratch)
        cluster = stack.enter_context(suite.cluster(3))
        for _ in range(2):
            cluster.add_store("768mb")
        one, other = (
            stack.enter_context(ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), start, (scratch, cluster.addresses, driver)))
            for _ in range(2)
        )
        both = Both(one, other, cluster, scratch)
        both.save_and_load("before")
        both.kill_the_leader()
        both.save_and_load("after")
        both.stop_a_store()
        with suite.cluster(3, "--read-lease", "60s") as small:
            small.add_store("64mb")
            with suite.step("a full pool: embeddings") as note:
                note(str(other.submit(fill_with_tensors, small.addresses).result()))
            with suite.step("a full pool: KV cache") as note:
                note(one.submit(press, small.addresses).result())
    suite.finish()


if __name__ == "__main__":
    main()
