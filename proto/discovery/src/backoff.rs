use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Pauses that double from `first` to `most`. Each is drawn at random from the upper half of its range, so that
/// processes which began to wait at the same moment do not come back at the same moment.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
    random: SmallRng,
}

impl Backoff {
    /// Makes a backoff whose first wait is at most `first` and whose longest is `most`.
    #[must_use]
    pub fn new(first: Duration, most: Duration) -> Self {
        Self::seeded(first, most, rand::random())
    }

    /// Makes a backoff with a given random seed, for simulations and tests.
    #[must_use]
    pub fn seeded(first: Duration, most: Duration, seed: u64) -> Self {
        Self { first, most, next: first, random: SmallRng::seed_from_u64(seed) }
    }

    /// Returns how long to wait now, and lengthens the next wait.
    pub fn wait(&mut self) -> Duration {
        let longest = self.next.min(self.most);
        self.next = longest.saturating_mul(2).min(self.most);
        longest.mul_f64(self.random.random_range(0.5..=1.0))
    }

    /// Returns whether no wait was taken since the last reset.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.next == self.first
    }

    /// Starts over: the next wait is a first one.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(20);
    const MOST: Duration = Duration::from_millis(200);

    #[test]
    fn waits_double_up_to_the_most_and_start_over_at_reset() {
        for seed in 0..100 {
            let mut backoff = Backoff::seeded(FIRST, MOST, seed);
            for longest in [20, 40, 80, 160, 200, 200].map(Duration::from_millis) {
                let wait = backoff.wait();
                assert!(longest / 2 <= wait && wait <= longest, "seed {seed}: {wait:?} of {longest:?}");
            }
            assert!(!backoff.is_first());
            backoff.reset();
            assert!(backoff.is_first() && backoff.wait() <= FIRST);
        }
    }

    #[test]
    fn a_thousand_who_begin_together_are_spread_evenly() {
        // The fourth wait of each lasts 80 to 160 ms. No 10 ms of that range holds many more ends than the others.
        let mut buckets = [0; 8];
        for seed in 0..1_000 {
            let mut backoff = Backoff::seeded(FIRST, MOST, seed);
            let wait = (0..4).map(|_| backoff.wait()).last().unwrap_or_default();
            buckets[((wait.as_millis() - 80) / 10).min(7) as usize] += 1;
        }
        assert!(buckets.iter().all(|n| (80..=170).contains(n)), "125 each on average: {buckets:?}");
    }
}
