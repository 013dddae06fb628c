"""Host pools of hybrid models, built of SGLang's own classes without a GPU.

Nothing of SGLang is replaced. The pools on the other side, which are memory of a GPU in an engine, are tensors of the host,
and pools do not pin their memory. The sizes are small; the geometry of a page is that of its kind.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.mem_cache.device_pool_info import MambaStateBufferInfo
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName
from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool, MHATokenToKVPool
from sglang.srt.mem_cache.memory_pool_host import DeepSeekV4PagedHostPool, LogicalHostPool
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
from sglang.srt.mem_cache.pool_host.dsa import DSAIndexerPoolHost
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.runtime_context import get_parallel

# Pages of each host pool: twice those of a conversation, so that it is read into another region.
PAGES = 48
LAYERS = 2
BUDGET = 1 << 30


@dataclass
class Side:
    """A pool beside the one with keys and values."""

    name: PoolName
    pool: Any
    # Pages of which the state is kept at the end of each node. None: every page has one.
    window: int | None = None

    @property
    def policy(self) -> PoolHitPolicy:
        return PoolHitPolicy.ALL_PAGES if self.window is None else PoolHitPolicy.TRAILING_PAGES


@dataclass
class Stack:
    """The host pools of one model."""

    anchor: Any
    sides: list[Side]
    is_mla: bool

    @property
    def page_size(self) -> int:
        return int(self.anchor.page_size)


def mha(page_size: int, layout: str, heads: int = 2, label: str = "kv") -> MHATokenToKVPoolHost:
    device = MHATokenToKVPool(
        size=page_size * 2,
        page_size=page_size,
        dtype=torch.bfloat16,
        head_num=heads,
        head_dim=64,
        layer_num=LAYERS,
        device="cpu",
        enable_memory_saver=False,
    )
    return MHATokenToKVPoolHost(
        device.get_device_pool_infos()[0].buffer_info,
        1.0,
        0,
        page_size,
        layout,
        pin_memory=False,
        device_capacity_tokens=0,
        start_layer=0,
        end_layer=LAYERS,
        pool_label=label,
        host_token_capacity=PAGES * page_size,
    )


def dsa(layout: str) -> Stack:
    """Latent keys and values, and the keys of the indexer of each page."""
    page_size, rank, rope = 64, 128, 64
    with get_parallel().override(attn_dcp_size=1):
        device = DSATokenToKVPool(
            size=page_size * 2,
            page_size=page_size,
            kv_lora_rank=rank,
            dtype=torch.bfloat16,
            qk_rope_head_dim=rope,
            layer_num=LAYERS,
            device="cpu",
            index_head_dim=128,
            enable_memory_saver=False,
            kv_cache_dim=rank + rope,
        )
    anchor = MLATokenToKVPoolHost(
        device.get_device_pool_infos()[0].buffer_info,
        1.0,
        0,
        page_size,
        layout,
        pin_memory=False,
        device_capacity_tokens=0,
        start_layer=0,
        end_layer=LAYERS,
        target_layer_num=LAYERS,
        host_token_capacity=PAGES * page_size,
    )
    [declaration] = [each for each in device.host_pool_decls() if each.pool_name == PoolName.INDEXER]
    indexer = DSAIndexerPoolHost(declaration, anchor, pin_memory=False)
    return Stack(anchor, [Side(PoolName.INDEXER, indexer)], is_mla=True)


def mamba(layout: str) -> Stack:
    """Keys and values, and the temporal and two convolutional states at the end of a node."""
    states = MambaStateBufferInfo(
        temporal=torch.zeros(LAYERS, 4, 4, 32, 16, dtype=torch.float32),
        conv=(torch.zeros(LAYERS, 4, 96, 3, dtype=torch.bfloat16), torch.zeros(LAYERS, 4, 32, 3, dtype=torch.bfloat16)),
    )
    pool = MambaPoolHost(states, PAGES / 4, 0, device_capacity=4, pin_memory=False, layout=layout)
    return Stack(mha(16, layout), [Side(PoolName.MAMBA, pool, window=1)], is_mla=False)


def swa(layout: str) -> Stack:
    """Keys and values of full attention, and those of a sliding window of two pages."""
    return Stack(mha(16, layout), [Side(PoolName.SWA, mha(16, layout, heads=4, label="swa"), window=2)], is_mla=False)


def paged(name: PoolName, layout: str, page_size: int, layers: int, row: int) -> DeepSeekV4PagedHostPool:
    rows = [torch.zeros(2, row, dtype=torch.uint8) for _ in range(layers)]
    return DeepSeekV4PagedHostPool(str(name), rows, row, PAGES, page_size, layout=layout, pin_memory=False, page_aligned_only=True)


def deepseek_v4(layout: str) -> Stack:
    """No keys and values of their own: compressed rows of two layers, of one layer, and those of a sliding window.

    In the layout `layer_first` the pages of two layers are several buffers, and those of one layer are one.
    """
    page_size = 64
    sides = [
        Side(PoolName.DEEPSEEK_V4_C4, paged(PoolName.DEEPSEEK_V4_C4, layout, page_size, 2, 9216)),
        Side(PoolName.DEEPSEEK_V4_C128, paged(PoolName.DEEPSEEK_V4_C128, layout, page_size, 1, 1152)),
        Side(PoolName.SWA, paged(PoolName.SWA, layout, page_size, 2, 4608), window=2),
    ]
    return Stack(LogicalHostPool(size=PAGES * page_size, page_size=page_size, layout=layout), sides, is_mla=True)


STACKS = {"dsa": dsa, "mamba": mamba, "swa": swa, "deepseek_v4": deepseek_v4}


def build(model: str, layout: str) -> Stack:
    # SGLang wants 10 GiB of the host to stay free.
    with host_memory_budget_scope(BUDGET):
        return STACKS[model](layout)


def contents(pool: Any, name: str, key: str) -> torch.Tensor:
    """Bytes of a page, which follow from its key."""
    page = pool.get_dummy_flat_data_page()
    length = page.numel() * page.element_size()
    seed = int.from_bytes(hashlib.sha256(f"{key} {name}".encode()).digest()[:7], "big")
    return torch.randint(256, (length,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)).view(page.dtype)


def fill(pool: Any, name: str, slots: torch.Tensor, keys: list[str]) -> None:
    for first, key in zip(slots[:: pool.page_size].tolist(), keys, strict=True):
        pool.set_from_flat_data_page(first, contents(pool, name, key))


def holds(pool: Any, name: str, first: int, key: str) -> bool:
    page = pool.get_data_page(first, flat=True).contiguous()
    return torch.equal(page.view(torch.uint8), contents(pool, name, key).view(torch.uint8))
