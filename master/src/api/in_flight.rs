//! A bound on the memory that requests take up, from their first byte until their reply is on its way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use http_body_util::{BodyStream, StreamBody};
use mc_base::metrics::Counter;
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

use super::Refusal;

/// Bytes of requests that a master reads, works on and answers at a time, all callers together: those of some ten thousand
/// batches of 128 puts. Without a bound a few callers could fill its memory, each call with up to 24 MiB.
const MOST_BYTES: usize = 256 << 20;

/// A store's heartbeats are one request that never ends, of small messages that nobody keeps.
const ENDLESS: &str = "/Heartbeat";

/// What requests take up, and the layer that refuses those for which there is no room.
#[derive(Clone)]
pub(crate) struct InFlight {
    most: usize,
    left: Arc<AtomicUsize>,
    refused: Counter,
}

impl InFlight {
    pub(crate) fn new(refused: Counter) -> Self {
        Self::of(MOST_BYTES, refused)
    }

    fn of(most: usize, refused: Counter) -> Self {
        Self { most, left: Arc::new(AtomicUsize::new(most)), refused }
    }
}

/// What one request takes up; given back when it is dropped.
struct Held {
    in_flight: InFlight,
    bytes: AtomicUsize,
}

impl Held {
    /// Makes room for some more bytes of the request.
    fn take(&self, bytes: usize) -> Result<(), Refusal> {
        let InFlight { most, left, refused } = &self.in_flight;
        match left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(bytes)) {
            Ok(_) => {
                self.bytes.fetch_add(bytes, Ordering::AcqRel);
                Ok(())
            }
            Err(_) => {
                refused.increment(1);
                Err(Refusal::Overloaded { bytes: *most })
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.in_flight.left.fetch_add(*self.bytes.get_mut(), Ordering::AcqRel);
    }
}

/// Each piece of the body is accounted for before anybody sees it.
fn counted(body: Body, held: Arc<Held>) -> Body {
    let pieces = BodyStream::new(body).map(move |piece| {
        let piece = piece?;
        held.take(piece.data_ref().map_or(0, bytes::Bytes::len))?;
        Ok::<_, Status>(piece)
    });
    Body::new(StreamBody::new(pieces))
}

/// What the request took up is given back once the body was sent or given up.
fn holding(body: Body, held: Arc<Held>) -> Body {
    if http_body::Body::is_end_stream(&body) {
        return body;
    }
    let pieces = BodyStream::new(body).inspect(move |_| _ = &held);
    Body::new(StreamBody::new(pieces))
}

impl<S> Layer<S> for InFlight {
    type Service = Bounded<S>;

    fn layer(&self, inner: S) -> Bounded<S> {
        Bounded { inner, in_flight: self.clone() }
    }
}

/// A service behind [`InFlight`].
#[derive(Clone)]
pub(crate) struct Bounded<S> {
    inner: S,
    in_flight: InFlight,
}

impl<S> Service<http::Request<Body>> for Bounded<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path().ends_with(ENDLESS) {
            return self.inner.call(request).boxed();
        }
        let held = Arc::new(Held { in_flight: self.in_flight.clone(), bytes: AtomicUsize::new(0) });
        let answer = self.inner.call(request.map(|body| counted(body, held.clone())));
        async move { Ok(answer.await?.map(|body| holding(body, held))) }.boxed()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::{BodyExt, Full};
    use mc_proto::v1::Code;
    use tower::{ServiceExt, service_fn};

    use super::*;

    fn request(bytes: usize) -> http::Request<Body> {
        http::Request::new(Body::new(Full::new(Bytes::from(vec![7; bytes]))))
    }

    #[tokio::test]
    async fn there_is_no_room_before_earlier_replies_were_sent() {
        let in_flight = InFlight::of(100, Counter::noop());
        let service = in_flight.layer(service_fn(async |request: http::Request<Body>| {
            let read = request.into_body().collect().await?.to_bytes();
            Ok::<_, Status>(http::Response::new(Body::new(Full::new(read))))
        }));
        let call = |bytes| service.clone().oneshot(request(bytes));

        let first = call(80).await.unwrap();
        let refused = call(30).await.unwrap_err();
        assert_eq!(mc_proto::detail_of(&refused).unwrap().code, Code::ResourceExhausted as i32);
        let second = call(20).await.unwrap();
        assert_eq!(in_flight.left.load(Ordering::Acquire), 0);
        assert_eq!(first.into_body().collect().await.unwrap().to_bytes().len(), 80);
        drop(call(80).await.unwrap());
        drop(second);
        assert!(call(101).await.is_err(), "more than there ever is");
        assert_eq!(in_flight.left.load(Ordering::Acquire), 100, "all is given back");
    }

    #[tokio::test]
    async fn an_endless_request_takes_up_nothing() {
        let in_flight = InFlight::of(10, Counter::noop());
        let service = in_flight.layer(service_fn(async |request: http::Request<Body>| {
            request.into_body().collect().await.map(|_| http::Response::new(Body::empty()))
        }));
        let mut endless = request(1000);
        *endless.uri_mut() = "/mc.v1.Master/Heartbeat".parse().unwrap();
        assert!(service.oneshot(endless).await.is_ok());
    }
}
