use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A metric as a reference page shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Name, as Prometheus reads it.
    pub name: &'static str,
    /// Type, as Prometheus reads it.
    pub kind: MetricKind,
    /// Meaning, in a line.
    pub help: &'static str,
    /// Each label with the values that were registered.
    pub labels: BTreeMap<&'static str, BTreeSet<String>>,
}

impl Metric {
    /// Returns the unit that the name ends in (`seconds`, `bytes`); `None` for counts, indexes and flags.
    #[must_use]
    pub fn unit(&self) -> Option<&'static str> {
        let name = self.name.strip_suffix("_total").unwrap_or(self.name);
        ["seconds", "bytes"].into_iter().find(|unit| name.ends_with(unit))
    }
}

/// Type of a [`Metric`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A count that only grows.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// A distribution of values, in buckets.
    Histogram,
}

impl fmt::Display for MetricKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        })
    }
}
