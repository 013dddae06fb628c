//! Ages of objects, from the order of their puts in the log.

use std::collections::VecDeque;
use std::time::Duration;

use mc_index::allocation_order;
use mc_types::ClusterTime;

/// Maximum number of samples. At one a second, ages are known to a second for two hours, and to half a minute for a day.
const SAMPLES_MAX: usize = 8192;

/// Times at which entries were committed, sampled while this master leads.
///
/// The index has no time of a put, only its place in the log ([`mc_index::allocation_order`]). When the samples are too
/// many, every second one goes, and only every second one is taken from then on. An object from before the term counts
/// as old as the first sample.
#[derive(Debug)]
pub(super) struct Ages {
    samples: VecDeque<(u64, ClusterTime)>,
    /// One of so many samples is taken.
    one_in: u32,
    /// Number of samples not taken since the last one.
    passed: u32,
}

impl Ages {
    pub(super) fn new() -> Self {
        Self { samples: VecDeque::new(), one_in: 1, passed: 0 }
    }

    /// Notes that the entry `index` of `term` is the last one that was committed at the time `now`.
    pub(super) fn note(&mut self, term: u64, index: u64, now: ClusterTime) {
        if !self.samples.is_empty() && self.passed + 1 < self.one_in {
            self.passed += 1;
            return;
        }
        self.passed = 0;
        if self.samples.len() >= SAMPLES_MAX {
            let mut nth = 0;
            self.samples.retain(|_| {
                nth += 1;
                nth % 2 == 1
            });
            self.one_in = self.one_in.saturating_mul(2);
        }
        self.samples.push_back((allocation_order(term, index), now));
    }

    /// Time since a put was placed, by its order: to within an interval of the samples.
    pub(super) fn age(&self, put_order: u64, now: ClusterTime) -> Duration {
        let after = self.samples.partition_point(|(sampled, _)| *sampled < put_order);
        let (_, at) = self.samples.get(after).or(self.samples.back()).copied().unwrap_or((0, now));
        Duration::from_millis(now.0.saturating_sub(at.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_the_time_since_the_next_sample() {
        let mut ages = Ages::new();
        let age = |ages: &Ages, index| ages.age(allocation_order(7, index), ClusterTime(100_000)).as_secs();
        assert_eq!(age(&ages, 7), 0);
        ages.note(7, 10, ClusterTime(40_000));
        ages.note(7, 20, ClusterTime(41_000));
        assert_eq!((age(&ages, 3), age(&ages, 10), age(&ages, 11), age(&ages, 21)), (60, 60, 59, 59));
        let earlier = ages.age(allocation_order(6, 9), ClusterTime(100_000));
        assert_eq!(earlier.as_secs(), 60, "a put of an earlier term");
    }

    #[test]
    fn a_day_of_samples_stays_small_and_its_ages_nearly_right() {
        let mut ages = Ages::new();
        let day = 86_400;
        for second in 0..day {
            ages.note(7, second * 1000, ClusterTime(second * 1000));
        }
        assert!(ages.samples.len() <= SAMPLES_MAX);
        for old in [1, 100, 10_000, 80_000] {
            let put_order = allocation_order(7, (day - old) * 1000);
            let age = ages.age(put_order, ClusterTime(day * 1000)).as_secs();
            assert!(age.abs_diff(old) <= 30, "{age} of {old}");
        }
    }
}
