//! Metrics as a value: a process makes one [`Registry`] and hands it down; nothing is installed for the process, so
//! that a simulation can run many nodes in one.

use std::fmt;
use std::sync::Arc;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder as _};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};

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
/// Bounds of all other histograms: counts, such as the items of a batch.
const COUNTS: [f64; 13] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0];

static METADATA: Metadata<'static> = Metadata::new("mc", Level::INFO, None);

/// The metrics of one process or one simulated node; clones share them.
///
/// A handle is looked up once, where the thing that it counts is made, and then costs one atomic operation. Asking
/// again for the same name and labels answers the same metric.
#[derive(Clone)]
pub struct Registry(Arc<PrometheusRecorder>);

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl Registry {
    /// An empty registry.
    #[must_use]
    pub fn new() -> Self {
        let buckets = |builder: PrometheusBuilder, matcher, values: &[f64]| {
            builder.set_buckets_for_metric(matcher, values).expect("the lists of bounds are not empty")
        };
        let builder = PrometheusBuilder::new().set_buckets(&COUNTS).expect("the list of bounds is not empty");
        let builder = buckets(builder, Matcher::Suffix("_seconds".into()), &SECONDS);
        let builder = buckets(builder, Matcher::Suffix("_bytes".into()), &BYTES);
        Self(Arc::new(builder.build_recorder()))
    }

    /// A count that only grows; its name ends in `_total`.
    pub fn counter(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) -> Counter {
        self.0.describe_counter(KeyName::from_const_str(name), None, help.into());
        self.0.register_counter(&key(name, labels), &METADATA)
    }

    /// A value that goes up and down.
    pub fn gauge(&self, name: &'static str, help: &'static str, labels: &[(&'static str, &str)]) -> Gauge {
        self.0.describe_gauge(KeyName::from_const_str(name), None, help.into());
        self.0.register_gauge(&key(name, labels), &METADATA)
    }

    /// A distribution. Names that end in `_seconds` and `_bytes` have bounds that fit; others count items.
    pub fn histogram(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) -> Histogram {
        self.0.describe_histogram(KeyName::from_const_str(name), None, help.into());
        self.0.register_histogram(&key(name, labels), &METADATA)
    }

    /// All metrics as Prometheus reads them.
    ///
    /// Samples of histograms pile up until they are drained into their buckets. Rendering drains them; a process
    /// that may not be scraped calls this or [`Self::upkeep`] every few seconds, or its memory grows.
    #[must_use]
    pub fn render(&self) -> String {
        let handle = self.0.handle();
        handle.run_upkeep();
        handle.render()
    }

    /// Drains the samples of histograms into their buckets.
    pub fn upkeep(&self) {
        self.0.handle().run_upkeep();
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
    fn histograms_have_bounds_for_their_unit() {
        let registry = Registry::new();
        registry.histogram("mc_rpc_seconds", "RPC", &[]).record(0.0003);
        registry.histogram("mc_batch_items", "Items", &[]).record(3.0);
        let text = registry.render();
        assert!(text.contains("mc_rpc_seconds_bucket{le=\"0.0002\"} 0"), "{text}");
        assert!(text.contains("mc_rpc_seconds_bucket{le=\"0.0005\"} 1"), "{text}");
        assert!(text.contains("mc_batch_items_bucket{le=\"4\"} 1"), "{text}");
    }
}
