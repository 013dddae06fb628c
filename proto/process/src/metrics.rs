//! Metrics as a value: a process makes one [`Registry`] and hands it down. Nothing is installed globally, so a
//! simulation can run many nodes in one process.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use mc_types::{Metric, MetricKind};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder as _};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};
use parking_lot::Mutex;

/// Bounds of histograms whose name ends in `_seconds`: from a leased read (tens of microseconds) to a stalled disk.
const SECONDS: [f64; 19] = [
    0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.035, 0.05, 0.1,
    0.25, 0.5, 1.0, 2.5, 10.0,
];
/// Bounds of histograms whose name ends in `_bytes`: 256 B to 4 GiB in steps of 4.
const BYTES: [f64; 13] = [
    256.0,
    1024.0,
    4096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
    268_435_456.0,
    1_073_741_824.0,
    4_294_967_296.0,
];
/// Bounds of histograms of ages, in seconds: from a second to a week.
const AGES: [f64; 12] =
    [1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0];
/// Bounds of all other histograms: counts, such as the items of a batch.
const COUNTS: [f64; 13] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0];

static METADATA: Metadata<'static> = Metadata::new("mc", Level::INFO, None);

/// The metrics of one process or one simulated node; clones share them.
///
/// A handle is looked up once, where the thing that it counts is made; then each use costs one atomic operation. Asking
/// again for the same name and labels returns the same metric.
#[derive(Clone)]
pub struct Registry(Arc<Shared>);

struct Shared {
    recorder: PrometheusRecorder,
    metrics: Mutex<BTreeMap<&'static str, Metric>>,
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl Registry {
    /// Makes an empty registry.
    pub fn new() -> Self {
        let buckets = |builder: PrometheusBuilder, matcher, values: &[f64]| {
            builder.set_buckets_for_metric(matcher, values).expect("the lists of bounds are not empty")
        };
        let builder = PrometheusBuilder::new().set_buckets(&COUNTS).expect("the list of bounds is not empty");
        let builder = buckets(builder, Matcher::Suffix("_seconds".into()), &SECONDS);
        let builder = buckets(builder, Matcher::Suffix("_age_seconds".into()), &AGES);
        let builder = buckets(builder, Matcher::Suffix("_bytes".into()), &BYTES);
        Self(Arc::new(Shared { recorder: builder.build_recorder(), metrics: Mutex::default() }))
    }

    /// Registers a count that only grows; its name ends in `_total`.
    pub fn counter(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) -> Counter {
        self.note(name, MetricKind::Counter, help, labels);
        self.0.recorder.describe_counter(KeyName::from_const_str(name), None, help.into());
        self.0.recorder.register_counter(&key(name, labels), &METADATA)
    }

    /// Registers a value that goes up and down.
    pub fn gauge(&self, name: &'static str, help: &'static str, labels: &[(&'static str, &str)]) -> Gauge {
        self.note(name, MetricKind::Gauge, help, labels);
        self.0.recorder.describe_gauge(KeyName::from_const_str(name), None, help.into());
        self.0.recorder.register_gauge(&key(name, labels), &METADATA)
    }

    /// Registers a distribution. Names that end in `_seconds` or `_bytes` get bounds for their unit; all others get
    /// bounds for counts of items.
    pub fn histogram(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) -> Histogram {
        self.note(name, MetricKind::Histogram, help, labels);
        self.0.recorder.describe_histogram(KeyName::from_const_str(name), None, help.into());
        self.0.recorder.register_histogram(&key(name, labels), &METADATA)
    }

    /// Returns the registered metrics, sorted by name.
    pub fn metrics(&self) -> Vec<Metric> {
        self.0.metrics.lock().values().cloned().collect()
    }

    fn note(
        &self,
        name: &'static str,
        kind: MetricKind,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) {
        let mut metrics = self.0.metrics.lock();
        let metric =
            metrics.entry(name).or_insert_with(|| Metric { name, kind, help, labels: BTreeMap::new() });
        for (label, value) in labels {
            metric.labels.entry(label).or_default().insert((*value).to_owned());
        }
    }

    /// Renders all metrics in Prometheus's text format.
    ///
    /// Samples of histograms accumulate until they are drained into their buckets, and rendering drains them. A process
    /// that might never be scraped must call this or [`Self::upkeep`] every few seconds, or its memory grows.
    pub fn render(&self) -> String {
        let handle = self.0.recorder.handle();
        handle.run_upkeep();
        handle.render()
    }

    /// Drains the samples of histograms into their buckets.
    pub fn upkeep(&self) {
        self.0.recorder.handle().run_upkeep();
    }
}

fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Key {
    let labels: Vec<Label> =
        labels.iter().map(|(name, value)| Label::new(*name, (*value).to_owned())).collect();
    Key::from_parts(name, labels)
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Registry")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn two_registries_in_one_process_share_nothing() {
        let (a, b) = (Registry::new(), Registry::new());
        a.counter("mc_puts_total", "Puts", &[("result", "ok")]).increment(2);
        a.counter("mc_puts_total", "Puts", &[("result", "ok")]).increment(1);
        b.gauge("mc_objects", "Objects", &[]).set(7.0);
        let text = a.render();
        assert!(text.contains("# HELP mc_puts_total Puts"), "{text}");
        assert!(text.contains("mc_puts_total{result=\"ok\"} 3"), "{text}");
        assert!(!text.contains("mc_objects"), "{text}");
        assert!(b.render().contains("mc_objects 7"));
    }

    #[test]
    fn a_registry_lists_each_metric_once_with_all_its_labels_and_its_unit() {
        let registry = Registry::new();
        for rpc in ["put", "get"] {
            registry.histogram("mc_rpc_seconds", "RPC", &[("rpc", rpc)]).record(0.5);
        }
        registry.counter("mc_log_bytes_total", "Bytes", &[]).increment(1);
        registry.gauge("mc_objects", "Objects", &[]).set(1.0);
        let listed = registry.metrics();
        let row = |metric: &Metric| (metric.name, metric.kind.to_string(), metric.unit());
        assert_eq!(
            listed.iter().map(row).collect::<Vec<_>>(),
            [
                ("mc_log_bytes_total", "counter".to_owned(), Some("bytes")),
                ("mc_objects", "gauge".to_owned(), None),
                ("mc_rpc_seconds", "histogram".to_owned(), Some("seconds")),
            ]
        );
        let values = BTreeSet::from(["get".to_owned(), "put".to_owned()]);
        assert_eq!(listed[2].labels, BTreeMap::from([("rpc", values)]));
    }

    #[test]
    fn histograms_have_bounds_for_their_unit() {
        let registry = Registry::new();
        registry.histogram("mc_rpc_seconds", "RPC", &[]).record(0.0003);
        registry.histogram("mc_batch_items", "Items", &[]).record(3.0);
        registry.histogram("mc_some_age_seconds", "Ages", &[]).record(100.0);
        let text = registry.render();
        assert!(text.contains("mc_rpc_seconds_bucket{le=\"0.0002\"} 0"), "{text}");
        assert!(text.contains("mc_rpc_seconds_bucket{le=\"0.0005\"} 1"), "{text}");
        assert!(text.contains("mc_batch_items_bucket{le=\"4\"} 1"), "{text}");
        assert!(text.contains("mc_some_age_seconds_bucket{le=\"300\"} 1"), "{text}");
    }
}
