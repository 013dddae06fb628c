use std::task::{Context, Poll};

use futures::FutureExt as _;
use futures::future::{Either, Ready, ready};
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

/// Layer that lets the calls through that a judge permits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JudgedBy<J>(pub(crate) J);

impl<S, J: Clone> Layer<S> for JudgedBy<J> {
    type Service = Judged<S, J>;

    fn layer(&self, inner: S) -> Judged<S, J> {
        Judged { inner, judge: self.0.clone() }
    }
}

/// A service behind [`JudgedBy`].
#[derive(Clone)]
pub(crate) struct Judged<S, J> {
    inner: S,
    judge: J,
}

impl<S, J: Judge> Service<http::Request<Body>> for Judged<S, J>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>>,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<Self::Response, S::Error>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut call: http::Request<Body>) -> Self::Future {
        match self.judge.judge(&mut call) {
            Ok(()) => self.inner.call(call).left_future(),
            Err(refused) => ready(Ok(refused.into_http())).right_future(),
        }
    }
}
