//! Bounds of HTTP requests that take up more than their connection: the memory of large answers, and the connections over
//! which requests are passed on to the leader.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body::{Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Memory of all large answers together, from before they are made until they are sent.
const MEMORY: usize = 128 << 20;
/// Unit in which it is given out.
const UNIT: usize = 1 << 10;
/// Bytes that are handed to the connection at a time. It has a copy of some hundred kilobytes of them.
const PIECE: usize = 64 << 10;

/// How many bytes an answer may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplySize {
    /// Up to 128 KiB, which each connection may have besides.
    Small,
    /// Up to 32 MiB, of which there are only a few at a time.
    Large,
}

impl ReplySize {
    /// Largest answer in bytes.
    pub(crate) const fn most(self) -> usize {
        match self {
            Self::Small => 128 << 10,
            Self::Large => 32 << 20,
        }
    }
}

/// Room for large answers, and for requests that are passed on.
pub(crate) struct ReplyMemory {
    memory: Arc<Semaphore>,
    passed_on: Semaphore,
}

impl ReplyMemory {
    /// Makes room for so many requests at a time that are passed on.
    pub(crate) fn new(passed_on: usize) -> Self {
        Self { memory: Arc::new(Semaphore::new(MEMORY / UNIT)), passed_on: Semaphore::new(passed_on) }
    }

    /// Waits for room for an answer that is not made yet.
    pub(crate) async fn reserve(&self, size: ReplySize) -> Reserved {
        let units = u32::try_from(size.most() / UNIT).unwrap_or(u32::MAX);
        Reserved(match size {
            ReplySize::Small => None,
            // Acquiring fails only on a closed semaphore, and this one is never closed.
            ReplySize::Large => self.memory.clone().acquire_many_owned(units).await.ok(),
        })
    }

    /// Waits for a place for a request that is passed on.
    pub(crate) async fn pass_on(&self) -> Option<SemaphorePermit<'_>> {
        self.passed_on.acquire().await.ok()
    }
}

/// Room for one answer.
#[derive(Debug)]
pub(crate) struct Reserved(Option<OwnedSemaphorePermit>);

impl Reserved {
    /// Returns the answer with the room that it needs, which is free again once the answer is sent or dropped.
    pub(crate) async fn with(self, answer: Response) -> Response {
        let Some(mut room) = self.0 else { return answer };
        let (mut parts, body) = answer.into_parts();
        let Ok(bytes) = to_bytes(body, usize::MAX).await else {
            return (StatusCode::INTERNAL_SERVER_ERROR, "the answer can't be made\n").into_response();
        };
        drop(room.split(room.num_permits().saturating_sub(bytes.len().div_ceil(UNIT))));
        // Masters that pass the answer on read no chunks.
        parts.headers.insert(header::CONTENT_LENGTH, bytes.len().into());
        Response::from_parts(parts, Body::new(Pieces { bytes, _room: room }))
    }
}

/// An answer that is being sent.
///
/// The server copies each piece into a buffer of its own and then drops the piece. Given the whole answer at once, it
/// would free the room while its copy still waits for a peer that does not read.
struct Pieces {
    bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let now = PIECE.min(self.bytes.len());
        Poll::Ready((now > 0).then(|| Ok(Frame::data(self.bytes.split_to(now)))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use http_body_util::BodyExt as _;

    use super::*;

    const MIB: usize = 1 << 20;

    async fn answer(room: &ReplyMemory, bytes: usize) -> Response {
        room.reserve(ReplySize::Large).await.with(vec![7; bytes].into_response()).await
    }

    #[tokio::test]
    async fn a_large_answer_waits_for_earlier_ones_to_be_sent() {
        let room = ReplyMemory::new(1);
        let mut sent = Vec::new();
        while let Some(reserved) = room.reserve(ReplySize::Large).now_or_never() {
            sent.push(reserved.with(vec![7; 32 * MIB].into_response()).await);
        }
        assert_eq!(sent.len(), 4);
        assert!(room.reserve(ReplySize::Small).now_or_never().is_some(), "small answers need no room");

        // A reader that has all but the last piece.
        let mut body = sent.pop().unwrap().into_body();
        for _ in 0..32 * MIB / PIECE - 1 {
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), PIECE);
        }
        assert!(room.reserve(ReplySize::Large).now_or_never().is_none());
        drop(body);
        assert!(room.reserve(ReplySize::Large).now_or_never().is_some());
    }

    #[tokio::test]
    async fn an_answer_keeps_what_it_needs_of_the_room() {
        let room = ReplyMemory::new(1);
        let small: Vec<_> = futures::future::join_all((0..32).map(|_| answer(&room, 3 * MIB))).await;
        assert_eq!(room.memory.available_permits() * UNIT, MEMORY - 32 * 3 * MIB);
        let first = small.into_iter().next().unwrap();
        assert_eq!(first.headers()[header::CONTENT_LENGTH], "3145728");
        assert_eq!(first.into_body().collect().await.unwrap().to_bytes().len(), 3 * MIB);
        assert_eq!(room.memory.available_permits() * UNIT, MEMORY);
    }

    #[tokio::test]
    async fn requests_are_passed_on_one_after_the_other_where_there_is_one_place() {
        let room = ReplyMemory::new(1);
        let first = room.pass_on().await;
        assert!(room.pass_on().now_or_never().is_none());
        drop(first);
        assert!(room.pass_on().now_or_never().is_some());
    }
}
