"""vLLM's own connector and embedding client in this process, with memory of the host and of a device that is made up.

Only this stands for a GPU: the driver of client/python/tests/gpu.py, whose memory no plain access can reach, and an event of
`torch.cuda` that is over at once. The configuration is a real one, of a model without weights on vLLM's CPU platform.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from cluster import LOOPBACK, free_ports, until
from gpu import Driver, Memory

BLOCK, HEADS, HEAD = 32, 8, 64
# Blocks of a request in each group, and of the whole cache.
LENGTH, BLOCKS = 8, 80
PAGE = 2 * BLOCK * HEADS * HEAD * 2
GROUPS = (["full.0", "full.1"], ["window.0", "window.1"])
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HEADS * HEAD,
    "intermediate_size": 64,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "num_hidden_layers": 4,
    "head_dim": HEAD,
    "vocab_size": 128,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.0+cpu\n"


class Event:
    """What was asked of a stream is done."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


def prepare(scratch: Path, vllm: Path) -> list[str]:
    """Settings of a process that imports vLLM, and the folders that it imports from."""
    package = scratch / "vllm-0.33.0+cpu.dist-info"
    package.mkdir()
    (package / "METADATA").write_text(METADATA)
    (scratch / "model").mkdir()
    (scratch / "model" / "config.json").write_text(json.dumps(MODEL))
    path = [str(scratch), str(vllm)]
    os.environ |= {
        # vLLM looks at classes of models in a process of its own.
        "PYTHONPATH": os.pathsep.join(path),
        "HF_HUB_OFFLINE": "1",
        "VLLM_CACHE_ROOT": str(scratch / "cache"),
        "VLLM_RPC_BASE_PATH": str(scratch),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "MOONCAKE_REQUESTER_LOCAL_HOSTNAME": LOOPBACK,
    }
    return path


def use(scratch: Path, masters: str) -> None:
    """Writes the file that vLLM reads the addresses from."""
    values = {
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": masters,
        "protocol": "tcp",
        "device_name": "",
        "mode": "standalone-store",
        "global_segment_size": 0,
        "local_buffer_size": "64MB",
    }
    file = scratch / f"mooncake-{os.getpid()}.json"
    file.write_text(json.dumps(values))
    os.environ["MOONCAKE_CONFIG_PATH"] = str(file)


class Watched:
    """A store whose answers are looked at: exact lists of exact ints, and only codes that vLLM knows to be safe."""

    def __init__(self, store: Any) -> None:
        from vllm.distributed.ec_transfer.ec_connector.mooncake_store_embedding import store_client

        self._store = store
        self._safe = {"put": store_client._SAFE_PUT_REJECTIONS, "get": store_client._SAFE_GET_REJECTIONS, "is": frozenset[int]()}
        self.codes: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if not name.startswith("batch_"):
            return method
        kind = name.split("_")[1]

        def watched(*arguments: Any) -> Any:
            results = method(*arguments)
            assert type(results) is list and len(results) == len(arguments[0]), f"{name}: {results!r}"
            for result in results:
                assert type(result) is int and (result >= 0 or result in self._safe[kind]), f"{name}: {result!r}"
                if result < 0:
                    self.codes[f"{kind} {result}"] += 1
            return results

        return watched


class HostCache:
    def __init__(self, name: str) -> None:
        self.name = name
        self.tensors = [torch.zeros(BLOCKS, HEADS, BLOCK, 2 * HEAD, dtype=torch.bfloat16) for _ in GROUPS[0]]

    @contextmanager
    def open(self) -> Iterator[None]:
        yield


class DeviceCache(HostCache):
    """Tensors whose bytes are memory of a device: their addresses are looked at, and nothing else, unless it is open."""

    def __init__(self, name: str, driver: Driver) -> None:
        self.name, self.driver = name, driver
        self.memory: list[Memory] = [driver.holding(bytes(BLOCKS * PAGE), number) for number, _ in enumerate(GROUPS[0])]
        self.tensors = [
            torch.frombuffer((ctypes.c_char * memory.length).from_address(memory.address), dtype=torch.bfloat16).view(
                BLOCKS, HEADS, BLOCK, 2 * HEAD
            )
            for memory in self.memory
        ]

    @contextmanager
    def open(self) -> Iterator[None]:
        with ExitStack() as opened:
            for memory in self.memory:
                opened.enter_context(self.driver.open(memory))
            yield


def contents(request: str, group: int, block: int, tensor: int) -> torch.Tensor:
    seed = int.from_bytes(hashlib.sha256(f"{request} {group} {block} {tensor}".encode()).digest()[:7], "big")
    bits = torch.randint(256, (PAGE,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return bits.view(torch.bfloat16).view(HEADS, BLOCK, 2 * HEAD)


def block_hashes(request: str) -> list[Any]:
    hashes = [hashlib.sha256(request.encode()).digest()]
    while len(hashes) < LENGTH:
        hashes.append(hashlib.sha256(hashes[-1]).digest())
    return hashes


class Engine:
    """A worker's connector with its cache, and the scheduler's end of its look-ups."""

    jobs = itertools.count()
    tokens = LENGTH * BLOCK

    def __init__(self, vllm_config: Any, cache: HostCache) -> None:
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
        from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.connector import MooncakeStoreConnector
        from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.worker import LookupKeyClient
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor, SlidingWindowSpec

        shape: dict[str, Any] = {"block_size": BLOCK, "num_kv_heads": HEADS, "head_size": HEAD, "dtype": torch.bfloat16}
        specs = (FullAttentionSpec(**shape), SlidingWindowSpec(**shape, sliding_window=2 * BLOCK))
        # The groups lie over each other: a block belongs to one of them at a time.
        tensors = [
            KVCacheTensor(size=BLOCKS * PAGE, layers=[name], layer_stride=BLOCKS * PAGE, block_stride=PAGE)
            for names in GROUPS
            for name in names
        ]
        groups = [KVCacheGroupSpec(names, spec) for names, spec in zip(GROUPS, specs, strict=True)]
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        extra["lookup_rpc_port"] = f"{os.getpid()}-{next(self.jobs)}"
        config = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=tensors, kv_cache_groups=groups)
        self.connector = MooncakeStoreConnector(vllm_config, KVConnectorRole.WORKER, config)
        self.worker = self.connector.connector_worker
        self.store = self.worker.store = Watched(self.worker.store)
        self.cache = cache
        self.connector.register_kv_caches({name: cache.tensors[number] for names in GROUPS for number, name in enumerate(names)})
        self.lookups = LookupKeyClient(vllm_config)
        # Block 0 is the one that stands for none.
        self.next_block = 1
        self.longest = 0.0

    def blocks(self) -> tuple[list[int], list[int]]:
        """Blocks of a request, other ones than of the request before."""
        if self.next_block + 2 * LENGTH > BLOCKS:
            self.next_block = 1
        first = self.next_block
        self.next_block += 2 * LENGTH
        return list(range(first, first + LENGTH)), list(range(first + LENGTH, first + 2 * LENGTH))

    def step(self, request: Any) -> None:
        """A step of the engine that starts one transfer."""
        from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.data import MooncakeStoreConnectorMetadata

        metadata = MooncakeStoreConnectorMetadata(set(), set())
        metadata.add_request(request)
        self.connector.bind_connector_metadata(metadata)
        self.connector.start_load_kv(None)
        self.connector.wait_for_save()
        self.began = time.monotonic()

    def over(self) -> None:
        self.longest = max(self.longest, time.monotonic() - self.began)

    def save(self, name: str) -> bool:
        """Saves a request. Says whether all of it is in the store."""
        from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.data import ReqMeta

        blocks = self.blocks()
        with self.cache.open():
            for group, ids in enumerate(blocks):
                for position, block in enumerate(ids):
                    for number, tensor in enumerate(self.cache.tensors):
                        tensor[block] = contents(name, group, position, number)
        job, tokens = next(self.jobs), self.tokens
        self.step(
            ReqMeta(
                req_id=name,
                token_len_chunk=tokens,
                block_ids=blocks,
                block_hashes=block_hashes(name),
                can_save=True,
                store_job_id=job,
                num_prompt_tokens=tokens + 1,
                prefill_end_tokens=tokens + 1,
            )
        )

        def completed() -> bool:
            metadata = self.connector.build_connector_worker_meta()
            return metadata is not None and job in metadata.completed_saves

        until("the save is over", completed)
        self.over()
        saved = self.worker.kv_send_thread._saved_offset.get(name) == tokens
        self.connector.get_transfer_results({name})
        return saved

    def lookup(self, name: str) -> Any:
        self.began = time.monotonic()
        result = self.lookups.lookup(name, self.tokens + 1, block_hashes(name))
        self.over()
        return result

    def load(self, name: str, found: Any) -> bool:
        """Loads what a look-up has found into blocks of zeros. Says whether it came; wrong bytes fail."""
        from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.data import LoadSpec, ReqMeta

        blocks, hashes = self.blocks(), block_hashes(name)
        with self.cache.open():
            for tensor in self.cache.tensors:
                tensor[blocks[0][0] : blocks[1][-1] + 1] = 0
        spec = LoadSpec(0, found.hit_length, can_load=True, tail_key_boundaries=found.tail_key_boundaries)
        self.step(ReqMeta(req_id=name, token_len_chunk=0, block_ids=blocks, block_hashes=hashes, can_save=False, load_spec=spec))
        failed: set[str] = set()

        def finished() -> bool:
            results = self.connector.get_transfer_results(set())
            failed.update(results.failed_recving)
            return name in results.finished_recving

        until("the load is over", finished)
        self.over()
        if failed:
            return False
        masks = self.worker.coord.load_mask(hashes, found.hit_length)
        with self.cache.open():
            for group, ids in enumerate(blocks):
                for position, block in enumerate(ids):
                    for number, tensor in enumerate(self.cache.tensors):
                        loaded = position < len(masks[group]) and masks[group][position]
                        expected = contents(name, group, position, number) if loaded else torch.zeros_like(tensor[block])
                        same = torch.equal(tensor[block].view(torch.uint8), expected.view(torch.uint8))
                        assert same, f"{self.cache.name}: {name}: block {position} of group {group} has wrong bytes"
        return True


class Embeddings:
    """The embedding client, which a code that it does not know would poison."""

    SHAPE = (256, 1024)

    def __init__(self) -> None:
        from vllm.distributed.ec_transfer.ec_connector.mooncake_store_embedding import store_client
        from vllm.distributed.ec_transfer.ec_connector.mooncake_store_embedding.data import TensorSpec

        self.module = store_client
        self.client = store_client.create_mooncake_embedding_store_client(read_buffer_bytes=4 << 20)
        self.store = self.client.store = Watched(self.client.store)
        self.spec = TensorSpec(self.SHAPE, "torch.bfloat16", 2 * self.SHAPE[0] * self.SHAPE[1])
        self.longest = 0.0

    def contents(self, key: str) -> torch.Tensor:
        seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:7], "big")
        return torch.randn(self.SHAPE, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)

    def check(self) -> None:
        assert not self.client._poisoned and not self.module._UNSAFE_CLIENTS, "the client is poisoned"

    def put(self, key: str) -> bool:
        began = time.monotonic()
        try:
            self.client.put_tensor(key, self.contents(key))
            return True
        except self.module.EmbeddingStoreOperationError:
            # The one error after which the encoder goes on.
            return False
        finally:
            self.longest = max(self.longest, time.monotonic() - began)
            self.check()

    def load(self, keys: list[str]) -> int:
        """Loads tensors. Gives the number of those that came; wrong values fail."""
        began = time.monotonic()
        loaded = self.client.load_tensors(dict.fromkeys(keys, self.spec), "cpu")
        self.longest = max(self.longest, time.monotonic() - began)
        self.check()
        for key, tensor in loaded.items():
            assert torch.equal(tensor, self.contents(key)), f"{key} has wrong values"
        return len(loaded)


def start(scratch: Path) -> Any:
    """A configuration of vLLM with its groups of one rank, in this process."""
    from vllm.config import CacheConfig, KVTransferConfig, ModelConfig, ParallelConfig, VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    torch.cuda.Event = Event
    model = ModelConfig(model=str(scratch / "model"), skip_tokenizer_init=True, dtype="bfloat16", max_model_len=4096)
    extra = {"enable_group_semantics": "true"}
    transfer = KVTransferConfig(kv_connector="MooncakeStoreConnector", kv_role="kv_both", kv_connector_extra_config=extra)
    cache = CacheConfig(block_size=BLOCK)
    config = VllmConfig(model_config=model, cache_config=cache, parallel_config=ParallelConfig(), kv_transfer_config=transfer)
    config.cache_config.num_gpu_blocks = BLOCKS
    with set_current_vllm_config(config):
        [port] = free_ports(1)
        init_distributed_environment(1, 0, f"tcp://{LOOPBACK}:{port}", 0, "gloo")
        initialize_model_parallel(backend="gloo")
    return config
