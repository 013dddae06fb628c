use std::time::Duration;

use tokio::time::sleep;

/// Runs `work` for up to `limit`; returns `None` when the time is over.
///
/// It waits in four parts, because a process that was starved of CPU wakes when the time is over. So it first reads the
/// answers that arrived meanwhile.
pub async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    let over = async {
        for _ in 0..4 {
            sleep(limit / 4).await;
        }
    };
    tokio::select! {
        biased;
        done = work => Some(done),
        () = over => None,
    }
}
