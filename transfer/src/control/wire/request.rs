//! Requests of clients: their kinds, and what they have for each operation.

use mc_types::{Access, Proof};

use super::{
    AREA_OP_LEN, END_LEN, Fields, MAX_FETCHED_BYTES, MAX_GRANT_LEN, MAX_OPS, OP_LEN, RDMA_OP_LEN,
    REQUEST_LEN, WireError,
};
use crate::transport::Seal;

/// Bit of a kind: a proof follows the operations.
const PROVEN: u8 = 0x80;

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
    /// Asks at the Unix socket for the descriptors of the segments, with a grant of either access.
    Share(Access),
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
            Self::Shm(ShmRequest::Share(_)) => 0,
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
            Self::Shm(ShmRequest::Share(access))
            | Self::Rdma(RdmaRequest::Pair(access) | RdmaRequest::Probe(access)) => access,
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
            Self::Shm(ShmRequest::Share(_)) | Self::Rdma(RdmaRequest::Pair(_)) => Ok(0),
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
            Self::Shm(ShmRequest::Share(Access::Read)) => [1, 8],
            Self::Shm(ShmRequest::Share(Access::Write)) => [2, 8],
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
            [1, 8] => Self::Shm(ShmRequest::Share(Access::Read)),
            [2, 8] => Self::Shm(ShmRequest::Share(Access::Write)),
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
    /// Whether a proof follows the operations.
    pub(crate) has_proof: bool,
}

impl Request {
    pub(crate) fn encode(&self) -> [u8; REQUEST_LEN] {
        let mut out = [0; REQUEST_LEN];
        let [access, kind] = self.kind.encode();
        out[..8].copy_from_slice(&self.id.to_be_bytes());
        out[8..10].copy_from_slice(&[access, if self.has_proof { kind | PROVEN } else { kind }]);
        out[10..12].copy_from_slice(&self.ops.to_be_bytes());
        out[12..].copy_from_slice(&self.grant_len.to_be_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8; REQUEST_LEN]) -> Result<Self, WireError> {
        let mut fields = Fields(bytes);
        let id = fields.u64();
        let [access, kind] = fields.take();
        let has_proof = kind & PROVEN != 0;
        let kind = RequestKind::decode([access, kind & !PROVEN])?;
        let (ops, grant_len) = (fields.u16(), fields.u32());
        let allowed = match kind {
            RequestKind::Shm(ShmRequest::Share(_)) => 0..=0,
            RequestKind::Rdma(RdmaRequest::Pair(_) | RdmaRequest::Probe(_)) => 1..=1,
            RequestKind::Tcp(_) | RequestKind::Shm(_) | RequestKind::Rdma(_) => 1..=MAX_OPS,
        };
        if !allowed.contains(&usize::from(ops)) {
            return Err(WireError::Ops(ops));
        }
        if grant_len as usize > MAX_GRANT_LEN {
            return Err(WireError::Grant(grant_len));
        }
        Ok(Self { id, kind, ops, grant_len, has_proof })
    }

    /// Length of all that follows before the payload, in bytes.
    pub(crate) fn body_len(&self) -> usize {
        let proof = if self.has_proof { Proof::LEN } else { 0 };
        self.grant_len as usize + usize::from(self.ops) * self.kind.op_len() + proof
    }

    /// Splits what follows into the grant, the operations, and the proof if it has one.
    pub(crate) fn split_body<'b>(&self, body: &'b [u8]) -> (&'b [u8], &'b [u8], Option<Proof>) {
        let (grant, rest) = body.split_at(self.grant_len as usize);
        match rest.split_last_chunk() {
            Some((ops, proof)) if self.has_proof => (grant, ops, Some(Proof::from_bytes(*proof))),
            _ => (grant, rest, None),
        }
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
pub(super) fn total_len(ops: impl Iterator<Item = Op>) -> Result<u64, WireError> {
    ops.into_iter().try_fold(0u64, |sum, op| sum.checked_add(op.len)).ok_or(WireError::Total)
}
