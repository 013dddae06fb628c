//! The TCP protocol between a client and a store's data server.
//!
//! All integers are big-endian. The client opens with a hello, the server answers it; then the client sends requests,
//! any number of them before the first reply, and the server replies in order:
//!
//! ```text
//! hello        magic[4] min_version:u16 max_version:u16 cluster:u128 store:u64 epoch:u64
//! hello reply  magic[4] min_version:u16 max_version:u16 chosen:u16 verdict       (chosen 0: refused)
//! request      id:u64 access:u8 kind:u8 ops:u16 grant_len:u32 grant[grant_len] { range:u32 offset:u64 len:u64 }[ops]
//!              then, for a write, the bytes of each operation in order
//! reply        id:u64 verdict; unless that refuses, in order for each operation:
//!                read:  verdict; unless that refuses, the bytes, then a verdict on whether those bytes are good
//!                write: verdict, sent when the bytes of the whole request are in the store's memory
//! verdict      status:u8 (0: good) reason_len:u16 reason[reason_len]
//! ```
//!
//! Since version 2 there are requests of kind 1:
//!
//! - A write that seals: once the bytes of an operation are in the store's memory, its whole granted range is sealed, and
//!   later writes under the same grant are refused. A write of no bytes seals alone. A write that comes again, because its
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
//! Every length is checked against its bound before anything is allocated or waited for.

use mc_types::{Access, ClusterId, MAX_ITEMS, SegmentEpoch, StoreId};

use crate::transport::Seal;

/// First bytes of the hello and its reply.
pub(crate) const MAGIC: [u8; 4] = *b"mcTX";
/// Oldest and newest protocol version that this build speaks.
pub(crate) const VERSIONS: (u16, u16) = (1, 6);
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

/// Kind of a request, by the path of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Tcp(TcpRequest),
    Shm(ShmRequest),
    Rdma(RdmaRequest),
}

/// Kind of a request whose bytes go over the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TcpRequest {
    Read,
    Write(Seal),
}

/// Kind of a request whose bytes go through memory that both ends share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShmRequest {
    /// Checks bytes that the client read from shared memory.
    Check,
    /// Writes bytes that are in areas.
    Write(Seal),
}

/// Kind of a request whose bytes go by RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RdmaRequest {
    /// Makes a pair of queue pairs, with a grant of either access.
    Pair(Access),
    /// Tries the pair, with a grant of either access.
    Probe(Access),
    Read,
    Write(Seal),
}

impl RequestKind {
    /// Length of what the request has for each operation.
    fn op_len(self) -> usize {
        match self {
            Self::Tcp(_) | Self::Shm(ShmRequest::Check) => OP_LEN,
            Self::Shm(ShmRequest::Write(_)) => AREA_OP_LEN,
            Self::Rdma(RdmaRequest::Pair(_)) => END_LEN,
            Self::Rdma(RdmaRequest::Probe(_) | RdmaRequest::Read | RdmaRequest::Write(_)) => RDMA_OP_LEN,
        }
    }

    /// Returns what the grant must permit.
    pub(crate) fn access(self) -> Access {
        match self {
            Self::Tcp(TcpRequest::Read) | Self::Shm(ShmRequest::Check) | Self::Rdma(RdmaRequest::Read) => {
                Access::Read
            }
            Self::Tcp(TcpRequest::Write(_))
            | Self::Shm(ShmRequest::Write(_))
            | Self::Rdma(RdmaRequest::Write(_)) => Access::Write,
            Self::Rdma(RdmaRequest::Pair(access) | RdmaRequest::Probe(access)) => access,
        }
    }

    /// Checks the operations of a request, and returns the number of bytes that follow them on the connection.
    pub(crate) fn check_ops(self, ops: &[u8]) -> Result<u64, WireError> {
        match self {
            Self::Tcp(TcpRequest::Write(_)) => total_len(Op::decode_all(ops)),
            Self::Tcp(TcpRequest::Read) | Self::Shm(ShmRequest::Check) => {
                total_len(Op::decode_all(ops)).map(|_| 0)
            }
            Self::Shm(ShmRequest::Write(_)) => {
                check_fetched(AreaOp::decode_all(ops).map(|op| op.op)).map(|()| 0)
            }
            Self::Rdma(RdmaRequest::Pair(_)) => Ok(0),
            Self::Rdma(RdmaRequest::Probe(_) | RdmaRequest::Read | RdmaRequest::Write(_)) => {
                check_fetched(RdmaOp::decode_all(ops).map(|op| op.op)).map(|()| 0)
            }
        }
    }

    fn encode(self) -> [u8; 2] {
        match self {
            Self::Tcp(TcpRequest::Read) => [1, 0],
            Self::Tcp(TcpRequest::Write(Seal::No)) => [2, 0],
            Self::Tcp(TcpRequest::Write(Seal::Yes)) => [2, 1],
            Self::Shm(ShmRequest::Check) => [1, 1],
            Self::Shm(ShmRequest::Write(Seal::No)) => [2, 5],
            Self::Shm(ShmRequest::Write(Seal::Yes)) => [2, 6],
            Self::Rdma(RdmaRequest::Pair(Access::Read)) => [1, 2],
            Self::Rdma(RdmaRequest::Pair(Access::Write)) => [2, 2],
            Self::Rdma(RdmaRequest::Probe(Access::Read)) => [1, 7],
            Self::Rdma(RdmaRequest::Probe(Access::Write)) => [2, 7],
            Self::Rdma(RdmaRequest::Read) => [1, 3],
            Self::Rdma(RdmaRequest::Write(Seal::No)) => [2, 3],
            Self::Rdma(RdmaRequest::Write(Seal::Yes)) => [2, 4],
        }
    }

    fn decode(bytes: [u8; 2]) -> Result<Self, WireError> {
        Ok(match bytes {
            [1, 0] => Self::Tcp(TcpRequest::Read),
            [2, 0] => Self::Tcp(TcpRequest::Write(Seal::No)),
            [2, 1] => Self::Tcp(TcpRequest::Write(Seal::Yes)),
            [1, 1] => Self::Shm(ShmRequest::Check),
            [2, 5] => Self::Shm(ShmRequest::Write(Seal::No)),
            [2, 6] => Self::Shm(ShmRequest::Write(Seal::Yes)),
            [1, 2] => Self::Rdma(RdmaRequest::Pair(Access::Read)),
            [2, 2] => Self::Rdma(RdmaRequest::Pair(Access::Write)),
            [1, 7] => Self::Rdma(RdmaRequest::Probe(Access::Read)),
            [2, 7] => Self::Rdma(RdmaRequest::Probe(Access::Write)),
            [1, 3] => Self::Rdma(RdmaRequest::Read),
            [2, 3] => Self::Rdma(RdmaRequest::Write(Seal::No)),
            [2, 4] => Self::Rdma(RdmaRequest::Write(Seal::Yes)),
            [access, kind] => return Err(WireError::Access(access, kind)),
        })
    }
}

/// The fixed part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) kind: RequestKind,
    pub(crate) ops: u16,
    pub(crate) grant_len: u32,
}

impl Request {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.to_be_bytes());
        out.extend_from_slice(&self.kind.encode());
        out.extend_from_slice(&self.ops.to_be_bytes());
        out.extend_from_slice(&self.grant_len.to_be_bytes());
    }

    pub(crate) fn decode(bytes: &[u8; REQUEST_LEN]) -> Result<Self, WireError> {
        let mut fields = Fields(bytes);
        let id = fields.u64();
        let kind = RequestKind::decode(fields.take())?;
        let (ops, grant_len) = (fields.u16(), fields.u32());
        let most = match kind {
            RequestKind::Rdma(RdmaRequest::Pair(_) | RdmaRequest::Probe(_)) => 1,
            RequestKind::Tcp(_) | RequestKind::Shm(_) | RequestKind::Rdma(_) => MAX_OPS,
        };
        if ops == 0 || usize::from(ops) > most {
            return Err(WireError::Ops(ops));
        }
        if grant_len as usize > MAX_GRANT_LEN {
            return Err(WireError::Grant(grant_len));
        }
        Ok(Self { id, kind, ops, grant_len })
    }

    /// Length of the grant and the operations that follow, in bytes.
    pub(crate) fn body_len(&self) -> usize {
        self.grant_len as usize + usize::from(self.ops) * self.kind.op_len()
    }
}

/// One operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    /// Index of the range in the grant.
    pub(crate) range: u32,
    /// First byte, relative to the start of the range.
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Op {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.range.to_be_bytes());
        out.extend_from_slice(&self.offset.to_be_bytes());
        out.extend_from_slice(&self.len.to_be_bytes());
    }

    fn decode(bytes: &[u8; OP_LEN]) -> Self {
        let mut fields = Fields(bytes);
        Self { range: fields.u32(), offset: fields.u64(), len: fields.u64() }
    }

    /// Decodes the operations, which follow the grant in a request's body.
    pub(crate) fn decode_all(bytes: &[u8]) -> impl Iterator<Item = Self> {
        bytes.as_chunks().0.iter().map(Self::decode)
    }
}

/// An operation whose bytes go by RDMA, and where they are in the client's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RdmaOp {
    pub(crate) op: Op,
    pub(crate) key: u32,
    pub(crate) address: u64,
}

impl RdmaOp {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        self.op.encode(out);
        out.extend_from_slice(&self.key.to_be_bytes());
        out.extend_from_slice(&self.address.to_be_bytes());
    }

    fn decode(bytes: &[u8; RDMA_OP_LEN]) -> Self {
        let mut fields = Fields(bytes);
        let op = Op { range: fields.u32(), offset: fields.u64(), len: fields.u64() };
        Self { op, key: fields.u32(), address: fields.u64() }
    }

    /// Decodes the operations, which follow the grant in a request's body.
    pub(crate) fn decode_all(bytes: &[u8]) -> impl Iterator<Item = Self> {
        bytes.as_chunks().0.iter().map(Self::decode)
    }
}

/// An operation whose bytes are in an area, and where in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AreaOp {
    pub(crate) op: Op,
    pub(crate) area: u64,
    pub(crate) at: u64,
}

impl AreaOp {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        self.op.encode(out);
        out.extend_from_slice(&self.area.to_be_bytes());
        out.extend_from_slice(&self.at.to_be_bytes());
    }

    fn decode(bytes: &[u8; AREA_OP_LEN]) -> Self {
        let mut fields = Fields(bytes);
        let op = Op { range: fields.u32(), offset: fields.u64(), len: fields.u64() };
        Self { op, area: fields.u64(), at: fields.u64() }
    }

    /// Decodes the operations, which follow the grant in a request's body.
    pub(crate) fn decode_all(bytes: &[u8]) -> impl Iterator<Item = Self> {
        bytes.as_chunks().0.iter().map(Self::decode)
    }
}

/// Checks the bytes that operations announce which the store moves itself.
fn check_fetched(ops: impl Iterator<Item = Op>) -> Result<(), WireError> {
    match total_len(ops) {
        Ok(0..=MAX_FETCHED_BYTES) => Ok(()),
        _ => Err(WireError::FetchedTotal),
    }
}

/// One end of a pair of queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// Kind of its port's link: 0 InfiniBand, 1 Ethernet.
    pub(crate) link: u8,
    /// Maximum number of reads that it answers at once.
    pub(crate) reads_at_once: u8,
    /// From the client: number of the store's device to use, counted around. From the store: number of its devices.
    pub(crate) device: u16,
    /// Number of its queue pair.
    pub(crate) pair: u32,
    pub(crate) first_packet: u32,
    pub(crate) mtu: u32,
    pub(crate) lid: u16,
    pub(crate) gid: [u8; 16],
}

impl End {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.link, self.reads_at_once]);
        out.extend_from_slice(&self.device.to_be_bytes());
        out.extend_from_slice(&self.pair.to_be_bytes());
        out.extend_from_slice(&self.first_packet.to_be_bytes());
        out.extend_from_slice(&self.mtu.to_be_bytes());
        out.extend_from_slice(&self.lid.to_be_bytes());
        out.extend_from_slice(&self.gid);
    }

    pub(crate) fn decode(bytes: &[u8; END_LEN]) -> Self {
        let mut fields = Fields(bytes);
        let [link, reads_at_once] = fields.take();
        let (device, pair, first_packet, mtu) = (fields.u16(), fields.u32(), fields.u32(), fields.u32());
        Self { link, reads_at_once, device, pair, first_packet, mtu, lid: fields.u16(), gid: fields.take() }
    }
}

/// Returns the bytes of payload that the operations announce.
fn total_len(ops: impl Iterator<Item = Op>) -> Result<u64, WireError> {
    ops.into_iter().try_fold(0u64, |sum, op| sum.checked_add(op.len)).ok_or(WireError::Total)
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
    /// The client means another protocol version, cluster, store or epoch.
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
