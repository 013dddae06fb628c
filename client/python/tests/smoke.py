"""Installed wheels at work: a master and a store of their executables, and a value through each of the two packages."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import mc
from cluster import Cluster
from mooncake.store import MooncakeDistributedStore

value = os.urandom(1 << 20)
with tempfile.TemporaryDirectory() as directory:
    cluster = Cluster(Path(directory), 1)
    try:
        cluster.start()
        cluster.add_store("64mb")
        with mc.Client(cluster.addresses, local_cache=0) as client:
            assert client.put("mc", value) is mc.Put.STORED
            assert client.get("mc") == value
        store = MooncakeDistributedStore()
        assert store.setup("localhost", "P2PHANDSHAKE", 16 << 20, 16 << 20, "tcp", "", cluster.addresses) == 0
        assert store.get("mc") == value
        assert store.put("mooncake", value) == 0
        assert store.get("mooncake") == value
        store.close()
    finally:
        cluster.stop()
print(f"put and got {len(value)} bytes with mc {mc.__file__} and with {MooncakeDistributedStore.__module__}")
