use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Either};
use tokio::sync::Semaphore;
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

/// Judge of the calls on a port, before the service sees them.
pub(crate) trait Judge {
    /// Lets a call through, and may add to what it carries.
    ///
    /// # Errors
    /// The answer to a call that is refused.
    fn judge(&self, call: &mut http::Request<Body>) -> Result<(), Status>;
}

/// Shortest and longest wait of a call that is refused.
const REFUSED_AFTER: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(100));
/// Maximum number of calls that wait to be refused, for the memory that they take. Others are refused at once.
const WAITING_MAX: usize = 4_096;

/// Holds calls up that are refused: a caller that pays no heed to the refusal makes its next call so much later.
#[derive(Debug)]
pub(crate) struct HoldUp(Semaphore);

impl HoldUp {
    pub(crate) fn new() -> Self {
        Self(Semaphore::new(WAITING_MAX))
    }

    /// Waits before a call is refused that may be repeated `after` this time.
    pub(crate) async fn wait(&self, after: Duration) {
        if let Ok(_place) = self.0.try_acquire() {
            tokio::time::sleep(after.clamp(REFUSED_AFTER.0, REFUSED_AFTER.1)).await;
        }
    }
}

/// Layer that lets the calls through that a judge permits.
#[derive(Clone, Debug)]
pub(crate) struct JudgedBy<J> {
    judge: J,
    refused: Arc<HoldUp>,
}

impl<J> JudgedBy<J> {
    pub(crate) fn new(judge: J) -> Self {
        Self { judge, refused: Arc::new(HoldUp::new()) }
    }
}

impl<S, J: Clone> Layer<S> for JudgedBy<J> {
    type Service = Judged<S, J>;

    fn layer(&self, inner: S) -> Judged<S, J> {
        Judged { inner, by: self.clone() }
    }
}

/// A service behind [`JudgedBy`].
#[derive(Clone)]
pub(crate) struct Judged<S, J> {
    inner: S,
    by: JudgedBy<J>,
}

impl<S, J: Judge> Service<http::Request<Body>> for Judged<S, J>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>>,
    S::Error: 'static,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = Either<S::Future, BoxFuture<'static, Result<Self::Response, S::Error>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut call: http::Request<Body>) -> Self::Future {
        let Err(refused) = self.by.judge.judge(&mut call) else { return self.inner.call(call).left_future() };
        let hold_up = self.by.refused.clone();
        let answer = async move {
            hold_up.wait(Duration::ZERO).await;
            Ok(refused.into_http())
        };
        answer.boxed().right_future()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_to_be_refused_unless_too_many_do() {
        let hold_up = HoldUp::new();
        let held_up = async |after| {
            let begun = Instant::now();
            hold_up.wait(Duration::from_millis(after)).await;
            begun.elapsed().as_millis()
        };
        assert_eq!([held_up(1).await, held_up(50).await, held_up(1_000).await], [20, 50, 100]);
        let all = hold_up.0.try_acquire_many(WAITING_MAX as u32).unwrap();
        assert_eq!(held_up(50).await, 0);
        drop(all);
        assert_eq!(held_up(50).await, 50);
    }
}
