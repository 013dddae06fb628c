use std::panic::Location;
use std::time::{Duration, Instant};

/// Long enough for a machine that is busy with other builds; a test that passes never waits so long.
const LONG: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until `condition` holds, and returns how long that took.
///
/// # Panics
/// When it does not come to that within a minute, saying `what`.
#[track_caller]
pub fn until(
    what: impl Into<String>,
    condition: impl AsyncFnMut() -> bool,
) -> impl Future<Output = Duration> {
    until_within(LONG, what, condition)
}

/// [`until`] with another limit.
///
/// # Panics
/// When `condition` does not hold within `limit`.
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

/// Waits until `look` finds something, and returns that.
///
/// # Panics
/// When it finds nothing within a minute, saying `what`.
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

/// The condition that is waited for, where, and since when.
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

    /// The moment between a look in vain and the next.
    async fn pause(&self) {
        let Self { what, caller, limit, started } = self;
        assert!(started.elapsed() < *limit, "not within {limit:?}: {what} (waited for at {caller})");
        tokio::time::sleep(PAUSE).await;
    }
}
