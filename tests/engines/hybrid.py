"""Drives SGLang's own `MooncakeStore` with the host pools of hybrid models, through a kill of the leader.

    pip download --no-deps sglang==0.5.23 && unzip -q -d sglang-wheel sglang-*.whl
    python tests/engines/hybrid.py sglang-wheel

The interpreter has the wheels of this project, torch, and what SGLang imports besides (about 6 GB). hybrid_pools.py says
which pools there are, and what stands for memory of a GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import multiprocessing
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import suite

from cluster import Cluster, until

# A conversation of eight pages, in three nodes of the prefix tree.
NODES = [(0, 3), (3, 5), (5, 8)]
LENGTH = NODES[-1][1]

CASES = [(model, layout) for model in ("dsa", "mamba", "swa", "deepseek_v4") for layout in ("page_first", "page_first_direct")]
# The layout with several buffers a page.
CASES.append(("deepseek_v4", "layer_first"))


def page_hashes(conversation: str) -> list[str]:
    """Keys of the pages, as the prefix tree makes them: each hash continues the one before."""
    hashes = [hashlib.sha256(conversation.encode()).hexdigest()]
    while len(hashes) < LENGTH:
        hashes.append(hashlib.sha256(hashes[-1].encode()).hexdigest())
    return hashes


@dataclass
class Report:
    """What one process saw."""

    conversations: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    acknowledged: int = 0
    refused: int = 0
    read: int = 0
    missed: int = 0
    longest: float = 0.0

    def add(self, other: Report) -> None:
        for case, names in other.conversations.items():
            self.conversations.setdefault(case, []).extend(names)
        self.acknowledged += other.acknowledged
        self.refused += other.refused
        self.read += other.read
        self.missed += other.missed
        self.longest = max(self.longest, other.longest)


class Engine:
    """SGLang's storage with the pools of one model, in this process."""

    def __init__(self, masters: str, model: str, layout: str, groups: bool = False) -> None:
        import hybrid_pools
        from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, HiCacheStorageExtraInfo
        from sglang.srt.mem_cache.storage.mooncake_store.mooncake_store import MooncakeStore

        logging.getLogger("sglang").setLevel(logging.WARNING)
        self.pools, self.case = hybrid_pools, (model, layout)
        self.stack = hybrid_pools.build(model, layout)
        config = HiCacheStorageConfig(
            tp_rank=0,
            tp_size=1,
            pp_rank=0,
            pp_size=1,
            attn_cp_rank=0,
            attn_cp_size=1,
            is_mla_model=self.stack.is_mla,
            enable_storage_metrics=True,
            is_page_first_layout=layout != "layer_first",
            model_name=f"tests/{model}-{layout}",
            extra_config={
                "master_server_address": masters,
                "global_segment_size": 0,
                "protocol": "tcp",
                "enable_group_semantics": groups,
            },
        )
        self.store = MooncakeStore(config, self.stack.anchor)
        self.store.register_mem_pool_host(self.stack.anchor)
        for side in self.stack.sides:
            self.store.register_mem_host_pool_v2(side.pool, side.name)
        self.store.on_host_pools_registered()
        self.extra = HiCacheStorageExtraInfo(extra_info={"session_id": "session"})
        self.longest = 0.0

    def call(self, method: Any, *arguments: Any) -> Any:
        began = time.monotonic()
        try:
            return method(*arguments)
        finally:
            self.longest = max(self.longest, time.monotonic() - began)

    def transfer(self, side: Any, keys: list[str], slots: Any = None) -> Any:
        from sglang.srt.mem_cache.hicache_storage import PoolTransfer

        return PoolTransfer(name=side.name, host_indices=slots, keys=keys, hit_policy=side.policy)

    def saved(self, side: Any) -> list[int]:
        """Pages of a conversation that have something in a pool."""
        if side.window is None:
            return list(range(LENGTH))
        return [page for begin, end in NODES for page in range(max(begin, end - side.window), end)]

    def restorable(self) -> list[int]:
        """Lengths of prefixes that can be restored: the windows before their ends are complete."""
        trailing = [(side.window, self.saved(side)) for side in self.stack.sides if side.window is not None]
        return [
            length
            for length in range(1, LENGTH + 1)
            if all(page in saved for window, saved in trailing for page in range(max(0, length - window), length))
        ]

    def backup(self, conversation: str) -> list[bool]:
        """Fills pages and writes them node by node, side pools first as SGLang does. Says which are acknowledged as a whole."""
        keys, stack = page_hashes(conversation), self.stack
        size = stack.page_size
        slots = stack.anchor.alloc(LENGTH * size)
        if stack.anchor.kv_buffer is not None:
            self.pools.fill(stack.anchor, "kv", slots, keys)
        acknowledged = [True] * LENGTH
        for begin, end in NODES:
            taken = []
            for side in stack.sides:
                pages = [page for page in self.saved(side) if begin <= page < end]
                region = side.pool.alloc(len(pages) * side.pool.page_size)
                self.pools.fill(side.pool, side.name.value, region, [keys[page] for page in pages])
                taken.append((side, pages, region))
            transfers = [self.transfer(side, [keys[page] for page in pages], region) for side, pages, region in taken]
            results = self.call(self.store.batch_set_v2, transfers, self.extra)
            values = self.call(self.store.batch_set_v1, keys[begin:end], slots[begin * size : end * size], self.extra)
            for page, result in zip(range(begin, end), values, strict=True):
                acknowledged[page] &= result
            for side, pages, region in taken:
                for page, result in zip(pages, results[side.name], strict=True):
                    acknowledged[page] &= result
                side.pool.free(region)
        stack.anchor.free(slots)
        return acknowledged

    def lookup(self, conversation: str) -> Any:
        keys = page_hashes(conversation)
        query = [self.transfer(side, keys if side.window is None else keys[-side.window :]) for side in self.stack.sides]
        return self.call(self.store.batch_exists_v2, keys, query, self.extra)

    def load(self, conversation: str, length: int) -> list[bool]:
        """Reads the first pages and what the side pools have of them. Says which were read; wrong bytes fail."""
        keys, stack = page_hashes(conversation), self.stack
        size = stack.page_size
        slots = stack.anchor.alloc(length * size)
        loaded = list(self.call(self.store.batch_get_v1, keys[:length], slots, self.extra))
        for page, result in enumerate(loaded):
            if result and stack.anchor.kv_buffer is not None:
                assert self.pools.holds(stack.anchor, "kv", int(slots[page * size]), keys[page]), f"{self.case}: page {page}"
        taken = []
        for side in stack.sides:
            pages = [page for page in self.saved(side) if page < length]
            taken.append((side, pages, side.pool.alloc(len(pages) * side.pool.page_size)))
        transfers = [self.transfer(side, [keys[page] for page in pages], region) for side, pages, region in taken]
        # All pools in one call.
        results = self.call(self.store.batch_get_v2, transfers, self.extra)
        for side, pages, region in taken:
            firsts = region[:: side.pool.page_size].tolist()
            for page, first, result in zip(pages, firsts, results[side.name], strict=True):
                loaded[page] &= result
                if result:
                    name = side.name.value
                    assert self.pools.holds(side.pool, name, first, keys[page]), f"{self.case}: {name} of page {page}"
            side.pool.free(region)
        stack.anchor.free(slots)
        return loaded


# The engines of this process, by masters, case and whether they use groups.
engines: dict[tuple[Any, ...], Engine] = {}


def engine(masters: str, model: str, layout: str, groups: bool = False) -> Engine:
    name = (masters, model, layout, groups)
    if name not in engines:
        engines[name] = Engine(*name)
    return engines[name]


def write(masters: str, label: str) -> Report:
    """Writes a conversation of each case, and reads it into another region. Nothing may fail."""
    report = Report()
    for model, layout in CASES:
        own = engine(masters, model, layout)
        assert all(own.backup(label)), f"{model} {layout}: not all pages were acknowledged"
        report.conversations[model, layout] = [label]
        report.acknowledged += LENGTH
    report.add(read(masters, report.conversations))
    return report


def read(masters: str, conversations: dict[tuple[str, str], list[str]]) -> Report:
    """Looks up and reads what other processes have written. Every page must be there."""
    report = Report()
    for (model, layout), names in conversations.items():
        own = engine(masters, model, layout)
        own.longest = 0.0
        for name in names:
            found = own.lookup(name)
            assert found.restorable_prefix_pages == own.restorable(), f"{model} {layout} {name}: {found}"
            assert found.kv_hit_pages == LENGTH, f"{model} {layout} {name}: {found}"
            assert all(own.load(name, LENGTH)), f"{model} {layout} {name}: not all pages were read"
            report.read += LENGTH
        report.longest = max(report.longest, own.longest)
    return report


def holes(masters: str) -> str:
    """Removes one part of the last page, and reads the longest prefix that is left."""
    notes = []
    for model, layout in CASES:
        own = engine(masters, model, layout)
        side = own.stack.sides[-1]
        label = "with a hole"
        assert all(own.backup(label))
        parts, _ = own.store._get_hybrid_page_component_keys(page_hashes(label)[-1:], own.transfer(side, []))
        assert own.store.store.remove(own.store._tag_keys(parts)[-1], True) == 0
        left = [length for length in own.restorable() if length != LENGTH]
        found = own.lookup(label)
        assert found.restorable_prefix_pages == left, f"{model} {layout}: {found}"
        assert all(own.load(label, found.kv_hit_pages))
        notes.append(f"{model} {left}")
    return ", ".join(dict.fromkeys(notes))


def several_buffers(masters: str) -> str:
    """Says how many buffers a page has in each pool of the case with several."""
    stack = engine(masters, *CASES[-1]).stack
    counts = {}
    for side in stack.sides:
        region = side.pool.alloc(side.pool.page_size)
        counts[side.name.value] = len(side.pool.get_page_buffer_meta(region)[0])
        side.pool.free(region)
    assert len(set(counts.values())) > 1, f"one call has pages of one kind alone: {counts}"
    return str(counts)


def storm(masters: str, stop: Path) -> Report:
    """Writes and reads until a file appears. Calls may fail, but may not raise, lie or give wrong bytes."""
    report = Report()
    rounds = 0
    for own in engines.values():
        own.longest = 0.0
    while not stop.exists():
        model, layout = CASES[rounds % len(CASES)]
        own, name = engine(masters, model, layout), f"round {rounds}"
        acknowledged = own.backup(name)
        report.acknowledged += sum(acknowledged)
        report.refused += LENGTH - sum(acknowledged)
        if all(acknowledged):
            report.conversations.setdefault((model, layout), []).append(name)
        length = own.lookup(name).kv_hit_pages
        loaded = own.load(name, length) if length else []
        report.read += sum(loaded)
        report.missed += LENGTH - sum(loaded)
        rounds += 1
    report.longest = max(own.longest for own in engines.values())
    return report


def flood(masters: str, model: str, layout: str, groups: bool, rounds: int) -> dict[str, int]:
    """Writes more than the pool holds. Gives the number of objects of each page that was acknowledged as a whole."""
    own = engine(masters, model, layout, groups)
    pages: dict[str, int] = {}
    for number in range(rounds):
        name = f"flood {number}"
        for page, (key, acknowledged) in enumerate(zip(page_hashes(name), own.backup(name), strict=True)):
            if acknowledged:
                values = 0 if own.stack.anchor.kv_buffer is None else 1 if own.stack.is_mla else 2
                sides = [side for side in own.stack.sides if page in own.saved(side)]
                parts = [own.store._get_hybrid_page_component_keys([key], own.transfer(side, []))[1] for side in sides]
                pages[key] = values + sum(parts)
    return pages


def keys(cluster: Cluster) -> list[str]:
    """All keys of the pool, once eviction is over: a listing takes several looks at the index, and misses what goes in between."""
    listing, before = listed(cluster), []
    while sorted(listing) != sorted(before):
        listing, before = listed(cluster), listing
    return listing


def listed(cluster: Cluster) -> list[str]:
    """One listing of all keys of the pool."""
    found: list[str] = []
    query: str | None = ""
    while query is not None:
        with urllib.request.urlopen(f"http://{cluster.wait_for_leader().http}/get_all_keys{query}", timeout=30) as answer:
            found += answer.read().decode().split()
            following = answer.headers["mc-next"]
        query = None if following is None else "?" + urllib.parse.urlencode({"from": following})
    return found


def evict(writer: ProcessPoolExecutor, cluster: Cluster, model: str, layout: str, groups: bool) -> str:
    """Fills the pool, and counts pages of which a part alone is left."""
    leader = cluster.wait_for_leader()
    pages = writer.submit(flood, cluster.addresses, model, layout, groups, 300).result()
    present: dict[str, list[str]] = {page: [] for page in pages}
    for key in keys(cluster):
        for part in key.split("_"):
            if part in present:
                present[part].append(key.partition(part)[2])
    gone = sum(not parts for parts in present.values())
    whole = sum(len(parts) == pages[page] for page, parts in present.items())
    left = {number: parts for number, (page, parts) in enumerate(present.items()) if 0 < len(parts) != pages[page]}
    broken = len(left)
    assert gone and whole, f"{gone} pages are gone and {whole} are left: the pool was not filled"
    assert not groups or not broken, (
        f"{broken} pages have lost a part{'' if cluster.leader() is leader else ', and the leader has changed'}: {left}"
    )
    return f"{len(pages)} pages written: {gone} gone, {whole} whole, {broken} in part"


def process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def summary(report: Report) -> str:
    written = f"{report.acknowledged} pages acknowledged, {report.refused} refused, " if report.acknowledged or report.refused else ""
    return f"{written}{report.read} read, {report.missed} missed, longest call {report.longest:.1f} s"


def through_a_kill() -> None:
    with suite.cluster(3) as cluster, process() as writer, process() as reader, tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            cluster.add_store("512mb")
        masters, stop = cluster.addresses, Path(folder) / "stop"
        written = Report()

        def keys_now() -> int:
            return int(cluster.wait_for_leader().status().get("keys", 0))

        with suite.step("before: written, and read into another region") as note:
            before = writer.submit(write, masters, "before").result()
            written.add(before)
            note(summary(before))
        with suite.step("before: a second process with empty pools reads every page") as note:
            note(summary(reader.submit(read, masters, written.conversations).result()))
        with suite.step("before: pages of one and of several buffers in one call") as note:
            note(writer.submit(several_buffers, masters).result())
        with suite.step("before: prefixes that can be restored without the last page") as note:
            note(writer.submit(holes, masters).result())
        with suite.step("during: kill -9 of the leader while pages are written and read") as note:
            pending = writer.submit(storm, masters, stop)
            count = keys_now()
            until("the storm writes", lambda: pending.done() or keys_now() > count + 200)
            cluster.wait_for_leader().kill()
            count = keys_now()
            until("it writes under the next leader", lambda: pending.done() or keys_now() > count + 200)
            stop.touch()
            during = pending.result()
            written.add(during)
            note(summary(during))
        with suite.step("after: written, and read into another region") as note:
            after = writer.submit(write, masters, "after").result()
            written.add(after)
            note(summary(after))
        with suite.step("after: another process with empty pools reads all of the three") as note, process() as last:
            note(summary(last.submit(read, masters, written.conversations).result()))


def groups() -> None:
    with process() as writer:
        for model, layout in (("dsa", "page_first_direct"), ("mamba", "page_first"), ("swa", "page_first_direct")):
            for grouped in (False, True):
                with (
                    suite.cluster(3) as cluster,
                    suite.step(f"{model}, {layout}: eviction {'with' if grouped else 'without'} enable_group_semantics") as note,
                ):
                    cluster.add_store("32mb")
                    note(evict(writer, cluster, model, layout, grouped))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder into which SGLang's wheel was unpacked")
    # It comes first: this folder has a module of the same name.
    sys.path.insert(0, str(parser.parse_args().folder.resolve()))

    suite.headline("SGLang's MooncakeStore with hybrid pools, 3 masters and 2 stores")
    through_a_kill()
    groups()
    suite.finish()


if __name__ == "__main__":
    main()
