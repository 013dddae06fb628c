use std::collections::BTreeMap;
use std::fmt::Write as _;

use mc_types::MetricKind;

use crate::api::Api;

/// A metric under Mooncake's name, as the sum of some of ours.
struct Renamed {
    name: &'static str,
    kind: MetricKind,
    /// Names of ours, or series of them with all their labels.
    sources: &'static [&'static str],
}

const fn gauge(name: &'static str, sources: &'static [&'static str]) -> Renamed {
    Renamed { name, kind: MetricKind::Gauge, sources }
}

const fn counter(name: &'static str, sources: &'static [&'static str]) -> Renamed {
    Renamed { name, kind: MetricKind::Counter, sources }
}

/// Reads that found an object.
const HITS: &[&str] = &["mc_master_lookups_total{rpc=\"batch_get\",result=\"hit\"}"];
/// Keys that reads looked up.
const GETS: &[&str] = &[
    "mc_master_lookups_total{rpc=\"batch_get\",result=\"hit\"}",
    "mc_master_lookups_total{rpc=\"batch_get\",result=\"miss\"}",
    "mc_master_lookups_total{rpc=\"batch_get\",result=\"unavailable\"}",
];

/// Metrics of Mooncake's master that have a meaning here.
const RENAMED: [Renamed; 24] = [
    gauge("master_allocated_bytes", &["mc_pool_used_bytes"]),
    gauge("master_total_capacity_bytes", &["mc_pool_capacity_bytes"]),
    gauge("master_key_count", &["mc_objects"]),
    gauge("mem_cache_nums_", &["mc_objects"]),
    gauge("master_active_clients", &["mc_stores"]),
    counter("total_get_nums_", GETS),
    counter("valid_get_nums_", HITS),
    counter("mem_cache_hit_nums_", HITS),
    counter(
        "master_batch_get_replica_list_requests_total",
        &["mc_master_rpc_seconds_count{rpc=\"batch_get\"}"],
    ),
    counter("master_batch_get_replica_list_items_total", GETS),
    counter(
        "master_batch_get_replica_list_failed_items_total",
        &[
            "mc_master_lookups_total{rpc=\"batch_get\",result=\"miss\"}",
            "mc_master_lookups_total{rpc=\"batch_get\",result=\"unavailable\"}",
        ],
    ),
    counter("master_batch_exist_key_requests_total", &["mc_master_rpc_seconds_count{rpc=\"batch_exist\"}"]),
    counter(
        "master_batch_exist_key_items_total",
        &[
            "mc_master_lookups_total{rpc=\"batch_exist\",result=\"hit\"}",
            "mc_master_lookups_total{rpc=\"batch_exist\",result=\"miss\"}",
            "mc_master_lookups_total{rpc=\"batch_exist\",result=\"unavailable\"}",
        ],
    ),
    counter(
        "master_batch_put_start_requests_total",
        &["mc_master_rpc_seconds_count{rpc=\"batch_put_start\"}"],
    ),
    counter("master_batch_put_end_requests_total", &["mc_master_rpc_seconds_count{rpc=\"batch_put_end\"}"]),
    counter(
        "master_batch_put_revoke_requests_total",
        &["mc_master_rpc_seconds_count{rpc=\"batch_put_revoke\"}"],
    ),
    counter("master_put_start_alloc_failures_total", &["mc_master_puts_refused_total{short_of=\"space\"}"]),
    counter("master_remove_requests_total", &["mc_master_rpc_seconds_count{rpc=\"batch_remove\"}"]),
    counter("master_remove_all_requests_total", &["mc_master_rpc_seconds_count{rpc=\"remove_all\"}"]),
    counter("master_mount_segment_requests_total", &["mc_master_rpc_seconds_count{rpc=\"mount_store\"}"]),
    counter("master_unmount_segment_requests_total", &["mc_master_rpc_seconds_count{rpc=\"unmount_store\"}"]),
    counter("master_ping_requests_total", &["mc_master_rpc_seconds_count{rpc=\"heartbeat\"}"]),
    counter("master_evicted_key_count", &["mc_evicted_objects_total"]),
    counter("master_evicted_size_bytes", &["mc_evicted_bytes_total"]),
];

/// Metrics by segment, whose values are the index's.
const OF_SEGMENTS: [(&str, &str); 2] = [
    ("segment_allocated_bytes", "bytes allocated on a store"),
    ("segment_total_capacity_bytes", "bytes that a store lends"),
];

/// Lists the metrics at `/metrics?compat=mooncake`: Mooncake's name, and what it shows here.
#[must_use]
pub fn mooncake_metrics_reference() -> Vec<(&'static str, String)> {
    let renamed = RENAMED.iter().map(|renamed| (renamed.name, renamed.sources.join(" + ")));
    renamed.chain(OF_SEGMENTS.map(|(name, what)| (name, what.to_owned()))).collect()
}

/// Returns this master's metrics under Mooncake's names. `page` has them under ours.
pub(crate) fn renamed(page: &str, api: &Api) -> String {
    let mut text = String::new();
    for Renamed { name, kind, sources } in &RENAMED {
        let value: f64 = sources.iter().map(|source| sum(page, source)).sum();
        // Writing to a string does not fail.
        let _ = writeln!(text, "# TYPE {name} {kind}\n{name} {value}");
    }
    let stores = by_name(api);
    for ((name, _), pick) in OF_SEGMENTS.into_iter().zip([|(used, _)| used, |(_, capacity)| capacity]) {
        let _ = writeln!(text, "# TYPE {name} gauge");
        for (segment, bytes) in &stores {
            let segment = segment.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = writeln!(text, "{name}{{segment=\"{segment}\"}} {}", pick(*bytes));
        }
    }
    text
}

/// Returns the bytes allocated and lent by stores of each name.
fn by_name(api: &Api) -> BTreeMap<String, (u64, u64)> {
    let mut stores = BTreeMap::<_, (u64, u64)>::new();
    for store in api.own_status().stores {
        let (used, capacity) = stores.entry(store.name).or_default();
        *used = used.saturating_add(store.used_bytes);
        *capacity = capacity.saturating_add(store.capacity_bytes);
    }
    stores
}

/// Sums the series of a metric, or one of them.
fn sum(page: &str, source: &str) -> f64 {
    let value = |line: &str| {
        let rest = line.strip_prefix(source)?;
        let of_this = rest.starts_with([' ', '{']);
        rest.rsplit_once(' ').filter(|_| of_this)?.1.parse::<f64>().ok()
    };
    page.lines().filter_map(value).sum()
}

#[cfg(test)]
mod tests {
    use mc_process::metrics::Registry;

    use super::*;
    use crate::metrics::MasterMetrics;

    #[test]
    fn every_source_is_a_series_that_a_master_has() {
        let page = MasterMetrics::new(Registry::new()).render();
        for source in RENAMED.iter().flat_map(|renamed| renamed.sources) {
            let is_there = page
                .lines()
                .any(|line| line.strip_prefix(source).is_some_and(|rest| rest.starts_with([' ', '{'])));
            assert!(is_there, "{source} is not in\n{page}");
        }
    }

    #[test]
    fn a_metric_is_summed_over_its_labels_and_no_other_is() {
        let page = "# HELP a_total A\na_total{x=\"1\"} 2\na_total{x=\"2\"} 3\na_total_b 7\na 11\n";
        assert_eq!(sum(page, "a_total"), 5.0);
        assert_eq!(sum(page, "a_total{x=\"2\"}"), 3.0);
        assert_eq!(sum(page, "a"), 11.0);
        assert_eq!(sum(page, "absent"), 0.0);
    }
}
