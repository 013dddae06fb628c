//! Entry points for tests/fuzz: decoders that are private otherwise, and a measure of the memory that they take.

mod held;

pub use held::{Counting, most_held};

use crate::control::wire::{self, End, Hello, HelloReply, RdmaRequest, Request, RequestKind, VerdictHeader};
use crate::path::shm::{Message, Record};

/// Decodes `data` as the kind of frame that its first byte chooses, and returns whether that succeeds.
pub fn frames(data: &[u8]) -> bool {
    let Some((which, frame)) = data.split_first() else { return false };
    match which % 8 {
        0 => hello(frame),
        1 => frame.first_chunk().is_some_and(|bytes| HelloReply::decode(bytes).is_ok()),
        2 => request(frame),
        3 => frame.first_chunk().is_some_and(|bytes| VerdictHeader::decode(bytes).is_ok()),
        4 => frame.first_chunk().is_some_and(|bytes| wire::check_reply(*bytes, 9).is_ok()),
        5 => end(frame),
        6 => frame.first_chunk().is_some_and(|bytes| {
            assert_eq!(Record::decode(bytes).encode(), *bytes, "there is one way to write a record");
            true
        }),
        _ => frame.first_chunk().and_then(Message::decode).is_some(),
    }
}

fn hello(frame: &[u8]) -> bool {
    let Some(bytes) = frame.first_chunk() else { return false };
    let Ok(hello) = Hello::decode(bytes) else { return false };
    assert_eq!(&hello.encode(), bytes, "there is one way to write a hello");
    true
}

fn end(frame: &[u8]) -> bool {
    let Some(bytes) = frame.first_chunk() else { return false };
    let mut again = Vec::new();
    End::decode(bytes).encode(&mut again);
    assert_eq!(again, bytes, "there is one way to write an end of a pair");
    true
}

fn request(frame: &[u8]) -> bool {
    let Some((head, body)) = frame.split_first_chunk() else { return false };
    let Ok(request) = Request::decode(head) else { return false };
    let mut again = Vec::new();
    request.encode(&mut again);
    assert_eq!(again, head, "there is one way to write a request");
    let ops = body.get(request.grant_len as usize..request.body_len());
    ops.is_some_and(|ops| match request.kind {
        RequestKind::Rdma(RdmaRequest::Pair(_)) => end(ops),
        kind => kind.check_ops(ops).is_ok(),
    })
}
