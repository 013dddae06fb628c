//! Durations of calls, and how figures are rounded.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Histogram of call durations up to 60 s, with three significant digits.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(crate) fn new() -> Self {
        // The histogram accepts these bounds: 1 ns to 60 s with three significant digits.
        Self(Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("constant bounds"))
    }

    pub(crate) fn record(&mut self, took: Duration) {
        self.0.saturating_record(took.as_nanos().try_into().unwrap_or(u64::MAX));
    }

    pub(crate) fn add(&mut self, other: &Self) {
        // The bounds are equal, so nothing is out of range.
        let _ = self.0.add(&other.0);
    }

    /// Returns the microseconds within which this share of the calls ended.
    pub(crate) fn quantile_us(&self, q: f64) -> f64 {
        round(self.0.value_at_quantile(q) as f64 / 1e3)
    }

    pub(crate) fn max_us(&self) -> f64 {
        round(self.0.max() as f64 / 1e3)
    }

    pub(crate) fn mean_us(&self) -> f64 {
        round(self.0.mean() / 1e3)
    }

    /// Number of recorded calls.
    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }
}

/// Rounds to one decimal place; more digits would suggest a false precision.
pub(crate) fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// Returns the middle one of the values, the higher of two; 0 if there is none.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_longer_than_the_histogram_is_its_longest() {
        let mut latencies = Latencies::new();
        latencies.record(Duration::from_secs(3_600));
        assert!(latencies.max_us() >= 59_000_000.0);
    }
}
