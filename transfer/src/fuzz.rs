//! Decoders that nobody outside calls, for tests/fuzz.

use std::hint::black_box;

use crate::wire::{self, Hello, HelloReply, Op, Request, VerdictHeader};

/// All frames, each read from the beginning of `data`.
pub fn frames(data: &[u8]) {
    if let Some(bytes) = data.first_chunk()
        && let Ok(hello) = Hello::decode(bytes)
    {
        assert_eq!(&hello.encode(), bytes, "there is one way to write a hello");
    }
    if let Some(bytes) = data.first_chunk() {
        drop(black_box(HelloReply::decode(bytes)));
    }
    if let Some(bytes) = data.first_chunk() {
        drop(black_box(VerdictHeader::decode(bytes)));
    }
    if let Some((head, body)) = data.split_first_chunk()
        && let Ok(request) = Request::decode(head)
    {
        let mut again = Vec::new();
        request.encode(&mut again);
        assert_eq!(again, head, "there is one way to write a request");
        let ops = body.get(request.grant_len as usize..request.body_len()).unwrap_or_default();
        drop(black_box(wire::total_len(Op::decode_all(ops))));
    }
}
