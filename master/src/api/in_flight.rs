//! Bound on the memory of calls: of a request from its first byte until it is answered, then of its reply until the
//! last byte was sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, BodyStream, StreamBody};
use metrics::Counter;
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

use crate::leader::Refusal;

/// Limit on the memory of all callers' calls together: bytes of requests that the master reads or works on, and of
/// replies that it sends.
///
/// It fits some ten thousand batches of 128 puts. Without it, a few callers could fill the memory with calls of up to
/// 24 MiB each, or with replies that they do not read. If a caller is gone or hangs, keep-alive ends its connection
/// within seconds and frees its share. A caller that is alive and does not read its replies keeps its share.
///
/// Requests count as encoded. Decoding adds some 2 MiB at most for the items of a request, since one with more than
/// [`mc_proto::MAX_FIELDS`] is refused before it is decoded. Long lists of numbers, and attributes of endpoints, take
/// up to some sixteen times their encoded bytes.
const MOST_BYTES: usize = 256 << 20;

/// Paths of calls that change nothing and may have large replies.
///
/// These calls may be refused after the work, and they leave a quarter of the room to all other calls, so that stalled
/// readers can't block puts. Replies to other calls are counted and never refused, because the caller must learn what
/// was done. At worst, the replies to all requests for which there was room exceed the limit.
const READS: [&str; 4] = ["/BatchExist", "/BatchGet", "/BatchDescribe", "/ListKeys"];

/// Path of the call that carries a store's heartbeats, one request that never ends.
const HEARTBEAT: &str = "/Heartbeat";

/// Limit on the bytes of one store's heartbeats that are not answered yet: some hundred times the usual, and 64 MiB for
/// a thousand stores.
///
/// Heartbeats do not count towards the limit of all calls. A stream that finds no room ends, and its store is suspect
/// at once, so the load of other callers would make live stores look dead.
const MOST_HEARTBEAT_BYTES: usize = 64 << 10;

/// Size of the buffer into which tonic encodes a reply; tonic doubles it until the reply fits.
const ENCODE_BUFFER: usize = 8 << 10;

/// Memory of calls in flight, its limit, and the layer that refuses calls for which there is no room.
#[derive(Clone)]
pub(crate) struct InFlight {
    most: usize,
    taken: Arc<AtomicUsize>,
    refused: Counter,
}

impl InFlight {
    pub(crate) fn new(refused: Counter) -> Self {
        Self::of(MOST_BYTES, refused)
    }

    fn of(most: usize, refused: Counter) -> Self {
        Self { most, taken: Arc::default(), refused }
    }

    /// Returns the same account with another limit.
    fn up_to(&self, most: usize) -> Self {
        Self { most, ..self.clone() }
    }

    /// Returns the bounds for the request and for the reply of one call.
    fn of_call(&self, path: &str) -> (Self, Self) {
        if READS.iter().any(|read| path.ends_with(read)) {
            let reads = self.up_to(self.most / 4 * 3);
            return (reads.clone(), reads);
        }
        let request = match path.ends_with(HEARTBEAT) {
            true => Self::of(MOST_HEARTBEAT_BYTES, self.refused.clone()),
            false => self.clone(),
        };
        (request, self.up_to(usize::MAX))
    }
}

/// Memory of a request, or of a piece of a reply; given back on drop.
struct Held {
    bound: InFlight,
    bytes: AtomicUsize,
}

impl Held {
    fn new(bound: InFlight) -> Self {
        Self { bound, bytes: AtomicUsize::new(0) }
    }

    /// Takes room for `bytes` more, or refuses the call.
    fn take(&self, bytes: usize) -> Result<(), Refusal> {
        let InFlight { most, taken, refused } = &self.bound;
        let room = |taken: usize| taken.checked_add(bytes).filter(|taken| taken <= most);
        match taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, room) {
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

    fn give_back(&self) {
        let bytes = self.bytes.swap(0, Ordering::AcqRel);
        if bytes > 0 {
            self.bound.taken.fetch_sub(bytes, Ordering::AcqRel);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Counts each piece of the body before anyone else sees it.
fn counted(body: Body, held: Arc<Held>) -> Body {
    let pieces = BodyStream::new(body).map(move |piece| {
        let piece = piece?;
        held.take(piece.data_ref().map_or(0, Bytes::len))?;
        Ok::<_, Status>(piece)
    });
    Body::new(StreamBody::new(pieces))
}

/// Lets a reply take the place of its request: each piece of the reply gives back what was read of the request until
/// then.
///
/// The first piece is made and counted before anything is sent, so that the call can still be refused. Unless the reply
/// is a stream, there is no other piece.
fn answering(mut body: Body, request: Arc<Held>, bound: &InFlight) -> Result<Body, Refusal> {
    if body.is_end_stream() {
        return Ok(body);
    }
    let first = match body.frame().now_or_never().flatten() {
        Some(Ok(piece)) => {
            request.give_back();
            Some(Ok(sending(piece, bound)?))
        }
        other => other,
    };
    // A reply that has begun is not refused any more.
    let bound = bound.up_to(usize::MAX);
    let rest = BodyStream::new(body).map(move |piece| {
        request.give_back();
        sending(piece?, &bound).map_err(Status::from)
    });
    Ok(Body::new(StreamBody::new(stream::iter(first).chain(rest))))
}

/// Counts a piece of a reply until it was sent or given up.
fn sending(piece: Frame<Bytes>, bound: &InFlight) -> Result<Frame<Bytes>, Refusal> {
    let Some(len) = piece.data_ref().map(Bytes::len) else { return Ok(piece) };
    let held = Held::new(bound.clone());
    held.take(len.next_power_of_two().max(ENCODE_BUFFER))?;
    Ok(piece.map_data(|bytes| Bytes::from_owner(Sending { bytes, _held: held })))
}

/// Bytes on their way, wherever they wait: in a body, for a window, or for the socket.
struct Sending {
    bytes: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for Sending {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
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
        let (request_bound, reply_bound) = self.in_flight.of_call(request.uri().path());
        let held = Arc::new(Held::new(request_bound));
        let answer = self.inner.call(request.map(|body| counted(body, held.clone())));
        async move {
            let (parts, body) = answer.await?.into_parts();
            Ok(match answering(body, held, &reply_bound) {
                Ok(body) => http::Response::from_parts(parts, body),
                Err(refusal) => Status::from(refusal).into_http(),
            })
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use mc_types::Code;
    use tower::{ServiceExt, service_fn};

    use super::*;

    const KIB: usize = 1024;

    fn request(call: &str, bytes: usize) -> http::Request<Body> {
        let mut request = http::Request::new(Body::new(Full::new(Bytes::from(vec![7; bytes]))));
        *request.uri_mut() = format!("/mc.v1.Master/{call}").parse().unwrap();
        request
    }

    /// Answers with ten times the bytes of the request.
    async fn ten_times(request: http::Request<Body>) -> Result<http::Response<Body>, Status> {
        let read = request.into_body().collect().await?.to_bytes();
        Ok(http::Response::new(Body::new(Full::new(Bytes::from(vec![7; 10 * read.len()])))))
    }

    fn bound(bytes: usize) -> InFlight {
        InFlight::of(bytes, Counter::noop())
    }

    fn taken(in_flight: &InFlight) -> usize {
        in_flight.taken.load(Ordering::Acquire)
    }

    #[track_caller]
    fn assert_exhausted(status: &Status) {
        let detail = mc_proto::detail_of(status).unwrap();
        assert_eq!(detail.code, Code::ResourceExhausted as i32);
    }

    #[tokio::test]
    async fn there_is_no_room_before_earlier_replies_were_sent() {
        let in_flight = bound(100 * KIB);
        let service = in_flight.layer(service_fn(async |request: http::Request<Body>| {
            let read = request.into_body().collect().await?.to_bytes();
            Ok::<_, Status>(http::Response::new(Body::new(Full::new(read))))
        }));
        let call = |bytes| service.clone().oneshot(request("BatchRemove", bytes));

        let first = call(64 * KIB).await.unwrap();
        assert_exhausted(&call(37 * KIB).await.unwrap_err());
        let second = call(32 * KIB).await.unwrap();
        assert_eq!(taken(&in_flight), 96 * KIB);
        assert_eq!(first.into_body().collect().await.unwrap().to_bytes().len(), 64 * KIB);
        drop(call(64 * KIB).await.unwrap());
        drop(second);
        assert!(call(101 * KIB).await.is_err(), "more than there ever is");
        assert_eq!(taken(&in_flight), 0, "all is given back");
    }

    #[tokio::test]
    async fn a_reply_is_held_in_the_place_of_its_request_until_its_last_byte_was_sent() {
        let in_flight = bound(100 * KIB);
        let service = in_flight.layer(service_fn(ten_times));
        let mut reply = service.oneshot(request("BatchGet", 6 * KIB)).await.unwrap().into_body();
        assert_eq!(taken(&in_flight), 64 * KIB, "what its buffer has, not what is in it");

        let mut piece = reply.frame().await.unwrap().unwrap().into_data().unwrap();
        drop(reply);
        drop(piece.split_to(59 * KIB));
        assert_eq!(taken(&in_flight), 64 * KIB, "the rest waits for the socket");
        drop(piece);
        assert_eq!(taken(&in_flight), 0);
    }

    #[tokio::test]
    async fn reads_are_refused_once_answered_and_leave_a_quarter_to_others() {
        let in_flight = bound(400 * KIB);
        let service = in_flight.layer(service_fn(ten_times));
        let call = |call: &str, kib: usize| service.clone().oneshot(request(call, kib * KIB));

        let read = call("BatchGet", 25).await.unwrap();
        assert_eq!(taken(&in_flight), 256 * KIB);
        let refused = call("BatchGet", 12).await.unwrap();
        assert_exhausted(&Status::from_header_map(refused.headers()).unwrap());
        assert_exhausted(&call("BatchExist", 50).await.unwrap_err());
        assert_eq!(taken(&in_flight), 256 * KIB, "what was refused takes up nothing");

        let changed = call("BatchPutStart", 50).await.unwrap();
        let reply = changed.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(reply.len(), 500 * KIB, "what was done is said, past the bound");
        assert_eq!(taken(&in_flight), 768 * KIB);
        assert_exhausted(&call("BatchPutStart", 1).await.unwrap_err());
        drop((read, reply));
        assert_eq!(taken(&in_flight), 0);
    }

    #[tokio::test]
    async fn heartbeats_have_room_of_their_own_and_each_answer_makes_some() {
        let in_flight = bound(0);
        let service = in_flight.layer(service_fn(async |request: http::Request<Body>| {
            let answers = StreamBody::new(BodyStream::new(request.into_body()));
            Ok::<_, Status>(http::Response::new(Body::new(answers)))
        }));
        let beats = |times: usize, bytes: usize| {
            let beat = move |_| Ok::<_, Status>(Frame::data(Bytes::from(vec![7; bytes])));
            let beats = Body::new(StreamBody::new(stream::iter((0..times).map(beat))));
            service.clone().oneshot(request("Heartbeat", 0).map(|_| beats))
        };

        let answered = beats(3, MOST_HEARTBEAT_BYTES).await.unwrap().into_body();
        let answers = answered.collect().await.unwrap().to_bytes();
        assert_eq!(answers.len(), 3 * MOST_HEARTBEAT_BYTES);
        let refused = beats(1, MOST_HEARTBEAT_BYTES + 1).await.unwrap().into_body();
        assert_exhausted(&refused.collect().await.unwrap_err());
    }
}
