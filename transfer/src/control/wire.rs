//! The TCP protocol between a client and a store's data server.
//!
//! All integers are big-endian. The client opens with a hello, the server answers it; then the client sends requests,
//! any number of them before the first reply, and the server replies in order:
//!
//! ```text
//! hello        magic[4] min_version:u16 max_version:u16 cluster:u128 store:u64 epoch:u64
//! hello reply  magic[4] min_version:u16 max_version:u16 chosen:u16 verdict       (chosen 0: refused)
//!              then, since version 7 and unless that refuses, nonce[16]
//! request      id:u64 access:u8 kind:u8 ops:u16 grant_len:u32 grant[grant_len] { range:u32 offset:u64 len:u64 }[ops]
//!              then, if the highest bit of the kind is set, proof[16]
//!              then, for a write, the bytes of each operation in order
//! reply        id:u64 verdict; unless that refuses, in order for each operation:
//!                read:  verdict; unless that refuses, the bytes, then a verdict on whether those bytes are good
//!                write: verdict, sent when the bytes of the whole request are in the store's memory
//! verdict      status:u8 (0: good) reason_len:u16 reason[reason_len]
//! ```
//!
//! The reason is for people, but for one case: a good verdict on an operation that seals its range has the store's receipt
//! for the range in its place. A client that doesn't know receipts passes over it.
//!
//! Since version 2 there are requests of kind 1:
//!
//! - A write that seals: once the bytes of an operation are in the store's memory, its whole granted range is sealed, and
//!   later writes under the same grant are refused. It is refused if a byte of the range was not written, by this operation or
//!   an earlier one over whatever connection. A write of no bytes seals alone. A write that comes again, because its
//!   answer was lost, finds its range sealed and is answered as if it were the first.
//! - A read that was done already, past the store: the reply has one verdict for each operation, on whether the bytes
//!   that were read before the request are good.
//!
//! Since version 3 a connection can have a pair of RDMA queue pairs beside it, one at each end, which carry the bytes of
//! requests of kinds 3 and 4. The store moves them: it reads a write's bytes from the client's memory, and writes a read's
//! bytes there. So the client tells where they are, and no client gets a key to the store's memory.
//!
//! - Kind 2 makes the pair. In place of operations it has one end, and the reply has the other after its verdict:
//!
//!   ```text
//!   end          link:u8 reads_at_once:u8 device:u16 pair:u32 first_packet:u32 mtu:u32 lid:u16 gid[16]
//!   ```
//! - Kind 3 reads or writes, and kind 4 writes and seals. Each operation goes on with `key:u32 address:u64` of its bytes in
//!   the client's memory. The reply has one verdict for each operation, as for a write. With a read the store also sends
//!   a message with the low half of its id through the queue pair, after all bytes: a verdict can overtake bytes on the
//!   way to the client's memory, and the message can't. There is none when the request is refused as a whole, or an
//!   operation with status 9 or 10. A range is sealed only if all operations on it in the request are good. The
//!   operations of a request have 16 MiB at most.
//!
//! Since version 4 clients of the store's host share memory with it, over a Unix socket beside (see [`crate::path::shm`]):
//!
//! - The record of each segment comes with two descriptors: the segment, and its stamps.
//! - The client hands over areas of its own memory there, and the store gives each a number. A request of kind 5 writes, and
//!   one of kind 6 writes and seals, bytes that are in such areas: each operation goes on with `area:u64 at:u64`, and the
//!   reply is as for a write by RDMA, with the same bound of bytes. Status 10 says that the store can't reach an area.
//!
//! Since version 5 a store sends the id 0, without a verdict, before the reply to a request of kind 3 or 4 (or 7, since version 6) whose
//! bytes take long, as long as its network card completes requests. No request has that id.
//!
//! Since version 6 a request of kind 7 tries the pair of its connection, with a grant of either access. It has one operation like those of
//! kind 3, of which the length, the key and the address count: the store writes so many bytes there, 4 KiB at most, which mean
//! nothing, and ends as after a read of kind 3.
//!
//! Since version 7 a request can prove that its sender holds the key of its grant. It sets the highest bit of its kind, and
//! the proof (see [`mc_types::ProofKey::prove`]) covers the nonce of the connection, the first 16 bytes of the request and its operations as they travel.
//! A grant that needs proofs is refused without one, whatever the version.
//!
//! Since version 8 a store that requires TLS shares its memory only with a client whose grant allows it. At the Unix socket, `due:u8 nonce[16]`
//! follow the reply to the hello. If `due` is 1, the client sends a request of kind 8, with a grant of either access, a proof and no
//! operations, and the store answers with a verdict before the records.
//!
//! A connection may begin with a TLS handshake, by the type of its first record. Then all of this goes inside of TLS.
//!
//! Every length is checked against its bound before anything is allocated or waited for.

mod request;

use mc_types::{ClusterId, MAX_ITEMS, Receipt, SegmentEpoch, StoreId};

pub(crate) use self::request::{
    AreaOp, End, Op, RdmaOp, RdmaRequest, Request, RequestKind, ShmRequest, TcpRequest,
};

/// First bytes of the hello and its reply.
pub(crate) const MAGIC: [u8; 4] = *b"mcTX";
/// Oldest and newest protocol version that this build speaks.
pub(crate) const VERSIONS: (u16, u16) = (1, 8);
/// First version with requests of kind 1.
pub(crate) const KINDS_SINCE: u16 = 2;
/// First version with RDMA beside the connection.
pub(crate) const RDMA_SINCE: u16 = 3;
/// First version with stamps, areas and messages of clients beside shared memory.
pub(crate) const SHARING_SINCE: u16 = 4;
/// First version with reports of the progress of RDMA.
pub(crate) const PROGRESS_SINCE: u16 = 5;
/// First version with requests that try a pair.
pub(crate) const PROBE_SINCE: u16 = 6;
/// First version with a nonce of the connection, and proofs.
pub(crate) const NONCE_SINCE: u16 = 7;
/// First version in which a client shows a grant at the Unix socket, if one is due there.
pub(crate) const SHOWING_SINCE: u16 = 8;
/// Maximum bytes of a request that tries a pair: as many as the largest packet has, because some networks lose large packets only.
pub(crate) const PROBE_LEN: u64 = 4 << 10;
/// A report that the network card of the store completes requests.
pub(crate) const PROGRESS: [u8; REPLY_LEN] = [0; REPLY_LEN];

/// Maximum number of operations in one request.
pub(crate) const MAX_OPS: usize = MAX_ITEMS;
/// Maximum length of a sealed grant in bytes: [`MAX_OPS`] ranges of at most 35 bytes, and room for the rest.
pub(crate) const MAX_GRANT_LEN: usize = 160 << 10;
/// Maximum length of a verdict's reason in bytes.
pub(crate) const MAX_REASON_LEN: usize = 1024;

pub(crate) const HELLO_LEN: usize = 40;
pub(crate) const HELLO_REPLY_LEN: usize = 10 + VERDICT_LEN;
pub(crate) const REQUEST_LEN: usize = 16;
pub(crate) const OP_LEN: usize = 20;
/// Length of an operation whose bytes go by RDMA.
pub(crate) const RDMA_OP_LEN: usize = OP_LEN + 12;
/// Length of an operation whose bytes are in an area.
pub(crate) const AREA_OP_LEN: usize = OP_LEN + 16;
/// Maximum bytes of the operations of one request whose bytes the store moves itself, by RDMA or from an area.
pub(crate) const MAX_FETCHED_BYTES: u64 = 16 << 20;
/// Length of an end of a pair.
pub(crate) const END_LEN: usize = 34;
pub(crate) const REPLY_LEN: usize = 8;
pub(crate) const VERDICT_LEN: usize = 3;

/// Violation of the protocol by the peer's bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    #[error("the peer does not speak this protocol (it opened with {0:02x?})")]
    Magic([u8; 4]),
    #[error("a request carries {0} operations, between 1 and {MAX_OPS} are allowed")]
    Ops(u16),
    #[error("a request carries a grant of {0} bytes, at most {MAX_GRANT_LEN} are allowed")]
    Grant(u32),
    #[error("a request has access {0} and kind {1}, which this version does not know")]
    Access(u8, u8),
    #[error("the operations of a request add up to more than 2^64 bytes")]
    Total,
    #[error(
        "the operations of a request by RDMA or from shared memory add up to more than {MAX_FETCHED_BYTES} bytes"
    )]
    FetchedTotal,
    #[error("a reason has {0} bytes, at most {MAX_REASON_LEN} are allowed")]
    Reason(u16),
    #[error("reply {got} came where {expected} was due")]
    Reply { expected: u64, got: u64 },
}

/// Takes fixed-size fields off a header of known length.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    /// Takes the next `N` bytes. Past the end of the header it returns zeros and does not panic; a header is an array that
    /// has room for all its fields.
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk() {
            Some((field, rest)) => {
                self.0 = rest;
                *field
            }
            None => [0; N],
        }
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take())
    }
}

/// The client's opening: the memory that it means, and the versions that it speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) versions: (u16, u16),
    pub(crate) cluster: ClusterId,
    pub(crate) store: StoreId,
    pub(crate) epoch: SegmentEpoch,
}

impl Hello {
    pub(crate) fn encode(&self) -> [u8; HELLO_LEN] {
        let mut out = [0; HELLO_LEN];
        out[..4].copy_from_slice(&MAGIC);
        out[4..6].copy_from_slice(&self.versions.0.to_be_bytes());
        out[6..8].copy_from_slice(&self.versions.1.to_be_bytes());
        out[8..24].copy_from_slice(&self.cluster.to_bytes());
        out[24..32].copy_from_slice(&self.store.to_bytes());
        out[32..40].copy_from_slice(&self.epoch.to_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8; HELLO_LEN]) -> Result<Self, WireError> {
        let mut fields = Fields(bytes);
        check_magic(fields.take())?;
        Ok(Self {
            versions: (fields.u16(), fields.u16()),
            cluster: ClusterId(u128::from_be_bytes(fields.take())),
            store: StoreId(fields.u64()),
            epoch: SegmentEpoch(fields.u64()),
        })
    }
}

/// The server's answer to a hello, up to its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HelloReply {
    pub(crate) versions: (u16, u16),
    /// The version that both will speak; 0 when the verdict refuses.
    pub(crate) chosen: u16,
    pub(crate) verdict: VerdictHeader,
}

impl HelloReply {
    pub(crate) fn encode(chosen: u16, verdict: Result<(), (Status, &str)>) -> Vec<u8> {
        let mut out = Vec::with_capacity(HELLO_REPLY_LEN);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSIONS.0.to_be_bytes());
        out.extend_from_slice(&VERSIONS.1.to_be_bytes());
        out.extend_from_slice(&chosen.to_be_bytes());
        put_verdict(&mut out, verdict);
        out
    }

    pub(crate) fn decode(bytes: &[u8; HELLO_REPLY_LEN]) -> Result<Self, WireError> {
        let mut fields = Fields(bytes);
        check_magic(fields.take())?;
        Ok(Self {
            versions: (fields.u16(), fields.u16()),
            chosen: fields.u16(),
            verdict: VerdictHeader::decode(&fields.take())?,
        })
    }
}

/// Returns the newest version that both sides speak; `None` when they have none in common.
pub(crate) fn common_version(ours: (u16, u16), theirs: (u16, u16)) -> Option<u16> {
    let newest = ours.1.min(theirs.1);
    (newest >= ours.0.max(theirs.0)).then_some(newest)
}

/// Checks that a reply answers the oldest request without a reply.
pub(crate) fn check_reply(bytes: [u8; REPLY_LEN], expected: u64) -> Result<(), WireError> {
    let got = u64::from_be_bytes(bytes);
    if got == expected { Ok(()) } else { Err(WireError::Reply { expected, got }) }
}

/// Kind of a verdict, for metrics and for clients that act on it. The reason is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Good = 0,
    /// The client means another protocol version, cluster, store or epoch, or it has to connect by TLS with another certificate.
    Identity = 1,
    /// The store has not heard from a master yet.
    NotReady = 2,
    /// The grant does not open, or permits something else.
    Grant = 3,
    Expired = 4,
    Superseded = 5,
    /// The operation is outside the grant or the segment.
    Range = 6,
    /// The store is busy and did nothing: the client may try the same again in a moment.
    Busy = 7,
    /// The put of this grant has sealed the range: its bytes are final.
    Sealed = 8,
    /// RDMA has failed: the client may do the same over another pair, or over TCP.
    Device = 9,
    /// The bytes can't go by RDMA, or out of an area: the client may do the same over TCP.
    OtherWay = 10,
}

/// The fixed part of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VerdictHeader {
    /// Whether the status is 0. A status that is unknown here refuses, like every other.
    pub(crate) good: bool,
    /// Whether the status is [`Status::Busy`].
    pub(crate) busy: bool,
    /// Whether the status is [`Status::Device`].
    pub(crate) device: bool,
    /// Whether the status is [`Status::OtherWay`].
    pub(crate) other_way: bool,
    pub(crate) reason_len: usize,
}

impl VerdictHeader {
    pub(crate) fn decode(bytes: &[u8; VERDICT_LEN]) -> Result<Self, WireError> {
        let mut fields = Fields(bytes);
        let [status] = fields.take();
        let reason_len = fields.u16();
        if usize::from(reason_len) > MAX_REASON_LEN {
            return Err(WireError::Reason(reason_len));
        }
        let is = |kind| status == kind as u8;
        Ok(Self {
            good: is(Status::Good),
            busy: is(Status::Busy),
            device: is(Status::Device),
            other_way: is(Status::OtherWay),
            reason_len: reason_len.into(),
        })
    }
}

/// Appends a good verdict on an operation that has sealed its range.
pub(crate) fn put_receipt(out: &mut Vec<u8>, receipt: Receipt) {
    out.push(Status::Good as u8);
    out.extend_from_slice(&(Receipt::LEN as u16).to_be_bytes());
    out.extend_from_slice(&receipt.to_bytes());
}

/// Appends a verdict, and cuts a reason that is too long.
pub(crate) fn put_verdict(out: &mut Vec<u8>, verdict: Result<(), (Status, &str)>) {
    let (status, reason) = match verdict {
        Ok(()) => (Status::Good, ""),
        Err(refusal) => refusal,
    };
    let reason = &reason.as_bytes()[..reason.len().min(MAX_REASON_LEN)];
    out.push(status as u8);
    out.extend_from_slice(&(reason.len() as u16).to_be_bytes());
    out.extend_from_slice(reason);
}

fn check_magic(magic: [u8; 4]) -> Result<(), WireError> {
    if magic == MAGIC { Ok(()) } else { Err(WireError::Magic(magic)) }
}

#[cfg(test)]
mod tests;
