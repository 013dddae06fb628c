"""Drives LMDeploy's own store connector on the pool, before, during and after a kill of the leader.

    pip download --no-deps lmdeploy==0.18.0 && unzip -q -d lmdeploy-wheel lmdeploy-*.whl
    python tests/engines/lmdeploy.py lmdeploy-wheel

The interpreter has the wheels of this project, torch, and what LMDeploy imports besides. Two engines run in this process, each
with LMDeploy's scheduler, worker, threads, and lookup server; requests are its sequences. Two things are replaced, because
there is no GPU: `is_cuda` of the cache rows, which are memory of the host, and `torch.cuda.Event`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import suite

from cluster import Cluster, until

LAYERS = 4
GPU_BLOCKS = 64
BLOCK_TOKENS = 16
ROW_BYTES = 8 << 10
MIB = 1 << 20
INVALID_PARAMS, NOT_FOUND = -600, -704


class Engine:
    """Both sides of LMDeploy's connector, and the cache of an engine."""

    numbers = iter(range(1_000_000))

    def __init__(self, cluster: Cluster) -> None:
        import torch
        from lmdeploy.messages import KVTransferConfig
        from lmdeploy.pytorch.config import CacheConfig
        from lmdeploy.pytorch.kv_connector import KVConnectorRole, build_kv_connector

        class Row(torch.Tensor):
            """Memory of the host that passes for a GPU's."""

            is_cuda = True

        folder = cluster.directory / f"engine-{next(self.numbers)}"
        folder.mkdir()
        settings = {
            "metadata_server": "P2PHANDSHAKE",
            "master_server_address": cluster.addresses,
            "protocol": "tcp",
            "global_segment_size": 64 * MIB,
            "local_buffer_size": "16mb",
        }
        (folder / "mooncake.json").write_text(json.dumps(settings))
        extra = {
            "mooncake_config_path": str(folder / "mooncake.json"),
            "model_name": "model-of-a-test",
            "lookup_rpc_path": f"ipc://{folder}/lookup.sock",
        }
        self.config = CacheConfig(
            max_batches=4,
            block_size=BLOCK_TOKENS,
            num_cpu_blocks=0,
            num_gpu_blocks=GPU_BLOCKS,
            kv_transfer_config=KVTransferConfig("MooncakeStoreConnector", "kv_both", extra),
        )
        self.scheduler: Any = build_kv_connector(KVConnectorRole.SCHEDULER, self.config)
        self.worker: Any = build_kv_connector(KVConnectorRole.WORKER, self.config)
        shape = (GPU_BLOCKS, ROW_BYTES)
        self.rows = {
            name: [torch.randint(256, shape, dtype=torch.uint8).as_subclass(Row) for _ in range(LAYERS)] for name in ("key", "value")
        }
        self.worker.register_kv_caches(self.rows)

    @property
    def store(self) -> Any:
        return self.worker.connector_worker.store

    def key_of(self, block_hash: bytes) -> str:
        from lmdeploy.pytorch.kv_connector.mooncake.store.data import build_store_key

        return build_store_key(self.worker.connector_worker.key_metadata, 0, block_hash)

    def request(self, tokens: list[int]) -> Any:
        """A request as LMDeploy's scheduler has it. Its last token is computed in any case."""
        from lmdeploy.pytorch.messages import SamplingParam, SchedulerSession, SequenceMeta, UpdateTokenMode
        from lmdeploy.pytorch.strategies.ar.sequence import ARSequenceStrategy

        meta = SequenceMeta(block_size=BLOCK_TOKENS, strategy=ARSequenceStrategy())
        sequence = meta.strategy.make_sequence(
            seq_id=next(self.numbers),
            session=SchedulerSession(0, meta, None),
            sampling_param=SamplingParam(),
            adapter_name=None,
            migration_request=None,
            resp_cache=False,
            preserve_cache=False,
        )
        sequence.update_token_ids([*tokens, 0], multimodals=None, embeddings=None, mode=UpdateTokenMode.INPUTS)
        self.scheduler.on_new_request(sequence)
        return sequence

    def lookup(self, request: Any) -> int:
        """Blocks of the request that the pool has, through the lookup server."""
        found: list[int] = []

        def answered() -> bool:
            tokens, _ = self.scheduler.get_num_new_matched_tokens(request, 0)
            found.extend([] if tokens is None else [tokens])
            return tokens is not None

        until("the lookup is answered", answered)
        return found[0] // BLOCK_TOKENS

    def step(self, metadata: Any) -> Any:
        """One step of the worker. Returns what it has finished, as the scheduler sees it."""
        self.worker.bind_connector_metadata(metadata)
        self.worker.start_load_kv()
        self.worker.start_save_kv()
        outputs: list[Any] = []

        def finished() -> bool:
            output = self.worker.get_finished()
            if output.finished_receiving or output.completed_save_ids:
                outputs.append(output)
            return bool(outputs)

        until("the step has finished", finished)
        self.worker.clear_connector_metadata()
        return outputs[0]

    def save(self, request: Any, blocks: list[int]) -> None:
        """Saves the blocks of a request that was computed."""
        from lmdeploy.pytorch.kv_connector.base import KVConnectorStepInput

        tokens = len(blocks) * BLOCK_TOKENS
        step = KVConnectorStepInput([request], (tokens,), (tuple(blocks),), (tuple(blocks),))
        output = self.step(self.scheduler.build_connector_meta(step))
        assert len(self.scheduler.update_connector_output(output).completed_save_ids) == 1

    def load(self, request: Any, blocks: list[int]) -> bool:
        """Loads what a lookup has found into blocks of this engine; returns whether LMDeploy takes it for loaded."""
        from lmdeploy.pytorch.kv_connector.base import KVConnectorStepInput

        self.scheduler.update_state_after_alloc(request, tuple(blocks), len(blocks) * BLOCK_TOKENS)
        output = self.step(self.scheduler.build_connector_meta(KVConnectorStepInput()))
        (result,) = self.scheduler.update_connector_output(output).load_results
        assert result.request_id == request.seq_id
        return bool(result.success)

    def block(self, number: int) -> list[bytes]:
        """The bytes of a block, row by row."""
        return [row[number].numpy().tobytes() for rows in self.rows.values() for row in rows]

    def close(self) -> None:
        self.scheduler.shutdown()
        self.worker.shutdown()


@contextmanager
def engine(cluster: Cluster) -> Iterator[Engine]:
    made = Engine(cluster)
    try:
        yield made
    finally:
        made.close()


def tokens(seed: int, blocks: int) -> list[int]:
    return [seed * 1000 + at for at in range(blocks * BLOCK_TOKENS)]


def hashes(of: list[int]) -> tuple[bytes, ...]:
    from lmdeploy.pytorch.kv_connector.mooncake.store.data import build_prefix_block_hashes

    return build_prefix_block_hashes(of, BLOCK_TOKENS)


def save_here_and_load_there(here: Engine, there: Engine) -> str:
    prompt = tokens(1, 12)
    first = here.request(prompt)
    assert here.lookup(first) == 0
    blocks = list(range(5, 17))
    here.save(first, blocks)
    # A block that exists is not saved again, whatever the memory has.
    before = [here.block(block) for block in blocks]

    for length in (12, 7):
        request = there.request(prompt[: length * BLOCK_TOKENS])
        assert there.lookup(request) == length
        into = list(range(60, 60 - length, -1))
        assert there.load(request, into)
        assert [there.block(block) for block in into] == before[:length]
    longer = there.request([*prompt, *tokens(2, 4)])
    assert there.lookup(longer) == 12
    return f"12 blocks of {2 * LAYERS} rows of {ROW_BYTES >> 10} KiB"


def load_fails(here: Engine, there: Engine, spoil: Callable[[str], None], code: int, seed: int) -> str:
    """Loads a prefix after one of its objects was changed, as it can be between a lookup and the load."""
    prompt = tokens(seed, 3)
    here.save(here.request(prompt), [0, 1, 2])
    request = there.request(prompt)
    assert there.lookup(request) == 3
    key = there.key_of(hashes(prompt)[1])
    spoil(key)
    assert not there.load(request, [20, 21, 22])
    rows = [rows[30] for rows in (*there.rows["key"], *there.rows["value"])]
    got = there.store.batch_get_into_multi_buffers([key], [[row.data_ptr() for row in rows]], [[ROW_BYTES] * len(rows)])
    assert got == [code], got
    # LMDeploy computes the rest of such a request, and asks no more.
    assert there.lookup(request) == 0
    return f"code {code}"


def replaced(engine: Engine, length: int) -> Callable[[str], None]:
    def replace(key: str) -> None:
        assert engine.store.remove(key, True) == 0
        assert engine.store.put(key, bytes(length)) == 0

    return replace


def kill_under_way(here: Engine, there: Engine, cluster: Cluster) -> str:
    """Saves and loads go on while the leader dies. A prefix that was found stays, with its rows."""
    saved: dict[int, list[list[bytes]]] = {}
    missed = 0

    def round_(seed: int) -> int:
        nonlocal missed
        prompt, blocks = tokens(seed, 3), [seed * 3 % 48 + at for at in range(3)]
        for block in blocks:
            for row in (*here.rows["key"], *here.rows["value"]):
                row[block].random_(256)
        here.save(here.request(prompt), blocks)
        expected = [here.block(block) for block in blocks]
        request = there.request(prompt)
        found = there.lookup(request)
        into = [50 + at for at in range(found)]
        if found and there.load(request, into):
            assert [there.block(block) for block in into] == expected[:found], "wrong bytes"
        if found == 3:
            saved[seed] = expected
        else:
            missed += 1
        return len(saved)

    seeds = iter(range(100, 1_000_000))
    with suite.LeaderKill(cluster, lambda _: len(saved) >= 8) as kill:
        until("the leader is killed in the middle of a round", lambda: round_(next(seeds)) and kill.struck)
    seen = len(saved)
    until("saves go on with another leader", lambda: round_(next(seeds)) >= seen + 8)
    for seed, expected in saved.items():
        request = there.request(tokens(seed, 3))
        assert there.lookup(request) == 3
        assert there.load(request, [50, 51, 52])
        assert [there.block(block) for block in (50, 51, 52)] == expected
    return f"{len(saved)} prefixes, {missed} saves or lookups failed in between"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder into which LMDeploy's wheel was unpacked")
    # This file has the name of the package.
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != Path(__file__).resolve().parent]
    sys.path.insert(0, str(parser.parse_args().folder.resolve()))
    import torch
    from lmdeploy.utils import get_logger

    class Event:
        """Without a GPU, work is done when it was given."""

        def record(self) -> None: ...
        def synchronize(self) -> None: ...

    torch.cuda.Event = Event  # type: ignore[assignment, misc]
    get_logger("lmdeploy").setLevel("CRITICAL")

    suite.headline("LMDeploy's own store connector")
    size = 2 * LAYERS * ROW_BYTES
    with suite.cluster(3) as cluster, engine(cluster) as here, engine(cluster) as there:
        with suite.step("save, look up, load") as note:
            note(save_here_and_load_there(here, there))
        with suite.step("an object is gone") as note:
            note(load_fails(here, there, lambda key: here.store.remove(key, True), NOT_FOUND, 3))
        with suite.step("an object is shorter") as note:
            note(load_fails(here, there, replaced(here, 1), INVALID_PARAMS, 4))
        with suite.step("an object is longer") as note:
            note(load_fails(here, there, replaced(here, size + 1), INVALID_PARAMS, 5))
        with suite.step("the leader is killed") as note:
            note(kill_under_way(here, there, cluster))
        with suite.step("afterwards") as note:
            note(load_fails(here, there, replaced(here, size - 1), INVALID_PARAMS, 6))
    suite.finish()


if __name__ == "__main__":
    main()
