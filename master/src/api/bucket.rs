use std::time::Duration;

/// Bucket of calls that may be made: it fills at a steady rate, and holds what was not used after a pause.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    calls: f64,
    at: Duration,
}

/// Calls that fill a bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    /// Calls of one second.
    pub(super) per_second: f64,
    /// Calls that a full bucket holds, at least 1.
    pub(super) burst: f64,
}

impl Bucket {
    /// Returns a full bucket.
    pub(super) fn full(rate: Rate, now: Duration) -> Self {
        Self { calls: rate.burst, at: now }
    }

    /// Takes one call; `Err` says after how long there is one.
    pub(super) fn take(&mut self, rate: Rate, now: Duration) -> Result<(), Duration> {
        let since = now.saturating_sub(self.at);
        self.at = self.at.max(now);
        self.calls = (self.calls + since.as_secs_f64() * rate.per_second).min(rate.burst);
        if self.calls < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - self.calls) / rate.per_second));
        }
        self.calls -= 1.0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_a_burst_and_fills_at_its_rate() {
        let rate = Rate { per_second: 10.0, burst: 3.0 };
        let at = Duration::from_millis;
        let mut bucket = Bucket::full(rate, at(0));
        let taken =
            |bucket: &mut Bucket, now| (0..100).filter(|_| bucket.take(rate, at(now)).is_ok()).count();
        assert_eq!(taken(&mut bucket, 0), 3);
        assert_eq!(bucket.take(rate, at(50)), Err(at(50)), "half of a call has come");
        assert_eq!(taken(&mut bucket, 100), 1);
        assert_eq!(taken(&mut bucket, 90), 0, "time does not go back");
        let ten_seconds: usize = (1..=1_000).map(|tick| taken(&mut bucket, 100 + 10 * tick)).sum();
        assert!((99..=100).contains(&ten_seconds), "{ten_seconds}");
        assert_eq!(taken(&mut bucket, 3_600_000), 3, "no more than a burst after a pause");
    }
}
