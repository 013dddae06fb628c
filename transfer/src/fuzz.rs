//! Entry points for tests/fuzz: decoders that are private otherwise, and a measure of the memory that they take.

mod held;

pub use held::{Counting, most_held};

use mc_types::{Access, ClusterId, ClusterTime, Grant, Nonce, ProofKey, SegmentEpoch, StoreId};

use crate::control::server::Proofs;
use crate::control::wire::{
    self, End, Hello, HelloReply, Op, RdmaRequest, Request, RequestKind, TcpRequest, VerdictHeader,
};
use crate::path::shm::{Message, Record};
use crate::transport::Seal;

const NONCE: Nonce = Nonce([7; Nonce::LEN]);
const PROOF_KEY: [u8; ProofKey::LEN] = [8; ProofKey::LEN];

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

/// Whether a request proves that its sender holds the grant. It does so exactly with the bytes of the right proof, and once.
pub fn proofs(data: &[u8]) -> bool {
    let Some((header, body)) = data.split_first_chunk() else { return false };
    let Ok(request) = Request::decode(header) else { return false };
    let Some(body) = body.get(..request.body_len()) else { return false };
    let (grant, ops, proof) = request.split_body(body);
    let Some(key) = ProofKey::from_bytes(&PROOF_KEY) else { return false };
    let right = key.prove(NONCE, header, ops).to_bytes();
    let proves = request.has_proof && request.id > 0 && body[grant.len() + ops.len()..] == right;
    let (mut proofs, held) = (Proofs::with(NONCE), held());
    let mut check = || proofs.check(&held, &key, header, (&request, ops, proof)).is_ok();
    assert_eq!(check(), proves);
    assert!(!check(), "a request counts once");
    proves
}

/// Requests that prove that.
pub fn valid_proofs() -> Vec<Vec<u8>> {
    let of = |kind, count: u16| {
        let header =
            Request { id: 5, kind: RequestKind::Tcp(kind), ops: count, grant_len: 3, has_proof: true };
        let (header, mut ops) = (header.encode(), Vec::new());
        (0..count).for_each(|range| Op { range: range.into(), offset: 1, len: 2 }.encode(&mut ops));
        let proof = ProofKey::from_bytes(&PROOF_KEY).map(|key| key.prove(NONCE, &header, &ops).to_bytes());
        [&header[..], b"abc", &ops, &proof.unwrap_or_default()].concat()
    };
    vec![of(TcpRequest::Read, 1), of(TcpRequest::Write(Seal::Yes), 3)]
}

/// A grant that needs proofs.
fn held() -> Grant {
    Grant {
        cluster: ClusterId(1),
        store: StoreId(2),
        epoch: SegmentEpoch(3),
        access: Access::Read,
        expires: ClusterTime(4),
        tenant: String::new(),
        holder: None,
        needs_proof: true,
        shares_memory: false,
        avoids_rdma: false,
        ranges: Vec::new(),
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
    assert_eq!(request.encode(), *head, "there is one way to write a request");
    let body = body.get(..request.body_len());
    body.is_some_and(|body| match (request.kind, request.split_body(body)) {
        (RequestKind::Rdma(RdmaRequest::Pair(_)), (_, ops, _)) => end(ops),
        (kind, (_, ops, _)) => kind.check_ops(ops).is_ok(),
    })
}
