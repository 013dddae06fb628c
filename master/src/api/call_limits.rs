//! Limits on the calls of each tenant, so that none starves the others.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::bucket::{Bucket, Rate};

/// Number of buckets at which all are dropped: twice as many as there can be limits, so most are of limits that were removed.
const REMEMBERED: usize = 8_192;

/// Shortest and longest wait of a call that is refused. A caller that pays no heed to the refusal makes its next call so much later.
const REFUSED_AFTER: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(100));
/// Maximum number of calls that wait to be refused, for the memory that they take. Others are refused at once.
const WAITING_MAX: usize = 4_096;

/// Counts the calls for each tenant that has a limit.
pub(crate) struct CallLimits {
    began: Instant,
    buckets: Mutex<HashMap<String, Bucket>>,
    waiting: Semaphore,
}

impl CallLimits {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), buckets: Mutex::default(), waiting: Semaphore::new(WAITING_MAX) }
    }

    /// Counts a call for a tenant; `Err` says after how long the tenant has another one. After a pause a tenant may make the calls
    /// of one second at once.
    pub(super) fn take(&self, tenant: &str, per_second: u32) -> Result<(), Duration> {
        let rate = Rate { per_second: per_second.into(), burst: per_second.into() };
        let now = self.began.elapsed();
        let mut buckets = self.buckets.lock();
        if let Some(bucket) = buckets.get_mut(tenant) {
            return bucket.take(rate, now);
        }
        if buckets.len() >= REMEMBERED {
            buckets.clear();
        }
        buckets.entry(tenant.to_owned()).or_insert_with(|| Bucket::full(rate, now)).take(rate, now)
    }

    /// Waits before a call is refused whose tenant has another one `after` this time.
    pub(super) async fn hold_up(&self, after: Duration) {
        if let Ok(_place) = self.waiting.try_acquire() {
            tokio::time::sleep(after.clamp(REFUSED_AFTER.0, REFUSED_AFTER.1)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_tenant_makes_its_calls_of_a_second_and_others_make_theirs() {
        let limits = CallLimits::new();
        let made = |tenant| (0..100).filter(|_| limits.take(tenant, 10).is_ok()).count();
        assert_eq!((made("a"), made("b")), (10, 10));
        assert_eq!(limits.take("a", 10), Err(Duration::from_millis(100)));
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!((made("a"), made("")), (5, 10));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_to_be_refused_unless_too_many_do() {
        let limits = CallLimits::new();
        let held_up = async |after| {
            let begun = Instant::now();
            limits.hold_up(Duration::from_millis(after)).await;
            begun.elapsed().as_millis()
        };
        assert_eq!([held_up(1).await, held_up(50).await, held_up(1_000).await], [20, 50, 100]);
        let all = limits.waiting.try_acquire_many(WAITING_MAX as u32).unwrap();
        assert_eq!(held_up(50).await, 0);
        drop(all);
        assert_eq!(held_up(50).await, 50);
    }
}
