"""Every name of upstream's modules is there, and is called once."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import MIB, Open

import mooncake
import mooncake.buffer_pool
import mooncake.store
from cluster import Cluster, free_ports
from mooncake import engine
from mooncake.store import BufferPool, MooncakeDistributedStore, MooncakeHostMemAllocator, ReplicateConfig

README = Path(__file__).parent.parent / "mooncake" / "README.md"

KEY = "a key that does not exist"

# Arguments with which each method of 0.3.13.post1 and 0.3.14 can be called.
CALLS: dict[str, tuple[Any, ...]] = {
    "alloc_from_mem_pool": (4096,),
    "allocate_and_mount_segment": (MIB,),
    "batch_get_buffer": ([KEY],),
    "batch_get_into": ([KEY], [1], [1]),
    "batch_get_into_multi_buffer_ranges": ([KEY], [[1]], [[1]], [[0]]),
    "batch_get_into_multi_buffers": ([KEY], [[1]], [[1]]),
    "batch_get_replica_desc": ([KEY],),
    "batch_get_session_end": ([KEY],),
    "batch_get_session_start": ([KEY],),
    "batch_get_tensor": ([KEY],),
    "batch_get_tensor_into": ([KEY], [1], [1]),
    "batch_get_tensor_into_cuda": ([KEY], [None]),
    "batch_get_tensor_with_tp": ([KEY], 0, 2),
    "batch_get_tensor_with_tp_into": ([KEY], [1], [1], 0, 2),
    "batch_is_exist": ([KEY],),
    "batch_probe_key": ([KEY],),
    "batch_pub_tensor": ([KEY], [None]),
    "batch_pub_tensor_with_tp": ([KEY], [None], ReplicateConfig(), 0, 2, 0),
    "batch_put_from": ([KEY], [0], [0]),
    "batch_put_from_multi_buffer_ranges": ([KEY], [[1]], [[1]], [[0]]),
    "batch_put_from_multi_buffers": ([KEY], [[]], [[]]),
    "batch_put_session_end": ([KEY],),
    "batch_put_session_revoke": ([KEY],),
    "batch_put_session_start": ([KEY], [0]),
    "batch_put_tensor": ([KEY], [None]),
    "batch_put_tensor_from": ([KEY], [0], [0]),
    "batch_put_tensor_with_tp": ([KEY], [None], 0, 2, 0),
    "batch_put_tensor_with_tp_from": ([KEY], [0], [0], 0, 2, 0),
    "batch_remove": ([KEY],),
    "batch_replica_clear": ([KEY],),
    "batch_upsert_from": ([KEY], [0], [0]),
    "batch_upsert_pub_tensor": ([KEY], [None]),
    "batch_upsert_tensor": ([KEY], [None]),
    "batch_upsert_tensor_from": ([KEY], [0], [0]),
    "get": (KEY,),
    "get_batch": ([KEY],),
    "get_buffer": (KEY,),
    "get_hostname": (),
    "get_into": (KEY, 1, 1),
    "get_into_ranges": ([], [], [], [], []),
    "get_into_ranges_from_snapshot": (mooncake.store.RangedReadSnapshot({}), [], [], [], [], []),
    "get_offload_rpc_read_count": (),
    "get_replica_desc": (KEY,),
    "get_size": (KEY,),
    "get_tensor": (KEY,),
    "get_tensor_into": (KEY, 1, 1),
    "get_tensor_into_cuda": (KEY, None),
    "get_tensor_with_tp": (KEY, 0, 2),
    "get_tensor_with_tp_into": (KEY, 1, 1, 0, 2),
    "health_check": (),
    "is_exist": (KEY,),
    "load_tensor_from_safetensor": (KEY, "/a file that does not exist"),
    "prepare_get_into_ranges_snapshot": ([KEY],),
    "probe_key": (KEY,),
    "pub_tensor": (KEY, None),
    "pub_tensor_with_tp": (KEY, None, ReplicateConfig(), 0, 2, 0),
    "put": (KEY, b""),
    "put_batch": ([KEY], [b""]),
    "put_from": (KEY, 0, 0),
    "put_from_with_metadata": (KEY, 0, 0, 0, 0),
    "put_parts": (KEY,),
    "put_tensor": (KEY, None),
    "put_tensor_from": (KEY, 0, 0),
    "put_tensor_with_tp": (KEY, None, 0, 2, 0),
    "put_tensor_with_tp_from": (KEY, 0, 0, 0, 2, 0),
    "register_buffer": (0, 0),
    "remove": (KEY,),
    "remove_all": (),
    "remove_by_regex": ("^nothing$",),
    "save_tensor_to_safetensor": (KEY,),
    "unmount_and_free_segment": ([],),
    "unmount_segment": ([],),
    "unregister_buffer": (1,),
    "upsert": (KEY, b""),
    "upsert_batch": ([KEY], [b""]),
    "upsert_from": (KEY, 0, 0),
    "upsert_parts": (KEY,),
    "upsert_pub_tensor": (KEY, None),
    "upsert_tensor": (KEY, None),
    "upsert_tensor_from": (KEY, 0, 0),
}

WITHOUT_MEANING: dict[str, tuple[Any, ...]] = {
    "_get_pyclient_capsule": (),
    "begin_weight_snapshot": (None, None),
    "create_copy_task": (KEY, []),
    "create_move_task": (KEY, "a", "b"),
    "mount_segment": ("/tmp", 1),
    "query_task": ((0, 0),),
    "unmount_local_disk_segment": (),
    **{
        f"{batch}{verb}_tensor_with_parallelism{suffix}": ()
        for batch in ("", "batch_")
        for verb, suffixes in (("get", ("", "_into")), ("put", ("", "_from")), ("upsert", ("", "_from")))
        for suffix in suffixes
    },
}

# Called by other tests: they make and end connections.
ELSEWHERE = {"setup", "setup_dummy", "init_all", "close"}

MODULE_NAMES = [
    "ACTIVATION",
    "BufferHandle",
    "BufferLease",
    "BufferLeaseView",
    "BufferPool",
    "COMPLETE",
    "Descriptor",
    "DiskDescriptor",
    "EngramStore",
    "EngramStoreConfig",
    "ExistOptions",
    "FAILED",
    "GENERAL",
    "GRADIENT",
    "INITIALIZED",
    "KVCACHE",
    "METADATA",
    "MemoryDescriptor",
    "MooncakeDistributedNoFRegister",
    "MooncakeDistributedStore",
    "MooncakeHostMemAllocator",
    "OPTIMIZER_STATE",
    "ObjectDataType",
    "PENDING",
    "PROCESSING",
    "ParallelAxis",
    "QueryTaskResponse",
    "REMOVED",
    "REPLICA_COPY",
    "REPLICA_MOVE",
    "RangedReadSnapshot",
    "ReadTarget",
    "RegisteredBufferLease",
    "RegisteredBufferLeaseView",
    "RegisteredBufferPool",
    "ReplicaDescriptor",
    "ReplicaStatus",
    "ReplicateConfig",
    "SAMPLE",
    "SUCCESS",
    "SoftPinAction",
    "TENSOR",
    "TaskStatus",
    "TaskType",
    "TensorParallelism",
    "UNDEFINED",
    "UNKNOWN",
    "WEIGHT",
    "_deserialize_tensor",
    "_serialize_tensor",
    "_tensor_metadata_size",
    "bind_to_numa_node",
    "get_alloc_func_addr",
    "get_free_func_addr",
]

TYPES_WITHOUT_MEANING = [
    "BufferLeaseView",
    "EngramStore",
    "EngramStoreConfig",
    "MooncakeDistributedNoFRegister",
    "ParallelAxis",
    "ReadTarget",
    "TensorParallelism",
]

ENGINE_CALLS = [
    "get_engine_ptr",
    "submit_scatter_write",
    "submit_scatter_read",
    "batch_transfer_sync_write_pages",
    "batch_transfer_sync_read_arrays",
    "transfer_write_on_cuda",
    "batch_transfer_read_on_cuda",
]


@pytest.mark.parametrize("name", CALLS)
def test_calls(store: Any, name: str) -> None:
    getattr(store, name)(*CALLS[name])


@pytest.mark.parametrize("name", CALLS)
def test_calls_before_setup(name: str) -> None:
    getattr(MooncakeDistributedStore(), name)(*CALLS[name])


@pytest.mark.parametrize("name", WITHOUT_MEANING)
def test_calls_without_meaning(store: Any, name: str) -> None:
    with pytest.raises(NotImplementedError, match=r"\w+ \w+"):
        getattr(store, name)(*WITHOUT_MEANING[name])


def test_all_methods_are_in_one_of_the_lists() -> None:
    methods = {name for name in dir(MooncakeDistributedStore) if not name.startswith("_")}
    assert methods - {"stats"} == (set(CALLS) | set(WITHOUT_MEANING) | ELSEWHERE) - {"_get_pyclient_capsule"}


@pytest.mark.parametrize("name", MODULE_NAMES)
def test_names_of_the_module(name: str) -> None:
    assert hasattr(mooncake.store, name)


@pytest.mark.parametrize("name", TYPES_WITHOUT_MEANING)
def test_types_without_meaning(name: str) -> None:
    with pytest.raises(NotImplementedError, match=r"\w+ \w+"):
        getattr(mooncake.store, name)()


def test_functions_of_the_module() -> None:
    mooncake.store.bind_to_numa_node(1 << 20)
    for name in ("get_alloc_func_addr", "get_free_func_addr"):
        with pytest.raises(NotImplementedError):
            getattr(mooncake.store, name)()


def test_the_readme_lists_what_has_no_meaning() -> None:
    text = README.read_text(encoding="utf-8")
    names = set(re.findall(r"`([\w*.]+)(?:\(\))?`", text))
    expected = {name for name in WITHOUT_MEANING if "parallelism" not in name}
    expected |= {"*_with_parallelism*", "get_alloc_func_addr", "get_free_func_addr", *TYPES_WITHOUT_MEANING}
    assert expected <= names


def test_the_package_exports_what_upstream_does() -> None:
    assert mooncake.MooncakeDistributedStore is MooncakeDistributedStore
    assert mooncake.BufferPool is mooncake.RegisteredBufferPool is BufferPool
    assert mooncake.buffer_pool.RegisteredBufferPool is BufferPool
    with pytest.raises(AttributeError):
        _ = mooncake.nothing


def test_replicate_config() -> None:
    config = ReplicateConfig()
    assert str(config).startswith("ReplicateConfig: { replica_num: 1,")
    for field in (
        "group_ids",
        "session_ids",
        "residency_affinity_ids",
        "preferred_hca_names",
        "per_key_preferred_hca_names",
    ):
        assert hasattr(ReplicateConfig, field)
        assert getattr(config, field) is None
    config.soft_pin_ttl_ms = 1000
    assert config.soft_pin_ttl_ms == 1000
    for wrong in (-1, 1 << 64, "1"):
        with pytest.raises(TypeError):
            config.soft_pin_ttl_ms = wrong  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        config.replicas = 2  # type: ignore[attr-defined]


def test_enumerations_look_like_upstreams() -> None:
    tensor = mooncake.store.ObjectDataType.TENSOR
    assert (repr(tensor), str(tensor), int(tensor)) == ("<ObjectDataType.TENSOR: 2>", "ObjectDataType.TENSOR", 2)
    assert int(mooncake.store.TaskStatus.SUCCESS) == 3
    assert mooncake.store.FAILED is mooncake.store.ReplicaStatus.FAILED


def test_a_store_can_be_subclassed_and_takes_attributes() -> None:
    class Mine(MooncakeDistributedStore):
        def __init__(self) -> None:
            self.extra = 1

    mine = Mine()
    mine.more = 2  # type: ignore[attr-defined]
    assert mine.health_check() == 1


def test_the_engine_starts() -> None:
    one, two = engine.TransferEngine(), engine.TransferEngine()
    assert one.get_rpc_port() == 0
    assert one.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    assert two.initialize_ext("::1", "P2PHANDSHAKE", "tcp", "", "") == 0
    assert 0 < one.get_rpc_port() != two.get_rpc_port() > 0
    assert isinstance(one.get_engine(), engine.InnerTransferEngine)
    assert engine.TransferEngine.TransferOpcode is engine.TransferOpcode
    assert engine.Write is engine.TransferOpcode.Write


@pytest.mark.parametrize("name", ENGINE_CALLS)
def test_what_the_engine_lacks_says_so(name: str) -> None:
    with pytest.raises(NotImplementedError, match=name):
        getattr(engine.TransferEngine(), name)()


@pytest.mark.parametrize("name", engine.__all__)
def test_names_of_the_engine(name: str) -> None:
    assert hasattr(engine, name)


def test_host_memory(store: Any, key: str) -> None:
    allocator = MooncakeHostMemAllocator()
    address = allocator.alloc(8192)
    assert address
    ctypes.memset(address, 7, 8192)
    assert store.put_from(key, address, 4096) == 0
    assert store.get_into(key, address + 4096, 4096) == 4096
    assert allocator.free(address) == 0
    assert allocator.free(address) == -1
    assert allocator.alloc(1 << 60) == 0


def test_a_store_without_a_segment(one_master: Cluster, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    store = MooncakeDistributedStore()
    (nowhere,) = free_ports(1)
    assert store.setup_dummy(MIB, MIB, f"127.0.0.1:{nowhere}") == -1
    monkeypatch.setenv("MC_MASTERS", one_master.addresses)
    assert store.setup_dummy(MIB, MIB, f"127.0.0.1:{nowhere}") == 0
    assert store.alloc_from_mem_pool(4096) > 0
    assert store.close() == 0
    assert store.init_all("tcp", "", MIB) == 0
    assert store.put(key, b"value") == 0
    assert store.close() == 0


def test_a_full_group_loses_a_member_and_no_value(own_master: Cluster, open_store: Open) -> None:
    # A group has 1,024 members at most.
    store = open_store(own_master)
    memory = (ctypes.c_ubyte * 64)()
    config = ReplicateConfig()
    config.group_ids = ["group"] * 1100
    keys = [f"member-{number}" for number in range(1100)]
    assert store.batch_put_from(keys, [ctypes.addressof(memory)] * 1100, [64] * 1100, config) == [0] * 1100
    assert store.batch_is_exist(keys) == [1] * 1100
    assert store.stats()["puts_without_group"] == 1100 - 1024
