use std::panic::Location;
use std::time::{Duration, Instant};

/// Time limit of a wait. It is long enough for a machine that is busy with other builds; a test that passes never waits
/// so long.
const LONG: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);

/// Waits up to a minute until `condition` holds, and returns how long that took. `what` is in the message of the panic.
#[track_caller]
pub fn until(
    what: impl Into<String>,
    condition: impl AsyncFnMut() -> bool,
) -> impl Future<Output = Duration> {
    until_within(LONG, what, condition)
}

/// Waits like [`until`], with another limit.
#[track_caller]
pub fn until_within(
    limit: Duration,
    what: impl Into<String>,
    mut condition: impl AsyncFnMut() -> bool,
) -> impl Future<Output = Duration> {
    let wait = Wait::new(limit, what);
    async move {
        while !condition().await {
            wait.pause().await;
        }
        wait.started.elapsed()
    }
}

/// Waits up to a minute until `look` finds something, and returns it.
#[track_caller]
pub fn eventually<T>(
    what: impl Into<String>,
    mut look: impl AsyncFnMut() -> Option<T>,
) -> impl Future<Output = T> {
    let wait = Wait::new(LONG, what);
    async move {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            wait.pause().await;
        }
    }
}

/// A wait: its condition in words, its caller, its limit and its start.
struct Wait {
    what: String,
    caller: &'static Location<'static>,
    limit: Duration,
    started: Instant,
}

impl Wait {
    #[track_caller]
    fn new(limit: Duration, what: impl Into<String>) -> Self {
        Self { what: what.into(), caller: Location::caller(), limit, started: Instant::now() }
    }

    /// Pauses before the next try; panics when the limit is over.
    async fn pause(&self) {
        let Self { what, caller, limit, started } = self;
        assert!(started.elapsed() < *limit, "not within {limit:?}: {what} (waited for at {caller})");
        tokio::time::sleep(PAUSE).await;
    }
}
