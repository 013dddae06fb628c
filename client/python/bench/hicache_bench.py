"""Replays conversations as SGLang's HiCache does, on a pool of ours and on upstream's, with and without a kill of the master.

    pip download --no-deps sglang==0.5.23 && unzip -q -d sglang-wheel sglang-*.whl
    pip download --no-deps mooncake-transfer-engine-non-cuda==0.3.13.post1 && unzip -d upstream mooncake_*.whl
    python hicache_bench.py --sglang sglang-wheel --upstream upstream

The interpreter has the wheels of this project, torch, and what SGLang imports. Servers of our side are found as by the tests:
MC_BIN_DIR, beside the interpreter, or on PATH.

Two engines take requests in turns, as behind a router that does not look at prompts. Each is a process with SGLang's class
`MooncakeStore` and a host pool that holds the pages it used last. A request's prompt is looked up in this memory first. The pages
after that are looked up and fetched with the calls of HiCache's controller, in batches of 128: `batch_exists` up to the first
miss, `batch_get_v1`, and `batch_set_v1` of the pages that a prefill would compute. No model runs, so that the time of requests
is the time of the pool. Requests start at their time in the trace, divided by `--speed`; an engine that is late begins the next at once.

Without `--trace` the requests are generated; `--trace` reads a file in the format of Mooncake's published traces. Both are
described in conversations.py. Stores and engines share the host, so our side moves bytes through shared memory; a column has it
over TCP, as upstream and as between hosts.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import time
from collections import OrderedDict
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import conversations
import sides
from conversations import PAGE_TOKENS, Request
from sides import MIB, Side, Worker

from cluster import until

STORES = 2
SEGMENT = 1024 * MIB
ENGINES = 2
HOST_PAGES = 256
BATCH = 128
NAME = "hicache-bench"
OVER_TCP = "ours over TCP"


def page_key(page: int) -> str:
    """Of the length of HiCache's keys, which are SHA-256 of the tokens up to the end of the page."""
    return hashlib.sha256(f"{page}".encode()).hexdigest()


class HostPool:
    """What `MooncakeStore` asks of a host pool in the layout `page_first`: each page has its keys, then its values."""

    layout = "page_first"
    page_size = PAGE_TOKENS

    def __init__(self, pages: int, page_bytes: int) -> None:
        import torch

        self.half = page_bytes // 2
        self.kv_buffer = torch.zeros((pages, 2, self.half // 8), dtype=torch.int64)

    def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
        start = self.kv_buffer.data_ptr()
        slots = (indices[::PAGE_TOKENS] // PAGE_TOKENS).tolist()
        return [start + (2 * slot + half) * self.half for slot in slots for half in (0, 1)], [self.half] * (2 * len(slots))

    def get_ksize_per_token(self) -> int:
        return 2 * self.half // PAGE_TOKENS


class Engine:
    """One engine in a worker process."""

    COMMANDS = ("open", "replay", "clear")
    COUNTS = ("asked", "host", "pool", "computed", "stored", "wrong", "saved")
    CALLS = ("batch_exists", "batch_get_v1", "batch_set_v1")

    def open(self, masters: str, page_bytes: int) -> None:
        import torch
        from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
        from sglang.srt.mem_cache.storage.mooncake_store.mooncake_store import MooncakeStore

        extra = {"master_server_address": masters, "local_hostname": "127.0.0.1", "global_segment_size": 0, "protocol": "tcp"}
        config = HiCacheStorageConfig(
            tp_rank=0,
            tp_size=1,
            pp_rank=0,
            pp_size=1,
            attn_cp_rank=0,
            attn_cp_size=1,
            is_mla_model=False,
            enable_storage_metrics=False,
            is_page_first_layout=True,
            model_name=NAME,
            extra_config=extra,
        )
        self.backend = MooncakeStore(config)
        self.pool = HostPool(HOST_PAGES, page_bytes)
        self.backend.register_mem_pool_host(self.pool)
        self.tokens = torch.arange(PAGE_TOKENS)
        self.slots: OrderedDict[int, int] = OrderedDict()
        self.free: list[int] = []

    def clear(self) -> int:
        """Forgets the pages of this engine and removes those of the pool. Answers how many objects were removed, or a code."""
        self.slots.clear()
        self.free = list(range(HOST_PAGES))
        removed: int = self.backend.store.remove_all(True)
        return removed

    def replay(self, requests: list[tuple[float, int, list[int]]], start: float) -> dict[str, Any]:
        """Requests whose times are seconds after `start`, and what became of their pages."""
        self.counts = dict.fromkeys(self.COUNTS, 0)
        self.gets: list[tuple[int, float]] = []
        self.took: dict[str, list[float]] = {call: [0.0] for call in self.CALLS}
        late = 0.0
        for moment, length, pages in requests:
            delay = start + moment - time.time()
            if delay > 0:
                time.sleep(delay)
            late = max(late, -delay)
            self._serve(length, pages[:HOST_PAGES])
        return {**self.counts, "gets": self.gets, "took": self.took, "late": late}

    def _serve(self, length: int, pages: list[int]) -> None:
        host = next((index for index, page in enumerate(pages) if page not in self.slots), len(pages))
        for page in pages[:host]:
            self.slots.move_to_end(page)
        found = self._prefetch(pages[host:])
        computed = pages[host + found :]
        for page in computed:
            self._fill(page, self._place(page))
        self._backup(computed)
        self.counts["asked"] += len(pages)
        self.counts["host"] += host
        self.counts["pool"] += found
        self.counts["computed"] += len(computed)
        # The last page may be shorter.
        self.counts["saved"] += min(length, (host + found) * PAGE_TOKENS) - min(length, host * PAGE_TOKENS)

    def _prefetch(self, pages: list[int]) -> int:
        """Fetches pages up to the first one that the pool does not have, and says how many."""
        hits = got = 0
        for batch in batches(pages):
            count = self._timed(self.backend.batch_exists, [page_key(page) for page in batch])
            hits += count
            if count < len(batch):
                break
        for batch in batches(pages[:hits]):
            slots = [self._place(page) for page in batch]
            results = self._timed(self.backend.batch_get_v1, [page_key(page) for page in batch], self._indices(slots))
            self.gets.append((len(batch), self.took["batch_get_v1"][-1]))
            good = (*results, False).index(False)
            for page in batch[good:]:
                self._drop(page)
            self.counts["wrong"] += sum(not self._right(page, slot) for page, slot in zip(batch[:good], slots, strict=False))
            got += good
            if good < len(batch):
                break
        return got

    def _backup(self, pages: list[int]) -> None:
        for batch in batches(pages):
            indices = self._indices([self.slots[page] for page in batch])
            results = self._timed(self.backend.batch_set_v1, [page_key(page) for page in batch], indices)
            self.counts["stored"] += sum(results)
            if not all(results):
                break

    def _timed(self, call: Any, *arguments: Any) -> Any:
        began = time.perf_counter()
        result = call(*arguments)
        self.took[call.__name__].append(time.perf_counter() - began)
        return result

    def _place(self, page: int) -> int:
        """A slot for a page: its own, a free one, or that of the page that was used longest ago."""
        slot = self.slots.pop(page) if page in self.slots else self.free.pop() if self.free else self.slots.popitem(last=False)[1]
        self.slots[page] = slot
        return slot

    def _drop(self, page: int) -> None:
        self.free.append(self.slots.pop(page))

    def _indices(self, slots: list[int]) -> Any:
        import torch

        return (torch.tensor(slots)[:, None] * PAGE_TOKENS + self.tokens).flatten()

    def _fill(self, page: int, slot: int) -> None:
        self.pool.kv_buffer[slot, 0] = 2 * page
        self.pool.kv_buffer[slot, 1] = 2 * page + 1

    def _right(self, page: int, slot: int) -> bool:
        return all(bool((self.pool.kv_buffer[slot, half] == 2 * page + half).all()) for half in (0, 1))


class Auditor:
    """Looks at the pool while engines use it."""

    COMMANDS = ("open", "passes", "count")

    def open(self, masters: str) -> None:
        self.store = sides.connect(masters, 0)
        self.probes = 0

    def passes(self) -> bool:
        """Whether an object passes through the pool."""
        self.probes += 1
        key, value = f"probe-{self.probes}", b"probe"
        return bool(self.store.put(key, value) == 0 and self.store.get(key) == value)

    def count(self, pages: list[int]) -> int:
        """How many of these pages the pool has."""
        keys = [f"{NAME}_{page_key(page)}_0_{half}" for page in pages for half in "kv"]
        present = self.store.batch_is_exist(keys)
        return sum(present[index : index + 2] == [1, 1] for index in range(0, len(keys), 2))


def batches(pages: list[int]) -> list[list[int]]:
    return [pages[start : start + BATCH] for start in range(0, len(pages), BATCH)]


class Pool:
    """A side with stores, engines and an auditor."""

    def __init__(self, side: Side, sglang: Path, page_bytes: int) -> None:
        self.side = side
        for _ in range(STORES):
            side.add_store(SEGMENT)
        self.auditor = Worker(side, __file__, "auditor")
        self.auditor.ask("open", masters=side.masters)
        path = [*filter(None, [side.environ.get("PYTHONPATH")]), str(sglang)]
        self.engines = [Worker(side, __file__, "engine", PYTHONPATH=":".join(path)) for _ in range(ENGINES)]
        for engine in self.engines:
            engine.send("open", masters=side.masters, page_bytes=page_bytes)

    def ready(self) -> None:
        """Waits until the engines have loaded SGLang, which takes half a minute of two cores."""
        for engine in self.engines:
            engine.receive()

    def replay(self, requests: list[Request], speed: float, kill: bool) -> dict[str, float]:
        """One turn on an empty pool."""
        until("the pool serves", lambda: self.auditor.ask("passes"))
        until("the pool is empty", lambda: all(engine.ask("clear") >= 0 for engine in self.engines))
        half = requests[-1].timestamp / speed / 2
        stored = sorted({page for request in requests if request.timestamp / speed < half for page in request.pages})
        start = time.time() + 0.5
        for number, engine in enumerate(self.engines):
            part = [(request.timestamp / speed, request.input_length, request.pages) for request in requests[number::ENGINES]]
            engine.send("replay", requests=part, start=start)
        figures: dict[str, float] = {}
        if kill:
            time.sleep(max(0, start + half - time.time()))
            figures["before"] = self.auditor.ask("count", pages=stored)
            self.side.kill_master()
            self.side.restart_master()
            until("the pool serves", lambda: self.auditor.ask("passes"))
            figures["after"] = self.auditor.ask("count", pages=stored)
        return figures | merged([engine.receive() for engine in self.engines])

    def end(self) -> None:
        for worker in [self.auditor, *self.engines]:
            worker.end()


def merged(results: list[dict[str, Any]]) -> dict[str, float]:
    """Figures of a turn, of all engines."""
    figures: dict[str, float] = {name: sum(result[name] for result in results) for name in Engine.COUNTS}
    figures["late"] = max(result["late"] for result in results)
    for call in Engine.CALLS:
        figures[f"{call}_longest"] = max(max(result["took"][call]) for result in results)
        figures[f"{call}_all"] = sum(sum(result["took"][call]) for result in results)
    figures["ratio"] = figures["pool"] / (figures["asked"] - figures["host"])
    # The share of each page in the call that fetched it.
    pages = sorted(seconds / count * 1000 for result in results for count, seconds in result["gets"] for _ in range(count))
    figures |= {"p50": percentile(pages, 0.5), "p99": percentile(pages, 0.99)}
    return figures


def percentile(values: list[float], share: float) -> float:
    return values[min(int(len(values) * share), len(values) - 1)] if values else float("nan")


ROWS = {
    "asked": ("pages of all prompts", ",.0f"),
    "host": ("in the engine's own memory", ",.0f"),
    "pool": ("fetched from the pool", ",.0f"),
    "computed": ("computed", ",.0f"),
    "stored": ("of these stored", ",.0f"),
    "ratio": ("hit ratio of the pool", ".3f"),
    "saved": ("tokens of prefill saved by the pool", ",.0f"),
    "p50": ("get of a page, p50 (ms)", ".3f"),
    "p99": ("get of a page, p99 (ms)", ".3f"),
    **{f"{call}_longest": (f"longest {call} (s)", ".2f") for call in Engine.CALLS},
    **{f"{call}_all": (f"all {call} (s)", ".2f") for call in Engine.CALLS},
    "late": ("latest start of a request (s)", ".2f"),
    "wrong": ("pages with wrong bytes", ",.0f"),
    "before": ("pages in the pool before the kill", ",.0f"),
    "after": ("the same pages after it", ",.0f"),
}


def compare(pools: list[Pool], requests: list[Request], speed: float, turns: int) -> None:
    """Prints the medians of each side, without and with a kill of the master."""
    columns = [(pool, False) for pool in pools] + [(pool, True) for pool in pools if pool.side.name != OVER_TCP]
    results: list[list[dict[str, float]]] = [[] for _ in columns]
    for turn in range(turns):
        # The side that begins changes from turn to turn.
        for column in range(len(columns))[:: -1 if turn % 2 else 1]:
            pool, kill = columns[column]
            results[column].append(pool.replay(requests, speed, kill))
    print(f"{'':36}", *(f"{pool.side.name + (', killed' if kill else ''):>18}" for pool, kill in columns), f"  (medians of {turns} turns)")
    for name, (label, form) in ROWS.items():
        medians = [statistics.median(turn[name] for turn in found) if name in found[0] else None for found in results]
        print(f"{label:36}", *(f"{'' if median is None else format(median, form):>18}" for median in medians))
    for pool in pools:
        print(f"{pool.side.name}: {pool.side.options}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("work", help="answer commands").add_argument("role", choices=["engine", "auditor"])
    parser.add_argument("--sglang", type=Path, help="folder into which SGLang's wheel was unpacked")
    parser.add_argument("--upstream", type=Path, help="folder into which upstream's wheel was unpacked")
    parser.add_argument("--trace", type=Path, help="file with requests, .gz or not (generated ones)")
    parser.add_argument("--requests", type=int, default=600, help="requests of the file that are replayed (600)")
    parser.add_argument("--conversations", type=int, default=120, help="generated conversations (120)")
    parser.add_argument("--speed", type=float, default=40, help="seconds of the trace in a second (40)")
    parser.add_argument("--page-kib", type=int, default=256, help="KiB of a page, half keys and half values (256); models have more")
    parser.add_argument("--turns", type=int, default=3, help="turns of each side (3)")
    arguments = parser.parse_args()
    if arguments.command == "work":
        role = Engine() if arguments.role == "engine" else Auditor()
        sides.work({name: getattr(role, name) for name in role.COMMANDS})
        return
    if arguments.sglang is None:
        parser.error("--sglang: name the folder into which SGLang's wheel was unpacked")

    trace = arguments.trace
    requests = conversations.read(trace, arguments.requests) if trace else conversations.generate(arguments.conversations)
    distinct = len({page for request in requests for page in request.pages})
    seconds = requests[-1].timestamp
    print(
        f"{len(requests)} requests of {seconds:.0f} s in {seconds / arguments.speed:.0f} s, {distinct:,} different pages of "
        f"{arguments.page_kib} KiB, {distinct * arguments.page_kib // 1024:,} MiB; {STORES} stores of {SEGMENT // MIB:,} MiB, "
        f"{ENGINES} engines with {HOST_PAGES} pages",
        flush=True,
    )
    with TemporaryDirectory() as directory, ExitStack() as stack:
        over_tcp = sides.ours(Path(directory) / "tcp", OVER_TCP, MC_TRANSPORT="tcp")
        running = [stack.enter_context(sides.ours(Path(directory) / "ours")), stack.enter_context(over_tcp)]
        if arguments.upstream:
            running.append(stack.enter_context(sides.upstream(Path(directory) / "upstream", arguments.upstream)))
        pools = []
        for side in running:
            pools.append(Pool(side, arguments.sglang.resolve(), arguments.page_kib << 10))
            stack.callback(pools[-1].end)
        for pool in pools:
            pool.ready()
        compare(pools, requests, arguments.speed, arguments.turns)


if __name__ == "__main__":
    main()
