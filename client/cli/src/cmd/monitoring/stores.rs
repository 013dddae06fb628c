//! The stores, their transfers, and what clients see of them.

use super::board::{Board, Panel, Row, Unit, in_an_hour, quantile, rate};

pub(super) const BOARD: Board = Board {
    name: "stores",
    title: "stores and transfers",
    about: "The stores, their memory, connections and transfers, and what clients see of them.",
    rows: &[
        Row {
            title: "Stores",
            panels: &[
                Panel::graph(
                    "Mounted stores",
                    Unit::Count,
                    &[("max by (state) (mc_stores{})", "{{state}}")],
                    "As the leader sees them. A suspect store is silent; it is dropped with its objects after `store-ttl`.",
                )
                .see("Replace or drain a store"),
                Panel::graph(
                    "Ready",
                    Unit::Count,
                    &[("mc_store_ready{}", "{{instance}}")],
                    "1 while a leader has the store mounted. 0: `/readyz` of that store says why.",
                )
                .see("Check health"),
                Panel::graph(
                    "Age of the last heartbeat",
                    Unit::Seconds,
                    &[("mc_store_heartbeat_age_seconds{}", "{{instance}}")],
                    "Time since a leader last confirmed the mount. Above 1 s: the store is cut off, or no master leads.",
                )
                .alarm_from(1.0),
                Panel::graph(
                    "Memory",
                    Unit::Bytes,
                    &[
                        ("mc_store_capacity_bytes{}", "lent {{instance}}"),
                        ("mc_store_allocated_bytes{}", "faulted in {{instance}}"),
                    ],
                    "Memory that each store lends, and the part that is allocated and faulted in: less only while the store starts.",
                ),
                Panel::graph(
                    "Term that stores follow",
                    Unit::Count,
                    &[
                        ("mc_store_leader_term{}", "{{instance}}"),
                        ("max(mc_raft_term{})", "masters"),
                    ],
                    "Stores move to a new leader within two seconds. A store below the masters' term is cut off.",
                ),
                Panel::graph(
                    "Mounts",
                    Unit::Count,
                    &[
                        (in_an_hour!("instance", "mc_store_mounts_total{}"), "mounts {{instance}}"),
                        (in_an_hour!("instance", "mc_store_dead_epochs_total{}"), "memory dropped {{instance}}"),
                    ],
                    "In the last hour. Memory dropped: the masters gave the store up, so it was cut off for longer than `store-ttl`.",
                ),
            ],
        },
        Row {
            title: "Transfers",
            panels: &[
                Panel::graph(
                    "Bytes served",
                    Unit::BytesPerSecond,
                    &[
                        (
                            rate!("instance", "mc_store_transferred_bytes_total{op=\"read\"}"),
                            "TCP {{instance}}",
                        ),
                        (
                            rate!("instance", "mc_store_shm_read_bytes_total{}"),
                            "shared memory {{instance}}",
                        ),
                        (rate!("instance", "mc_store_rdma_bytes_total{op=\"read\"}"), "RDMA {{instance}}"),
                    ],
                    "Bytes that clients read from each store. Clients of the same host and user read through shared \
                     memory; if they don't, see `mc-store --shm`. With RDMA at both ends others go by it; if they don't, see \
                     `mcctl check rdma` at both.",
                ),
                Panel::graph(
                    "Bytes taken",
                    Unit::BytesPerSecond,
                    &[
                        (
                            rate!("instance", "mc_store_transferred_bytes_total{op=\"write\"}"),
                            "TCP {{instance}}",
                        ),
                        (
                            rate!("instance", "mc_store_shm_written_bytes_total{}"),
                            "shared memory {{instance}}",
                        ),
                        (rate!("instance", "mc_store_rdma_bytes_total{op=\"write\"}"), "RDMA {{instance}}"),
                    ],
                    "Bytes that clients write to each store. Those of the same host and user write 16 KiB and more through shared \
                     memory; if they don't, see `mc-store --shm`.",
                ),
                Panel::graph(
                    "RDMA",
                    Unit::Count,
                    &[
                        (in_an_hour!("instance", "mc_store_rdma_pairs_total{}"), "connections {{instance}}"),
                        (in_an_hour!("instance", "mc_store_rdma_failures_total{}"), "failures {{instance}}"),
                    ],
                    "In the last hour. Failures are requests that a card or the network did not carry; their clients go on over \
                     another way or TCP, and the store's log names the device. Worry when they go on.",
                ),
                Panel::graph(
                    "Transfers",
                    Unit::PerSecond,
                    &[
                        (rate!("op", "mc_store_transfers_total{}"), "{{op}}"),
                        (rate!("job", "mc_store_shm_reads_total{}"), "read through shared memory"),
                    ],
                    "Transfers that were finished.",
                ),
                Panel::graph(
                    "Time of a read",
                    Unit::Seconds,
                    &[
                        (quantile!(0.5, "instance", "mc_store_transfer_seconds", "{op=\"read\"}"), "p50 {{instance}}"),
                        (quantile!(0.99, "instance", "mc_store_transfer_seconds", "{op=\"read\"}"), "p99 {{instance}}"),
                    ],
                    "From a request's header until the last byte is handed to the socket. Slow clients count. Worry when p99 rises \
                     while the bytes per second do not.",
                )
                .see("Clients and slow stores"),
                Panel::graph(
                    "Time of a write",
                    Unit::Seconds,
                    &[
                        (quantile!(0.5, "instance", "mc_store_transfer_seconds", "{op=\"write\"}"), "p50 {{instance}}"),
                        (quantile!(0.99, "instance", "mc_store_transfer_seconds", "{op=\"write\"}"), "p99 {{instance}}"),
                    ],
                    "From a request's header until the answer is handed to the socket.",
                )
                .see("Clients and slow stores"),
                Panel::graph(
                    "Transfers refused",
                    Unit::PerSecond,
                    &[(rate!("instance", "mc_store_refusals_total{}"), "{{instance}}")],
                    "The grant was expired or superseded, or for other memory. A few after a failover are normal. A steady rate: clients \
                     are slower than their grants, or clocks run at different rates.",
                ),
            ],
        },
        Row {
            title: "Connections and the fence",
            panels: &[
                Panel::graph(
                    "Data connections, of the limit",
                    Unit::Ratio,
                    &[("mc_store_connections{} / mc_store_connections_limit{}", "{{instance}}")],
                    "Open connections in proportion to the limit. Near 1: raise the hard limit of open files (`LimitNOFILE`).",
                )
                .alarm_from(0.9),
                Panel::graph(
                    "Connections opened",
                    Unit::PerSecond,
                    &[(rate!("instance", "mc_store_connections_opened_total{}"), "{{instance}}")],
                    "If it rises as fast as the transfers, something closes the connections.",
                ),
                Panel::graph(
                    "Connections refused or broken",
                    Unit::PerSecond,
                    &[
                        (rate!("instance", "mc_store_connections_refused_total{}"), "refused {{instance}}"),
                        (rate!("instance", "mc_store_broken_connections_total{}"), "broken {{instance}}"),
                    ],
                    "Refused: the limit was reached. Broken: the peer broke the protocol or stalled.",
                ),
                Panel::graph(
                    "Memory of the fence",
                    Unit::Bytes,
                    &[
                        ("mc_store_fence_bytes{}", "used {{instance}}"),
                        ("mc_store_fence_limit_bytes{}", "limit {{instance}}"),
                    ],
                    "The record of the writes of the last two minutes. When it comes near the limit, writes wait: put more keys in a \
                     call, or add stores.",
                ),
                Panel::graph(
                    "Writes that waited for the fence",
                    Unit::PerSecond,
                    &[(rate!("instance", "mc_store_fence_waits_total{}"), "{{instance}}")],
                    "Writes that waited until the fence had memory to remember them.",
                ),
            ],
        },
        Row {
            title: "Clients, where the engines export their metrics",
            panels: &[
                Panel::graph(
                    "Gets",
                    Unit::PerSecond,
                    &[
                        (rate!("job", "mc_client_hits_total{}"), "hits {{job}}"),
                        (rate!("job", "mc_client_misses_total{}"), "misses {{job}}"),
                        (rate!("job", "mc_client_cache_hits_total{}"), "of the hits, local cache {{job}}"),
                        (rate!("job", "mc_client_embedded_hits_total{}"), "of the hits, embedded store {{job}}"),
                    ],
                    "Gets as clients see them. Hits of an embedded store: no leader was in reach.",
                ),
                Panel::graph(
                    "Puts",
                    Unit::PerSecond,
                    &[
                        (rate!("job", "mc_client_puts_stored_total{}"), "stored {{job}}"),
                        (rate!("job", "mc_client_puts_existing_total{}"), "existed {{job}}"),
                        (rate!("job", "mc_client_puts_local_total{}"), "local only {{job}}"),
                        (rate!("job", "mc_client_puts_published_total{}"), "published later {{job}}"),
                        (rate!("job", "mc_client_local_puts_refused_total{}"), "local, then refused {{job}}"),
                        (rate!("job", "mc_client_local_puts_evicted_total{}"), "local, then evicted {{job}}"),
                    ],
                    "Local only: no leader was in reach, and the put was not acknowledged. Refused: objects are too large. Evicted: the \
                     local cache is too small for the outage.",
                )
                .see("Clients in a failover"),
                Panel::graph(
                    "Time of a put's steps, p99",
                    Unit::Seconds,
                    &[
                        (quantile!(0.99, "job", "mc_client_put_start_seconds", "{}"), "start {{job}}"),
                        (quantile!(0.99, "job", "mc_client_put_write_seconds", "{}"), "write {{job}}"),
                        (quantile!(0.99, "job", "mc_client_put_end_seconds", "{}"), "end {{job}}"),
                    ],
                    "Wait for the leader to start a put, for the stores to take its bytes, and for the leader to end it. The longest \
                     part says where to look: masters or stores.",
                ),
                Panel::graph(
                    "Bytes",
                    Unit::BytesPerSecond,
                    &[
                        (rate!("job", "mc_client_read_bytes_total{}"), "read {{job}}"),
                        (
                            rate!("job", "mc_client_shm_read_bytes_total{}"),
                            "read through shared memory {{job}}",
                        ),
                        (rate!("job", "mc_client_written_bytes_total{}"), "written {{job}}"),
                        (
                            rate!("job", "mc_client_shm_written_bytes_total{}"),
                            "written through shared memory {{job}}",
                        ),
                        (rate!("job", "mc_client_rdma_read_bytes_total{}"), "read by RDMA {{job}}"),
                        (rate!("job", "mc_client_rdma_written_bytes_total{}"), "written by RDMA {{job}}"),
                    ],
                    "Traffic between clients and stores. Each replica of a put counts.",
                ),
                Panel::graph(
                    "Wrong bytes and unreachable objects",
                    Unit::Count,
                    &[
                        (in_an_hour!("job", "mc_client_checksum_mismatches_total{}"), "wrong bytes {{job}}"),
                        (in_an_hour!("job", "mc_master_mismatches_reported_total{}"), "wrong bytes, told to the leader"),
                        (in_an_hour!("job", "mc_client_unreachable_replicas_total{}"), "unreachable {{job}}"),
                    ],
                    "In the last hour. Wrong bytes are never returned to callers; each names a store in the client's log, and the leader's log names one every \
                     ten seconds. Unreachable: \
                     the masters know the object, and no store that holds it could be read.",
                )
                .alarm_from(1.0)
                .see("A store returns wrong bytes"),
                Panel::graph(
                    "Failover as clients see it",
                    Unit::Count,
                    &[
                        (in_an_hour!("job", "mc_client_leader_changes_total{}"), "leaders found {{job}}"),
                        (in_an_hour!("job", "mc_client_local_only_entries_total{}"), "turned local-only {{job}}"),
                        (in_an_hour!("job", "mc_client_retries_total{}"), "calls retried {{job}}"),
                    ],
                    "In the last hour, over all clients. If they rise without restarts of masters: look at the network.",
                )
                .see("Clients in a failover"),
            ],
        },
    ],
};
