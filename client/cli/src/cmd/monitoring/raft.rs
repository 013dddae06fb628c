//! The masters: elections, commits, the log and its disk, and load that was turned away.

use super::board::{Board, Panel, Row, Unit, in_an_hour, quantile, rate};

pub(super) const BOARD: Board = Board {
    name: "raft",
    title: "Raft and failover",
    about: "The masters: who leads, how long elections and commits take, the disks under the log, and calls turned away.",
    rows: &[
        Row {
            title: "Leadership",
            panels: &[
                Panel::graph(
                    "Leader",
                    Unit::Count,
                    &[
                        ("mc_raft_is_leader{}", "leads {{instance}}"),
                        ("sum(mc_raft_leader_can_write{})", "can write"),
                    ],
                    "One line at 1 is healthy, and `can write` with it. No line at 1: nobody leads. A leader without `can write`: \
                     its heartbeats are answered too late, and it refuses every write.",
                )
                .see("A leader that can't write"),
                Panel::graph(
                    "Masters that know a leader",
                    Unit::Count,
                    &[("mc_raft_has_leader{}", "{{instance}}")],
                    "0: this master waits to be taken in, was removed, or can't reach the others; `/readyz` says which.",
                )
                .see("Check health"),
                Panel::graph(
                    "Term and changes of the leader",
                    Unit::Count,
                    &[
                        ("max(mc_raft_term{})", "term"),
                        (in_an_hour!("instance", "mc_raft_leader_changes_total{}"), "changes in 1 h {{instance}}"),
                    ],
                    "A step now and then is a restart. A staircase without restarts is a network or a disk that keeps the masters \
                     from hearing each other.",
                ),
                Panel::graph(
                    "Elections, p99",
                    Unit::Seconds,
                    &[(
                        "histogram_quantile(0.99, sum by (le) (increase(mc_raft_election_seconds_bucket{}[1h])))",
                        "election",
                    )],
                    "Time from a master's candidacy until it led, over the last hour; without an election there is no value. Above 200 ms: \
                     votes are late or split, by network or disk.",
                )
                .alarm_from(0.2),
                Panel::graph(
                    "Round trip to a majority",
                    Unit::Seconds,
                    &[("max(mc_raft_round_trip_seconds{})", "round trip")],
                    "Time until a majority has answered the leader's heartbeats. `--raft-timing lan` supports up to 75 ms, `wan` up \
                     to 250 ms; beyond that the leader can't write.",
                )
                .alarm_from(0.075)
                .see("A leader that can't write"),
                Panel::graph(
                    "Changes of the members",
                    Unit::Count,
                    &[(in_an_hour!("change", "mc_raft_member_changes_total{}"), "{{change}}")],
                    "In the last hour. If it keeps rising without a command, something empties a master's disk.",
                )
                .see("Restart a master that lost its disk"),
            ],
        },
        Row {
            title: "Commits",
            panels: &[
                Panel::graph(
                    "Time to commit, p99",
                    Unit::Seconds,
                    &[(quantile!(0.99, "op", "mc_raft_commit_seconds", "{}"), "{{op}}")],
                    "On the leader, from proposing an entry until it is committed and applied. A put waits for two, `put_start` and \
                     `put_end`. Above 100 ms: look at the disks and the round trip.",
                )
                .alarm_from(0.1),
                Panel::graph(
                    "Entries committed",
                    Unit::PerSecond,
                    &[(rate!("op", "mc_raft_commit_seconds_count{}"), "{{op}}")],
                    "Entries by kind. An entry holds a whole batch.",
                ),
                Panel::graph(
                    "Time to apply, p99",
                    Unit::Seconds,
                    &[(quantile!(0.99, "instance", "mc_raft_apply_seconds", "{}"), "{{instance}}")],
                    "Time to apply a few entries, during which readers of the index wait. Above 20 ms: that master is short of CPU.",
                )
                .alarm_from(0.02),
                Panel::graph(
                    "Committed, not applied",
                    Unit::Count,
                    &[("mc_raft_committed_index{} - mc_raft_applied_index{}", "{{instance}}")],
                    "Entries that a master knows to be committed and has not applied. Stays near 0, except on a master that catches \
                     up after a start.",
                ),
                Panel::graph(
                    "Messages between masters, p99",
                    Unit::Seconds,
                    &[(quantile!(0.99, "rpc", "mc_raft_rpc_seconds", "{}"), "{{rpc}}")],
                    "Time to answer another master. `append` includes the log's sync and `snapshot` the transfer. `vote` above 50 ms \
                     delays elections.",
                ),
                Panel::graph(
                    "Checks of leadership",
                    Unit::PerSecond,
                    &[(rate!("by", "mc_master_leader_checks_total{}"), "{{by}}")],
                    "Checks before an answer, by the lease or by asking a quorum. If `quorum` rises as fast as the calls although \
                     `read-policy` is `lease`, heartbeats are late.",
                ),
            ],
        },
        Row {
            title: "Log and disk",
            panels: &[
                Panel::graph(
                    "Sync of the log",
                    Unit::Seconds,
                    &[
                        (quantile!(0.5, "instance", "mc_raft_log_fsync_seconds", "{}"), "p50 {{instance}}"),
                        (quantile!(0.99, "instance", "mc_raft_log_fsync_seconds", "{}"), "p99 {{instance}}"),
                    ],
                    "One fdatasync. A put waits for two rounds of it on a majority. p99 above 50 ms: look at that disk.",
                )
                .alarm_from(0.05)
                .see("A master's disk is slow, stuck or broken"),
                Panel::graph(
                    "Votes that come too late",
                    Unit::Count,
                    &[("mc_raft_votes_late{}", "{{instance}}")],
                    "1: half of that master's syncs take longer than an election allows (112 ms with `--raft-timing lan`, 375 ms with \
                     `wan`). A leader goes on with a majority at 1, but if it is lost, no other is elected. Give them faster disks, or \
                     a slower timing.",
                )
                .alarm_from(1.0)
                .see("A master's disk is slow, stuck or broken"),
                Panel::graph(
                    "Other parts of a log write, p99",
                    Unit::Seconds,
                    &[
                        (quantile!(0.99, "instance", "mc_raft_log_queue_seconds", "{}"), "queue {{instance}}"),
                        (quantile!(0.99, "instance", "mc_raft_log_write_seconds", "{}"), "insert {{instance}}"),
                        (quantile!(0.99, "instance", "mc_raft_log_flush_seconds", "{}"), "flush {{instance}}"),
                    ],
                    "Wait for the log writer, insert into sled, and sled's flush to the kernel. A queue longer than the sync: the disk \
                     does not keep up.",
                ),
                Panel::graph(
                    "Log volume",
                    Unit::BytesPerSecond,
                    &[(rate!("instance", "mc_raft_log_bytes_total{}"), "{{instance}}")],
                    "Bytes of entries appended to each master's log.",
                ),
                Panel::graph(
                    "Entries per sync",
                    Unit::Count,
                    &[
                        (quantile!(0.5, "instance", "mc_raft_log_batch_entries", "{}"), "p50 {{instance}}"),
                        (quantile!(0.99, "instance", "mc_raft_log_batch_entries", "{}"), "p99 {{instance}}"),
                    ],
                    "Entries made durable by one sync: they grow with the load, which keeps the number of syncs down.",
                ),
                Panel::graph(
                    "Bytes per sync",
                    Unit::Bytes,
                    &[
                        (quantile!(0.5, "instance", "mc_raft_log_batch_bytes", "{}"), "p50 {{instance}}"),
                        (quantile!(0.99, "instance", "mc_raft_log_batch_bytes", "{}"), "p99 {{instance}}"),
                    ],
                    "Bytes of entries made durable by one sync.",
                ),
                Panel::graph(
                    "Entries behind the last purge",
                    Unit::Count,
                    &[("mc_raft_applied_index{} - mc_raft_purged_index{}", "{{instance}}")],
                    "Entries in the log of each master. A saw-tooth is healthy. If it only rises while the log grows by more than half \
                     a snapshot, snapshots fail: look for `snapshot not taken` in the log of that master.",
                )
                .see("Messages"),
                Panel::graph(
                    "Space for the data directory",
                    Unit::Bytes,
                    &[
                        ("mc_data_dir_free_bytes{}", "free {{instance}}"),
                        ("mc_data_dir_needed_bytes{}", "needed {{instance}}"),
                    ],
                    "Where free falls below needed, that master starts no puts while it leads. Make room on its disk.",
                )
                .see("A master's disk fills"),
                Panel::graph(
                    "Disk faults",
                    Unit::Count,
                    &[
                        (
                            in_an_hour!("instance", "mc_raft_slow_disk_handovers_total{}"),
                            "slow disk, handed over {{instance}}",
                        ),
                        (in_an_hour!("instance", "mc_raft_log_torn_tails_total{}"), "torn tail {{instance}}"),
                    ],
                    "In the last hour: times that a leader found its disk slow and handed over, and starts at which a torn tail was \
                     cut off. A torn tail without a crash before it: look at the disk.",
                )
                .alarm_from(1.0)
                .see("A master's disk is slow, stuck or broken"),
            ],
        },
        Row {
            title: "Overload",
            panels: &[
                Panel::graph(
                    "Calls refused",
                    Unit::PerSecond,
                    &[
                        (rate!("instance", "mc_master_proposals_refused_total{}"), "proposals {{instance}}"),
                        (rate!("instance", "mc_master_requests_refused_total{}"), "requests {{instance}}"),
                    ],
                    "Proposals: clients put faster than the disks sync. Requests: too many callers, too large batches, or callers \
                     that do not read their replies.",
                ),
                Panel::graph(
                    "Calls shed",
                    Unit::PerSecond,
                    &[(rate!("rpc", "mc_master_calls_shed_total{}"), "{{rpc}}")],
                    "Refused because tasks waited 50 ms or more for CPU time; callers retry by themselves. If no leader was lost, give \
                     the masters more CPU.",
                )
                .see("Large fleets"),
                Panel::graph(
                    "Log lines dropped",
                    Unit::Count,
                    &[
                        (in_an_hour!("instance", "mc_master_log_lines_dropped_total{}"), "master {{instance}}"),
                        (in_an_hour!("instance", "mc_store_log_lines_dropped_total{}"), "store {{instance}}"),
                    ],
                    "In the last hour. Nothing read the standard error of that process, or not as fast as it logs: look at what \
                     starts it.",
                ),
            ],
        },
    ],
};
