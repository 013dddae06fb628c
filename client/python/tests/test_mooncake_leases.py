"""Calls of TensorRT-LLM: it names a tenant, and a get that fails after a lookup has found the key is an error for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import MIB, Open

from cluster import Cluster, until

BLOCK = 256 << 10
BLOCKS = 8
LEASED = -706
SAFE = {0, -200}


@pytest.fixture
def leasing(tmp_path: Path) -> Iterator[Cluster]:
    """Masters whose read leases outlast the test."""
    cluster = Cluster(tmp_path / "leasing", 3, "--read-lease", "60s")
    try:
        yield cluster.start()
    finally:
        cluster.stop()


def test_what_a_lookup_found_is_read_when_others_need_room_and_after_a_leader_kill(leasing: Cluster, open_store: Open) -> None:
    engine = open_store(leasing, segment=16 * MIB, tenant_id="engine")
    reader = open_store(leasing, segment=0, tenant_id="engine", local_buffer=MIB)
    other = open_store(leasing, segment=0, tenant_id="other")
    found, cold = [f"found-{number}" for number in range(BLOCKS)], [f"cold-{number}" for number in range(BLOCKS)]
    values = [os.urandom(BLOCK) for _ in found]
    assert engine.put_batch(cold, [bytes(BLOCK)] * BLOCKS) == 0
    assert engine.put_batch(found, values) == 0
    assert other.batch_is_exist(found) == [0] * BLOCKS, "another tenant has keys of its own"

    assert reader.batch_is_exist(found) == [1] * BLOCKS

    def read() -> list[bytes]:
        memory = np.zeros((BLOCKS, BLOCK), dtype=np.uint8)
        assert reader.batch_get_into(found, [int(row.ctypes.data) for row in memory], [BLOCK] * BLOCKS) == [BLOCK] * BLOCKS
        return [row.tobytes() for row in memory]

    for number in range(16 * MIB // BLOCK):
        assert other.put(f"filling-{number}", bytes(BLOCK)) in SAFE
    assert 0 in engine.batch_probe_key(cold), "objects were evicted"
    assert engine.remove(found[0]) == LEASED
    assert read() == values

    # A new leader does not know the lease, so in a full pool it might evict them: see docs/adr/0005-holding-bytes.md.
    assert other.remove_all(True) > 0
    leasing.wait_for_leader().kill()
    until("another leader answers", lambda: other.put("after", b"value") == 0 or other.is_exist("after"))
    assert read() == values
