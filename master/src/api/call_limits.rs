//! Limits on the calls of each tenant, so that none starves the others.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::bucket::{Bucket, Rate};
use crate::judged::HoldUp;

/// Number of buckets at which all are dropped: twice as many as there can be limits, so most are of limits that were removed.
const REMEMBERED: usize = 8_192;

/// Counts the calls for each tenant that has a limit.
pub(crate) struct CallLimits {
    began: Instant,
    buckets: Mutex<HashMap<String, Bucket>>,
    refused: HoldUp,
}

impl CallLimits {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), buckets: Mutex::default(), refused: HoldUp::new() }
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
        self.refused.wait(after).await;
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
}
