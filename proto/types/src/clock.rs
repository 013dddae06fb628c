use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The cluster's time in milliseconds: the last applied stamp plus the monotonic time for which this leader has led. It
/// involves no wall clock, stands still while there is no leader, and never goes back.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClusterTime(pub u64);

impl ClusterTime {
    /// Returns this time plus a duration (whole milliseconds, rounded up so that a lease is never cut short).
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        let ms = span.as_micros().div_ceil(1000);
        Self(self.0.saturating_add(u64::try_from(ms).unwrap_or(u64::MAX)))
    }

    /// Returns the time from `now` until this time; zero if it has passed.
    #[must_use]
    pub fn since(self, now: ClusterTime) -> Duration {
        Duration::from_millis(self.0.saturating_sub(now.0))
    }
}

/// A monotonic clock that is injected, so that a simulation can run it slow, fast or not at all.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl Clock {
    /// Returns the machine's monotonic clock (tokio's, so a paused test runtime pauses it too).
    #[must_use]
    #[cfg(feature = "tokio")]
    pub fn monotonic() -> Self {
        let origin = tokio::time::Instant::now();
        Self(Arc::new(move || origin.elapsed()))
    }

    /// Makes a clock that reads `now`.
    pub fn from_fn(now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// Returns the time since some fixed origin; it never goes back.
    #[must_use]
    pub fn now(&self) -> Duration {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").field(&self.now()).finish()
    }
}
