//! How requests by RDMA fail, and how long they are waited for.

use std::time::Duration;

use tokio::time::timeout;

use super::buffers::Buffers;
use super::routes::Routes;
use crate::control::client::{Broken, Failure, Progress};

/// A request may take the transport's patience, and the time for its bytes at this rate, in bytes per second.
const SLOWEST: u64 = 100 << 20;

/// Why a request by RDMA failed.
#[derive(Debug)]
pub(super) enum RdmaFailure {
    /// The connection failed.
    Link(Broken),
    /// The queue pair failed.
    Rdma(String),
    /// It did, and the store may still use the memory.
    Held(String),
}

impl From<Broken> for RdmaFailure {
    fn from(broken: Broken) -> Self {
        Self::Link(broken)
    }
}

impl From<RdmaFailure> for Failure {
    fn from(failure: RdmaFailure) -> Self {
        match failure {
            RdmaFailure::Link(broken) => broken.into(),
            RdmaFailure::Rdma(why) => Self::Path(why),
            RdmaFailure::Held(why) => Self::Held(why),
        }
    }
}

impl RdmaFailure {
    /// Ends the buffers of a request that failed, and returns the resulting error.
    pub(super) async fn after(self, buffers: Buffers, routes: &Routes, route: usize) -> Self {
        self.suspend(routes, route);
        self.given_up(buffers).await
    }

    pub(super) async fn given_up(self, buffers: Buffers) -> Self {
        match buffers.abandon().await {
            Ok(()) => self,
            Err(why) => {
                Self::Held(format!("RDMA beside it failed, and the store may still use the memory: {why}"))
            }
        }
    }

    /// Suspends the route, if it is to blame.
    pub(super) fn suspend(&self, routes: &Routes, route: usize) {
        if let Self::Rdma(why) = self {
            routes.suspend(route, why);
        }
    }
}

/// Parts of the patience in which is looked for progress. Many, so that it ends before the look at the connection takes the whole
/// store for dead.
const LOOKS: u32 = 8;

/// Bounds the wait for the answer to a request of `len` bytes: for as long as nothing comes over the connection. A store whose card
/// is busy reports that it completes requests.
pub(super) async fn within<T>(
    patience: Duration,
    len: u64,
    progress: &Progress,
    asked: impl Future<Output = Result<T, RdmaFailure>>,
) -> Result<T, RdmaFailure> {
    let most = patience + Duration::from_micros(len * 1_000_000 / SLOWEST);
    let mut asked = std::pin::pin!(asked);
    let mut silent = 0;
    while silent < LOOKS {
        let seen = progress.bytes();
        if let Ok(answer) = timeout(most / LOOKS, asked.as_mut()).await {
            return answer;
        }
        silent = if progress.bytes() == seen { silent + 1 } else { 0 };
    }
    Err(RdmaFailure::Rdma(format!("the store moved nothing by RDMA within {most:?}")))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_store_that_reports_progress_is_waited_for() {
        let (progress, patience) = (Progress::new(Arc::default()), Duration::from_millis(300));
        let busy = async {
            for _ in 0..20 {
                tokio::time::sleep(patience / 2).await;
                progress.add(8);
            }
            Ok(7)
        };
        assert_eq!(within(patience, 0, &progress, busy).await.unwrap(), 7);
        let began = Instant::now();
        let silent = within(patience, 0, &progress, std::future::pending::<Result<(), _>>()).await;
        assert!(matches!(silent, Err(RdmaFailure::Rdma(_))));
        assert!(
            began.elapsed() < patience * 4 / 3,
            "of the paused clock: before the store is taken for dead"
        );
    }
}
