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
    let (what, caller) = (what.into(), Location::caller());
    async move {
        let started = Instant::now();
        while !condition().await {
            assert!(started.elapsed() < limit, "not within {limit:?}: {what} (waited for at {caller})");
            tokio::time::sleep(PAUSE).await;
        }
        started.elapsed()
    }
}
