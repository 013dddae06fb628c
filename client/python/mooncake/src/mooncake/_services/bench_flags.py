"""The flags of `transfer_engine_bench`: each of 0.3.13 and 0.3.14."""

from __future__ import annotations

from .flags import COMMON, Effect, alike, table_of

_none = Effect.NONE
_mapped = Effect.MAPPED
_refused = Effect.REFUSED

TABLE = table_of(
    alike(_mapped, "`initiator` reads or writes memory of a `target`", "mode string initiator"),
    alike(_mapped, "name of this end; default: the host's name", 'local_server_name string ""'),
    alike(_mapped, "as `metadata_server` of `initialize`; default: `P2PHANDSHAKE`", "metadata_server string 192.168.3.77:2379"),
    alike(_mapped, "name of the target, which it prints; an initiator needs it", "segment_id string 192.168.3.76"),
    alike(_mapped, "`read` or `write`", "operation string read"),
    alike(_mapped, "as `protocol` of `initialize`", "protocol string rdma"),
    alike(_mapped, "bytes of memory at each end", "buffer_size uint64 1073741824"),
    alike(_mapped, "blocks of a call", "batch_size int32 128"),
    alike(_mapped, "bytes of a block", "block_size uint64 65536"),
    alike(_mapped, "seconds", "duration int32 10"),
    alike(_mapped, "threads of the initiator", "threads int32 12"),
    alike(_mapped, "GB, GiB, Gb, MB, MiB, Mb, KB, KiB or Kb, a second", "report_unit string GB"),
    alike(_mapped, "digits behind the point", "report_precision uint32 2"),
    alike(
        _none,
        "the engine chooses its devices",
        "device_name string mlx5_2",
        'nic_priority_matrix string ""',
        "auto_discovery bool false",
    ),
    alike(_none, "memory is the host's", "use_vram bool true", "init_mem bool true", "gpu_id int32 0"),
    alike(_refused, "there is one", "backend string classic"),
    COMMON,
)
