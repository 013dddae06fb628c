//! The pool's space: use, eviction, puts that wait for room, and what reads find.

use super::board::{Board, Panel, Row, Unit, quantile, rate};

pub(super) const BOARD: Board = Board {
    name: "pool",
    title: "pool, eviction and tenants",
    about: "The pool's space: how it is used, what is evicted, which puts wait or are refused, what lookups find, and what each \
            tenant has.",
    rows: &[
        Row {
            title: "Space",
            panels: &[
                Panel::graph(
                    "Bytes by state",
                    Unit::Bytes,
                    &[
                        ("max(mc_pool_capacity_bytes{})", "capacity"),
                        ("max(mc_pool_used_bytes{})", "used"),
                        ("max(mc_pool_held_bytes{})", "held"),
                        ("max(mc_pool_in_flight_bytes{})", "in flight"),
                        ("max(mc_pool_leased_bytes{})", "leased"),
                        ("max(mc_pool_hard_pinned_bytes{})", "hard-pinned"),
                    ],
                    "Used includes held bytes and those in flight. Held: removed or replaced objects that readers may still read; these bytes are free again \
                     within two read leases. In flight: puts that have not ended. Leased objects are not evicted meanwhile. Near `hard-pin-limit` of the capacity, puts of hard-pinned objects are refused.",
                )
                .see("Protect objects from eviction"),
                Panel::graph(
                    "Use of the pool",
                    Unit::Ratio,
                    &[
                        (
                            "(max(mc_pool_used_bytes{}) - max(mc_pool_held_bytes{})) / max(mc_pool_capacity_bytes{})",
                            "live",
                        ),
                        ("max(mc_pool_used_bytes{}) / max(mc_pool_capacity_bytes{})", "live and held"),
                        ("max(mc_pool_hard_pinned_bytes{}) / max(mc_pool_capacity_bytes{})", "hard-pinned"),
                    ],
                    "Evictions keep the live bytes between the low and the high watermark. At 1 with the held bytes, puts wait until \
                     bytes are evicted or no longer held.",
                )
                .see("Puts find no space"),
                Panel::graph(
                    "Objects",
                    Unit::Count,
                    &[("max(mc_objects{})", "objects"), ("max(mc_groups{})", "groups")],
                    "Objects in the index, and groups that they form. A fall without evictions: a store is gone.",
                ),
                Panel::graph(
                    "Memory of the index",
                    Unit::Bytes,
                    &[("max by (instance) (mc_index_bytes{})", "{{instance}}")],
                    "Memory that the index takes in each master, by its own estimate. At `max-index-memory`, objects are evicted.",
                )
                .see("Limits of the pool and of tenants"),
                Panel::graph(
                    "Puts in flight",
                    Unit::Count,
                    &[("max(mc_puts_in_flight{})", "puts")],
                    "Puts that have started and not ended. If it keeps growing, clients die or stall between start and end; each put \
                     is given up at its deadline.",
                ),
                Panel::graph(
                    "Read leases",
                    Unit::Count,
                    &[("max(mc_read_leases{})", "leases")],
                    "Objects that readers may be reading, as the leader remembers. Leased objects are not evicted.",
                ),
            ],
        },
        Row {
            title: "Eviction",
            panels: &[
                Panel::graph(
                    "Bytes evicted",
                    Unit::BytesPerSecond,
                    &[(rate!("reason", "mc_evicted_bytes_total{}"), "{{reason}}")],
                    "By reason: `watermark` keeps the pool below `eviction-high-watermark`; `put` frees more, for puts that wait; `quota` \
                     keeps a tenant below its quota. If `put` rises all the time, lower `eviction-low-watermark`.",
                ),
                Panel::graph(
                    "Objects evicted",
                    Unit::PerSecond,
                    &[(rate!("reason", "mc_evicted_objects_total{}"), "{{reason}}")],
                    "By reason, as in \"Bytes evicted\".",
                ),
                Panel::graph(
                    "Age of evicted objects",
                    Unit::Seconds,
                    &[
                        (quantile!(0.5, "reason", "mc_evicted_age_seconds", "{}"), "p50 {{reason}}"),
                        (quantile!(0.05, "reason", "mc_evicted_age_seconds", "{}"), "p5 {{reason}}"),
                    ],
                    "Time since the objects were put. An object from before the leader's term counts as if it was put then. If the \
                     youngest are gone before their prefixes come again, the pool is too small: add stores.",
                )
                .see("Start a store"),
                Panel::graph(
                    "Time to evict as many bytes as are used",
                    Unit::Seconds,
                    &[(
                        "max(mc_pool_used_bytes{}) / sum(rate(mc_evicted_bytes_total{}[$__rate_interval]))",
                        "turnover",
                    )],
                    "Rough time for which an object that is not reused stays in the pool. If it is shorter than the time after which prefixes \
                     come again, the pool is too small: add stores.",
                )
                .see("Start a store"),
            ],
        },
        Row {
            title: "Puts that find no space",
            panels: &[
                Panel::graph(
                    "Calls that wait",
                    Unit::Count,
                    &[("sum(mc_puts_waiting{})", "now")],
                    "Calls to start puts that wait for an eviction at this moment.",
                )
                .see("Puts find no space"),
                Panel::graph(
                    "Calls that waited",
                    Unit::PerSecond,
                    &[(rate!("job", "mc_master_puts_waited_total{}"), "{{job}}")],
                    "Calls to start puts that found no space at first. If it rises all the time, lower `eviction-low-watermark`.",
                )
                .see("Puts find no space"),
                Panel::graph(
                    "Time of the wait",
                    Unit::Seconds,
                    &[
                        (quantile!(0.5, "job", "mc_master_put_wait_seconds", "{}"), "p50 {{job}}"),
                        (quantile!(0.99, "job", "mc_master_put_wait_seconds", "{}"), "p99 {{job}}"),
                    ],
                    "From finding no space until the puts were started or refused; `put-space-wait` bounds it. Above 100 ms: candidates \
                     are leased, or commits are slow.",
                )
                .alarm_from(0.1)
                .see("Puts find no space"),
                Panel::graph(
                    "Calls refused",
                    Unit::PerSecond,
                    &[(rate!("short_of", "mc_master_puts_refused_total{}"), "{{short_of}}")],
                    "Calls to start puts that were refused for want of `space` in the pool, or because a master's `disk` is nearly \
                     full (\"A master's disk fills\").",
                )
                .see("Puts find no space"),
            ],
        },
        Row {
            title: "Tenants",
            panels: &[
                Panel::graph(
                    "Bytes of tenants",
                    Unit::Bytes,
                    &[("max by (tenant) (mc_tenant_bytes{})", "{{tenant}}")],
                    "Bytes of each tenant's replicas, puts in flight included. The largest 100 tenants have series of their own; \
                     `mcctl tenants list` shows all.",
                )
                .see("Limits of the pool and of tenants"),
                Panel::graph(
                    "Objects of tenants",
                    Unit::Count,
                    &[("max by (tenant) (mc_tenant_objects{})", "{{tenant}}")],
                    "Objects of each tenant, puts in flight included.",
                )
                .see("Limits of the pool and of tenants"),
                Panel::graph(
                    "Use of quotas",
                    Unit::Ratio,
                    &[
                        (
                            "max by (tenant) (mc_tenant_bytes{}) / (max by (tenant) (mc_tenant_quota_bytes{}) > 0)",
                            "{{tenant}} bytes",
                        ),
                        (
                            "max by (tenant) (mc_tenant_objects{}) / (max by (tenant) (mc_tenant_quota_objects{}) > 0)",
                            "{{tenant}} objects",
                        ),
                    ],
                    "Share of its quota that a tenant uses. Between the watermarks, the tenant's own objects are evicted; that is \
                     normal. If its puts are refused, everything that it has left is leased or hard-pinned.",
                )
                .see("Limits of the pool and of tenants"),
            ],
        },
        Row {
            title: "Lookups",
            panels: &[
                Panel::graph(
                    "Hit ratio",
                    Unit::Ratio,
                    &[(
                        "sum by (rpc) (rate(mc_master_lookups_total{result=\"hit\"}[$__rate_interval])) / \
                         sum by (rpc) (rate(mc_master_lookups_total{}[$__rate_interval]))",
                        "{{rpc}}",
                    )],
                    "Keys found, of all that gets and existence checks looked up. `mcctl bench replay` says what a larger pool would \
                     hit on a recorded workload.",
                ),
                Panel::graph(
                    "Keys by result",
                    Unit::PerSecond,
                    &[(
                        "sum by (rpc, result) (rate(mc_master_lookups_total{}[$__rate_interval]))",
                        "{{rpc}} {{result}}",
                    )],
                    "Keys looked up by gets and existence checks.",
                ),
                Panel::graph(
                    "Keys unavailable",
                    Unit::Ratio,
                    &[(
                        "sum(rate(mc_master_lookups_total{result=\"unavailable\"}[$__rate_interval])) / \
                         sum(rate(mc_master_lookups_total{}[$__rate_interval]))",
                        "unavailable",
                    )],
                    "Keys whose object exists and can't be read now: every store that holds it is suspect, or its eviction is \
                     undecided. Above 1 % for minutes: check the stores.",
                )
                .alarm_from(0.01)
                .see("Replace or drain a store"),
            ],
        },
    ],
};
