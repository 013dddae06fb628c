"""In a guest (see run-in-guest): the installed wheels by RDMA.

A store of their executables, whose metrics say how the bytes of `mc` and of `mooncake.store` went, and registered memory, which the device
reaches itself.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "client/python/tests"))

import mc
from cluster import Cluster, until
from mooncake.store import MooncakeDistributedStore

MIB = 1 << 20
VALUE = os.urandom(MIB)


def moved(store):
    """Bytes that the store's device has written and read."""
    address = store.arguments[store.arguments.index("--http-listen") + 1]
    with urllib.request.urlopen(f"http://{address}/metrics") as answer:
        metrics = answer.read().decode()
    return [int(re.search(rf'^mc_store_rdma_bytes_total{{op="{op}"}} (\d+)$', metrics, re.M)[1]) for op in ("write", "read")]


def regions(length):
    """How often the device reaches memory of this length."""
    shown = subprocess.run(["rdma", "-j", "resource", "show", "mr"], check=True, capture_output=True, text=True).stdout
    return sum(region["mrlen"] == length for region in json.loads(shown))


def exchange_by_rdma(store, exchange, length):
    """Exchanges a value until it goes by RDMA both ways, when the device reached the registered memory for each before.

    The device gets to know memory at its first use, and bytes are copied meanwhile. They go over TCP while the guest stands still.
    """

    def went_by_rdma():
        was_reached, before = regions(length) == 2, moved(store)
        exchange()
        return was_reached and [now - then for now, then in zip(moved(store), before, strict=True)] == [MIB, MIB]

    until("a put and a get go by RDMA from and to registered memory", went_by_rdma)


def by_mc(cluster, store):
    memory = bytearray(3 * MIB)
    source, target = memoryview(memory)[:MIB], memoryview(memory)[MIB : 2 * MIB]
    source[:] = VALUE
    with mc.Client(cluster.addresses, local_cache=0, transports="rdma") as client, client.register(memory):

        def exchange():
            target[:] = bytes(MIB)
            client.put("mc", source, upsert=True)
            assert client.get_into("mc", target) == MIB and target == VALUE

        exchange_by_rdma(store, exchange, len(memory))
        print("mc:", client.stats()["rdma_bytes_written"], "bytes written,", client.stats()["rdma_bytes_read"], "read")


def by_mooncake(cluster, store):
    memory = mc.allocate(5 * MIB)
    view, source, target = memoryview(memory), memory.address, memory.address + MIB
    view[:MIB] = VALUE
    pool = MooncakeDistributedStore()
    assert pool.setup("localhost", "P2PHANDSHAKE", 0, 16 * MIB, "rdma", "", cluster.addresses) == 0
    assert pool.register_buffer(memory.address, len(memory)) == 0

    def exchange():
        view[MIB : 2 * MIB] = bytes(MIB)
        assert pool.upsert_from("mooncake", source, MIB) == 0
        assert pool.get_into("mooncake", target, MIB) == MIB and view[MIB : 2 * MIB] == VALUE

    exchange_by_rdma(store, exchange, len(memory))
    print("mooncake:", pool.stats()["rdma_bytes_written"], "bytes written,", pool.stats()["rdma_bytes_read"], "read")
    assert pool.unregister_buffer(memory.address) == 0
    pool.close()


assert Path("/sys/class/infiniband/rxe0").exists(), "this is not the guest"
with tempfile.TemporaryDirectory() as directory:
    # An emulated guest is slow: elections must not come of that.
    cluster = Cluster(Path(directory), 1, "--raft-timing", "wan")
    try:
        cluster.start()
        # Shared memory would be the faster way to a store of the same host.
        store = cluster.add_store("64mb", "--shm", "off")
        by_mc(cluster, store)
        by_mooncake(cluster, store)
    finally:
        cluster.stop()
print("wheel: ok")
