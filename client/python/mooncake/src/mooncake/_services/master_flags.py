"""The flags of `mooncake_master`: each of 0.3.13 and 0.3.14, and those that this project adds."""

from __future__ import annotations

from .flags import COMMON, Effect, alike, table_of

_OLD, _NEW = "0.3.13", "0.3.14"


_none = Effect.NONE
_refused = Effect.REFUSED
_mapped = Effect.MAPPED

_LISTEN = "`--listen`"
_WATERMARK = "a setting of the cluster: `mcctl config set eviction-high-watermark VALUE`"
_STORE_TTL = (
    "`--store-ttl`, of at least 5 s: the nearest is used, with a warning. It counts when the cluster forms; afterwards"
    " `mcctl config set store-ttl` changes it"
)

TABLE = table_of(
    alike(_mapped, _LISTEN, "rpc_port int32 0", "port int32 50051"),
    alike(_mapped, f"{_LISTEN} and, of a single master, the host that it advertises; a name is resolved", "rpc_address string 0.0.0.0"),
    alike(_mapped, "its IPv4 address takes the place of `--rpc_address`", 'rpc_interface string ""'),
    alike(_mapped, "`--http-listen`", "metrics_host string 0.0.0.0", "metrics_port int32 9003"),
    alike(_mapped, "`--metadata-listen`, which every master answers", "enable_http_metadata_server bool false"),
    alike(_mapped, "`--metadata-listen`", "http_metadata_server_host string 0.0.0.0", "http_metadata_server_port int32 8080"),
    alike(_mapped, "`--metrics-log 10s`, or `0s` with `false`", "enable_metric_reporting bool true"),
    alike(
        _mapped,
        "`--read-lease`, of at least 5 s and at most 60 s: the nearest is used, with a warning. It counts when the cluster forms;"
        " afterwards `mcctl config set read-lease` changes it",
        "default_kv_lease_ttl string 10000",
    ),
    alike(
        _mapped,
        f"{_STORE_TTL}. Without the flag it is 10 minutes",
        "client_ttl int64 10",
    ),
    alike(
        _mapped,
        f"{_STORE_TTL}. `--client_suspicion_ttl_sec` is added, 20 s by default. Without both flags it is 10 minutes",
        f"client_active_ttl_sec int64 10 @{_NEW}",
    ),
    alike(_mapped, "added to `--client_active_ttl_sec` in `--store-ttl`", f"client_suspicion_ttl_sec int64 20 @{_NEW}"),
    alike(_mapped, "reads settings from a file, JSON or YAML with `name: value` lines; flags win", 'config_path string ""'),
    alike(_mapped, "its ordinal tells whether other masters must be known", 'pod_name string ""'),
    alike(_mapped, "refused without `--peers`: masters elect their leader among themselves, without etcd", "enable_ha bool false"),
    alike(
        _none,
        "masters elect their leader among themselves: see `--peers`",
        'etcd_endpoints string ""',
        "ha_backend_type string etcd",
        'ha_backend_connstring string ""',
        f"ha_leader_lease_ttl_sec int64 5 @{_NEW}",
    ),
    alike(
        _none,
        "each change is in the log of a majority before it is acknowledged",
        "enable_oplog bool false",
        "oplog_batch_max_entries uint32 1024",
        "oplog_poll_interval_ms int32 1000",
        "batch_oplog_retry_timeout_sec uint32 180",
        f"enable_oplog_snapshot bool false @{_NEW}",
        f"snapshot_chunk_object_count uint64 1000000 @{_NEW}",
    ),
    alike(
        _none,
        "masters take snapshots into `--data_dir` and restore them",
        f"enable_snapshot bool false @{_OLD}",
        f"enable_snapshot_restore bool false @{_OLD}",
        "snapshot_interval_seconds uint64 600",
        'snapshot_object_store_type string ""',
        f'snapshot_backup_dir string "" @{_OLD}',
        f'snapshot_catalog_backend_connstring string "" @{_OLD}',
        f'snapshot_catalog_backend_type string "" @{_OLD}',
        f'snapshot_catalog_store_connstring string "" @{_OLD}',
        f'snapshot_catalog_store_type string "" @{_OLD}',
        f"snapshot_child_timeout_seconds uint64 300 @{_OLD}",
        f'snapshot_payload_backend_type string "" @{_OLD}',
        f'snapshot_payload_store_type string "" @{_OLD}',
        f"snapshot_retention_count uint32 2 @{_OLD}",
    ),
    alike(_none, _WATERMARK, "eviction_high_watermark_ratio double 0.9"),
    alike(_none, "a setting of the cluster: `mcctl config set eviction-low-watermark VALUE`", "eviction_ratio double 0.05"),
    alike(
        _none,
        "a client says how long a soft pin holds",
        "default_kv_soft_pin_ttl string 1800000",
        "max_kv_soft_pin_ttl string 86400000",
    ),
    alike(
        _refused,
        "soft-pinned objects go last, and go if nothing else can. Pin with `with_hard_pin` what must stay",
        "allow_evict_soft_pinned_objects bool true",
    ),
    alike(
        _none,
        "each put has a deadline of its own, and its space is free afterwards",
        "put_start_discard_timeout_sec uint64 30",
        "put_start_release_timeout_sec uint64 600",
    ),
    alike(
        _refused,
        "tenants and their quotas are settings of the cluster: `mcctl config set tenants registered`",
        "enable_multi_tenants bool false",
    ),
    alike(
        _none,
        "quotas are set with `mcctl`",
        "tenant_quota_connector_type string file",
        'tenant_quota_connector_uri string ""',
        f"tenant_eviction_high_watermark_ratio double 0.9 @{_NEW}",
    ),
    alike(_refused, "no events are published, and a subscriber would wait for them", "enable_kv_events bool false"),
    alike(
        _none,
        "no events are published",
        'kv_events_additional_salt string ""',
        'kv_events_backend_id string ""',
        'kv_events_bind_endpoint string ""',
        "kv_events_block_size uint32 0",
        "kv_events_dp_rank uint32 0",
        "kv_events_emit_legacy_compat bool true",
        "kv_events_emit_object_key bool true",
        'kv_events_lora_name string ""',
        'kv_events_model_name string ""',
        "kv_events_queue_capacity uint32 65536",
        "kv_events_tenant_id string default",
    ),
    alike(_refused, "stores lend ordinary memory of their host", "enable_cxl bool false"),
    alike(_none, "stores lend ordinary memory of their host", "cxl_path string /dev/dax0.0", "cxl_size uint64 8589934592"),
    alike(
        _none,
        "stores keep objects in memory",
        "enable_offload bool false",
        "offload_on_evict bool false",
        "offload_force_evict bool false",
        "offload_cap_ratio double 0.5",
        "offloading_queue_limit uint64 50000",
        "promotion_on_hit bool false",
        "promotion_admission_threshold uint32 2",
        "promotion_max_per_heartbeat uint32 1",
        "promotion_queue_limit uint32 50000",
        "enable_disk_eviction bool true",
        'root_fs_dir string ""',
        "global_file_segment_size int64 9223372036854775807",
        "quota_bytes uint64 0",
        "nof_eviction_high_watermark_ratio double 0.9",
        "nof_eviction_ratio double 0.05",
        "nof_heartbeat_failures_threshold uint32 3",
        "nof_heartbeat_interval_sec int64 10",
        "nof_heartbeat_probe_timeout_ms uint32 1000",
    ),
    alike(
        _none,
        "the pool has no tasks: nothing copies an object after a store is lost",
        "max_retry_attempts uint32 10",
        "max_total_finished_tasks uint32 10000",
        "max_total_pending_tasks uint32 10000",
        "max_total_processing_tasks uint32 10000",
        "pending_task_timeout_sec uint64 300",
        "processing_task_timeout_sec uint64 300",
    ),
    alike(
        _none,
        "an object has as many replicas as its writer asks for",
        "dynamic_replication_mode string off",
        "dynamic_replication_heat_window_seconds uint32 10",
        "dynamic_replication_admission_qps_threshold double 0.8",
        "dynamic_replication_max_memory_replicas uint64 2",
    ),
    alike(
        _none,
        "the pool has no format for weights",
        f"weight_import_idle_timeout_ms uint64 300000 @{_NEW}",
        f"weight_management_oplog_capability_confirmed bool false @{_NEW}",
    ),
    alike(_none, "the master chooses stores by their free space", "allocation_strategy string random", "memory_allocator string offset"),
    alike(
        _none,
        "the memory of a master is its index alone",
        f"mmap_arena_pool_size uint64 8589934592 @{_OLD}",
        f"use_mmap_arena_allocator bool false @{_OLD}",
    ),
    alike(
        _none,
        "a master uses as many threads as the machine has processors",
        "rpc_thread_num int32 0",
        "max_threads int32 16",
        f"handler_worker_thread_num int32 0 @{_NEW}",
    ),
    alike(
        _none,
        "connections have limits of their own",
        "rpc_conn_timeout_seconds int32 0",
        "rpc_enable_tcp_no_delay bool true",
    ),
    alike(
        _none,
        "records of engines at `/metadata` stay until they are deleted",
        "enable_metadata_cleanup_on_timeout bool false",
    ),
    alike(_none, "a cluster has an identity from its formation on", "cluster_id string mooncake_cluster"),
    alike(_none, "no requests are routed by labels", 'pod_namespace string ""'),
    COMMON,
    alike(
        Effect.OURS,
        "`--peers`: Raft addresses of all masters, this one included. Without it, and without `MC_PEERS`, this master is a cluster of one",
        'peers string ""',
    ),
    alike(Effect.OURS, "`--single`: a cluster of one, also in a pod of several", "single bool false"),
    alike(
        Effect.OURS,
        "`--cluster-size`, for a name in `--peers` that stands for several masters; refused without peers",
        "cluster_size int32 0",
    ),
    alike(Effect.OURS, "`--raft-listen`: see below", 'raft_listen string ""'),
    alike(Effect.OURS, "`--advertise`: host under which others reach this master", 'advertise string ""'),
    alike(Effect.OURS, "`--data-dir`. Default: `mc-data/mooncake_master-PORT`", 'data_dir string ""'),
    alike(Effect.OURS, "`--ephemeral`: the disk is lost with the pod; refused without peers", "ephemeral bool false"),
    alike(Effect.OURS, "`--disk-reserve`", 'disk_reserve string ""'),
)
