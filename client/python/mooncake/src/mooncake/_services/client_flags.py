"""The flags of `mooncake_client`: each of 0.3.13 and 0.3.14."""

from __future__ import annotations

from .flags import COMMON, Effect, alike, table_of

_none = Effect.NONE
_mapped = Effect.MAPPED

TABLE = table_of(
    alike(
        _mapped,
        "name of this host for the pool, and the address of `--port`; `0.0.0.0` means all addresses, and the one that the masters see",
        "host string 0.0.0.0",
    ),
    alike(_mapped, "accepts connections once the store is ready, and tells dummy clients its masters", "port int32 50052"),
    alike(
        _mapped,
        "addresses of the masters, with commas, or `etcd://a;b;c`; `MC_MASTERS` takes its place",
        "master_server_address string 127.0.0.1:50051",
    ),
    alike(_mapped, "memory that is lent to the pool: 0, or 1 MiB and more", "global_segment_size string 4&GB"),
    alike(_mapped, "size of the cache", "local_buffer_size string 0"),
    alike(_mapped, "as `protocol` of `setup`", "protocol string tcp"),
    alike(_mapped, "RDMA devices, with commas; empty means all", 'device_names string ""'),
    alike(_mapped, "tenant of this client and of its dummy clients", "tenant_id string default"),
    alike(_mapped, "serves `/health`, `/metrics` and `/metrics/summary`", "enable_http_server bool false"),
    alike(_mapped, "port of `--enable_http_server`", "http_port int32 9300"),
    alike(_none, "the masters know the stores, and there is nothing else to find", "metadata_server string http://127.0.0.1:8080/metadata"),
    alike(_none, "bytes are moved by threads of the store (`MC_PY_THREADS`)", "threads int32 1"),
    alike(_none, "stores keep objects in memory", "enable_offload bool false", "start_offload_rpc_server bool true"),
    alike(
        _none,
        "the memory of a store is what it lends",
        "mmap_arena_pool_size uint64 8589934592 @0.3.13",
        "use_mmap_arena_allocator bool false @0.3.13",
    ),
    COMMON,
)
