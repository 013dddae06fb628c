//! Places on the client port, where only those kept for stores are left.

use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::{Either, Ready, ready};
use mc_net::{ConnectInfo, Place};
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

use crate::leader::Refusal;

/// Paths of the calls that only stores make, of which the first gives the connection a kept place.
const OF_STORES: [&str; 3] = ["/MountStore", "/UnmountStore", "/Heartbeat"];

/// Paths of the calls by which stores, too, look for the leader.
const OF_ALL: [&str; 3] = ["/Hello", "/Status", "/Watch"];

/// Layer that gives connections of stores a kept place, and refuses calls of others for which no place is left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptForStores;

impl<S> Layer<S> for KeptForStores {
    type Service = Placed<S>;

    fn layer(&self, inner: S) -> Placed<S> {
        Placed { inner }
    }
}

/// A service behind [`KeptForStores`].
#[derive(Clone)]
pub(crate) struct Placed<S> {
    inner: S,
}

impl<S> Service<http::Request<Body>> for Placed<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>>,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<Self::Response, S::Error>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let info = request.extensions().get::<ConnectInfo>();
        let place = info.and_then(|info| info.place.as_deref());
        match place.map_or(Ok(()), |place| check(place, request.uri().path())) {
            Ok(()) => self.inner.call(request).left_future(),
            Err(refusal) => ready(Ok(Status::from(refusal).into_http())).right_future(),
        }
    }
}

fn check(place: &Place, path: &str) -> Result<(), Refusal> {
    let is_one_of = |calls: &[&str]| calls.iter().any(|call| path.ends_with(call));
    if is_one_of(&OF_STORES) {
        place.vouch();
    } else if place.is_guest() && !is_one_of(&OF_ALL) {
        place.dismiss();
        return Err(Refusal::NoPlace);
    }
    Ok(())
}
