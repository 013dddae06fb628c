//! One screen: is it up, is it fast, is it full, does it hit.

use super::board::{Board, Panel, Row, Unit, quantile, rate};

pub(super) const BOARD: Board = Board {
    name: "overview",
    title: "overview",
    about: "One screen: is the pool up, is it fast, is it full, and does it hit.",
    rows: &[
        Row {
            title: "Is it up?",
            panels: &[
                Panel::value(
                    "Leaders that can write",
                    Unit::Count,
                    &[("sum(mc_raft_leader_can_write{})", "leaders")],
                    "1 is healthy. 0 for longer than a few seconds: no put works, and without a leader clients run on their local \
                     caches. Start with `mcctl status`.",
                )
                .alarm_below(1.0)
                .see("Check health"),
                Panel::value(
                    "Masters without a leader",
                    Unit::Count,
                    &[("count(mc_raft_has_leader{}) - sum(mc_raft_has_leader{})", "masters")],
                    "Running masters that know no leader: they wait to be taken in, were removed, or can't reach the others.",
                )
                .alarm_from(1.0)
                .see("Check health"),
                Panel::value(
                    "Processes not scraped",
                    Unit::Count,
                    &[("count(up{}) - sum(up{})", "processes")],
                    "Targets of Prometheus that do not answer. Check whether the process runs, and its `--http-listen` port.",
                )
                .alarm_from(1.0)
                .see("Check health"),
                Panel::value(
                    "Stores",
                    Unit::Count,
                    &[("max(mc_stores{state=\"alive\"})", "alive")],
                    "Stores that the leader has mounted and hears.",
                ),
                Panel::value(
                    "Suspect stores",
                    Unit::Count,
                    &[("max(mc_stores{state=\"suspect\"})", "suspect")],
                    "Stores whose heartbeats broke off: their objects can't be read now, and are dropped after `store-ttl`. Check \
                     those machines.",
                )
                .alarm_from(1.0)
                .see("Replace or drain a store"),
                Panel::value(
                    "Refused puts, last 5 min",
                    Unit::Count,
                    &[("sum(increase(mc_master_puts_refused_total{}[5m]))", "calls")],
                    "Calls to start puts that were refused because a master's disk is nearly full, or because no eviction can free \
                     space in the pool. The board \"pool, eviction and puts\" tells which.",
                )
                .alarm_from(1.0)
                .see("Puts find no space"),
            ],
        },
        Row {
            title: "Is it fast?",
            panels: &[
                Panel::graph(
                    "Calls",
                    Unit::PerSecond,
                    &[(rate!("rpc", "mc_master_rpc_seconds_count{}"), "{{rpc}}")],
                    "Calls of clients and stores to the masters. A batch is one call.",
                ),
                Panel::graph(
                    "Time to answer, p99",
                    Unit::Seconds,
                    &[(
                        quantile!(
                            0.99,
                            "rpc",
                            "mc_master_rpc_seconds",
                            "{rpc=~\"batch_get|batch_exist|batch_put_start|batch_put_end|batch_remove\"}"
                        ),
                        "{{rpc}}",
                    )],
                    "Time inside the master. Gets above 10 ms: the master is short of CPU or the batches are large. Puts above \
                     100 ms: look at the disks and the network on the board \"Raft and failover\".",
                )
                .alarm_from(0.1),
                Panel::graph(
                    "Bytes moved by stores",
                    Unit::BytesPerSecond,
                    &[(rate!("op", "mc_store_transferred_bytes_total{}"), "{{op}}")],
                    "Bytes that stores serve (read) and take (write), straight between them and the clients.",
                ),
            ],
        },
        Row {
            title: "Is it full?",
            panels: &[
                Panel::graph(
                    "Pool",
                    Unit::Bytes,
                    &[
                        ("max(mc_pool_capacity_bytes{})", "capacity"),
                        ("max(mc_pool_used_bytes{})", "used"),
                    ],
                    "Memory lent by the stores, and the part in use. A pool in use stays near `eviction-high-watermark` of its \
                     capacity. A step down of the capacity: a store is gone.",
                ),
                Panel::graph(
                    "Evictions",
                    Unit::BytesPerSecond,
                    &[(rate!("reason", "mc_evicted_bytes_total{}"), "{{reason}}")],
                    "Bytes evicted to keep below the watermark, and beyond that for waiting puts (put). If `put` rises all the time, \
                     lower `eviction-low-watermark`.",
                ),
                Panel::graph(
                    "Room on the masters' disks",
                    Unit::Bytes,
                    &[("mc_data_dir_free_bytes{} - mc_data_dir_needed_bytes{}", "{{instance}}")],
                    "Free space beyond the space that a leader needs. Below 0 that master starts no puts while it leads.",
                )
                .alarm_below(0.0)
                .see("A master's disk fills"),
            ],
        },
        Row {
            title: "Does it hit?",
            panels: &[
                Panel::graph(
                    "Hit ratio",
                    Unit::Ratio,
                    &[(
                        "sum by (rpc) (rate(mc_master_lookups_total{result=\"hit\"}[$__rate_interval])) / \
                         sum by (rpc) (rate(mc_master_lookups_total{}[$__rate_interval]))",
                        "{{rpc}}",
                    )],
                    "Keys found, of all that gets and existence checks looked up. It falls when the pool is too small for what is \
                     reused, after a store is lost, and while a new workload warms up.",
                ),
                Panel::graph(
                    "Keys looked up",
                    Unit::PerSecond,
                    &[(rate!("result", "mc_master_lookups_total{}"), "{{result}}")],
                    "Keys of gets and existence checks by result. `unavailable`: the object exists and can't be read now, because \
                     its stores are suspect or it is being evicted.",
                ),
                Panel::graph(
                    "Objects",
                    Unit::Count,
                    &[("max(mc_objects{})", "objects")],
                    "Objects in the index. A fall without evictions: a store is gone, and its objects with it.",
                ),
            ],
        },
    ],
};
