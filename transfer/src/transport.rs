use std::fmt;

use futures::future::BoxFuture;
use mc_types::{ClusterId, Receipt, SealedGrant, SegmentEpoch, StoreId};
use tokio::time::Instant;

use crate::report::PeerReport;
use crate::{Checksum, DeviceError, LostMemory, ReadBuffer, RegisterError, RegisteredMemory, WriteBuffer};

/// A store's memory as the far end of transfers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Cluster that the grants come from.
    pub cluster: ClusterId,
    /// The store.
    pub store: StoreId,
    /// Epoch of its memory; a store whose memory has another epoch refuses the hello.
    pub epoch: SegmentEpoch,
    /// Ways to reach it, in the store's order of preference.
    pub endpoints: Vec<PeerEndpoint>,
}

/// One way to reach a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerEndpoint {
    /// Name of the transport: `tcp`.
    pub transport: String,
    /// host:port; the name is resolved again at each connect.
    pub address: String,
    /// Further data for the transport.
    pub attributes: Vec<(String, String)>,
}

/// Read part of a granted range into local buffers.
pub struct ReadOp<'a> {
    /// Index of the range in the grant.
    pub range: u32,
    /// First byte, relative to the start of the range.
    pub offset: u64,
    /// Buffers for the bytes, in order; their lengths add up to the number of bytes read.
    pub into: Vec<ReadBuffer<'a>>,
}

impl ReadOp<'_> {
    /// Number of bytes.
    pub(crate) fn len(&self) -> u64 {
        self.into.iter().map(|buffer| buffer.len() as u64).sum()
    }
}

/// Write local buffers to part of a granted range.
pub struct WriteOp<'a> {
    /// Index of the range in the grant.
    pub range: u32,
    /// First byte, relative to the start of the range.
    pub offset: u64,
    /// Buffers with the bytes, in order.
    pub from: Vec<WriteBuffer<'a>>,
}

impl WriteOp<'_> {
    /// Number of bytes.
    pub(crate) fn len(&self) -> u64 {
        self.from.iter().map(|buffer| buffer.len() as u64).sum()
    }
}

/// A write whose bytes are in the store's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Checksum of its bytes.
    pub checksum: Checksum,
    /// The store's proof that every byte of the range was written, if the write has sealed it. Stores of builds before
    /// receipts give none.
    pub receipt: Option<Receipt>,
}

impl Written {
    /// Joins it with the write of the `len` bytes that follow. If both have sealed the range, they have the same receipt.
    pub(crate) fn followed_by(self, next: Self, len: u64) -> Self {
        let checksum = self.checksum.followed_by(next.checksum, len);
        Self { checksum, receipt: next.receipt.or(self.receipt) }
    }
}

/// Joins the answer to the write of an operation with that to the seal of its range afterwards.
pub(crate) fn sealed_after(
    write: Result<Written, TransferError>,
    seal: Result<Written, TransferError>,
) -> Result<Written, TransferError> {
    Ok(Written { receipt: seal?.receipt, ..write? })
}

/// Whether a batch of writes is the last one to its ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seal {
    /// The store refuses further writes to the granted ranges under the same grant, once these are done.
    Yes,
    /// Further writes may follow.
    No,
}

/// Moves batches of bytes to and from stores.
///
/// A call ends by its deadline, and long before it when the store is silent. It may have to wait for a free connection.
/// That wait says nothing about the store, and only the deadline bounds it.
///
/// The transport does not write to the caller's buffers, nor read them, after a call has returned or its future was dropped. A store of this
/// host may still read those of a write that are in memory from [`allocate`](Transport::allocate), without consequence. A write that
/// answers `Ok` is applied in the store's memory. One that failed or was dropped may still be applied, until its range is sealed or
/// the grant is over: write no other bytes to that place under the same grant, and do not publish a range of which a write without a
/// seal failed, even if it is repeated and answers `Ok`. Each answer carries the checksum of the operation's bytes, computed
/// while they were in the cache.
pub trait Transport: Send + Sync + fmt::Debug {
    /// Reads a batch; returns one answer per operation, in order.
    fn read<'a>(
        &'a self,
        peer: &'a Peer,
        grant: &'a SealedGrant,
        ops: &'a mut [ReadOp<'_>],
        deadline: Instant,
    ) -> BoxFuture<'a, Vec<Result<Checksum, TransferError>>>;

    /// Writes a batch; returns one answer per operation, in order.
    ///
    /// With [`Seal::Yes`] at most one operation of the batch may be on each range, and each answer says that the whole range of
    /// the operation is sealed as well, with the store's receipt for that. A store refuses to seal a range of which a byte was
    /// not written. Seal bytes before they are published: otherwise a holder of the grant could overwrite them until it
    /// expires. An operation of no bytes only seals.
    fn write<'a>(
        &'a self,
        peer: &'a Peer,
        grant: &'a SealedGrant,
        ops: &'a [WriteOp<'_>],
        seal: Seal,
        deadline: Instant,
    ) -> BoxFuture<'a, Vec<Result<Written, TransferError>>>;

    /// Allocates zeroed, page-aligned memory for buffers, from which bytes go with as few copies as this transport can.
    ///
    /// # Errors
    /// [`RegisterError::OutOfMemory`] when there is not enough.
    fn allocate(&self, len: usize) -> Result<RegisteredMemory, RegisterError> {
        RegisteredMemory::allocate(len)
    }

    /// Returns whether a store may still copy these bytes after a write of them was dropped: it reads them from the caller's
    /// memory, which the caller may change then.
    fn copies_late(&self, bytes: WriteBuffer<'_>) -> bool {
        let _ = bytes;
        false
    }

    /// Says how bytes go to and from the stores that were called: one report for each address, in no order. A store whose connections
    /// have ended may be missing.
    fn peers(&self) -> Vec<PeerReport> {
        Vec::new()
    }
}

/// Refuses reads of which some would fill memory that a device may still write to.
pub(crate) fn lost<T: Clone>(peer: &Peer, ops: &[ReadOp<'_>]) -> Option<Vec<Result<T, TransferError>>> {
    let lost = ops.iter().flat_map(|op| &op.into).find(|buffer| !buffer.is_free())?;
    let (store, reason) = (peer.store, LostMemory { len: lost.len() }.to_string());
    Some(vec![Err(TransferError::Broken { store, address: String::new(), reason }); ops.len()])
}

/// Why a transfer failed. A failed read left unspecified bytes in the caller's buffers; a failed write may or may not
/// have reached the store's memory, where nothing reads it until its put is ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// No connection could be made.
    #[error("cannot connect to store {store} at {address}: {reason}")]
    Connect {
        /// The store.
        store: StoreId,
        /// Address that was tried.
        address: String,
        /// Error of the last attempt.
        reason: String,
    },
    /// The connection broke, or the store's answer made no sense.
    #[error("connection to store {store} at {address} broke: {reason}")]
    Broken {
        /// The store.
        store: StoreId,
        /// Address of the store.
        address: String,
        /// How the connection broke.
        reason: String,
    },
    /// The store moved no byte for the transport's stall timeout, so the transport treats it as dead.
    #[error("store {store} at {address} stalled: {reason}")]
    Stalled {
        /// The store.
        store: StoreId,
        /// Address of the store.
        address: String,
        /// How the stall was noticed.
        reason: String,
    },
    /// The deadline passed while bytes were moving.
    #[error("store {store} at {address} did not finish by the deadline")]
    Deadline {
        /// The store.
        store: StoreId,
        /// Address of the store.
        address: String,
    },
    /// The deadline passed before a connection was free: other calls of this process had them all. The store was not
    /// asked for anything.
    #[error("no connection to store {store} at {address} was free by the deadline")]
    Queued {
        /// The store.
        store: StoreId,
        /// Address of the store.
        address: String,
    },
    /// The deadline passed before a buffer for memory of a device was free. This says nothing about the store, which was not asked for
    /// anything.
    #[error(
        "no buffer for memory of GPUs was free by the deadline: make fewer calls at a time, which share six, or give them more time"
    )]
    NoBuffer,
    /// The store refused: it was busy until the deadline, or the grant is expired, superseded or for other memory.
    #[error("store {store} refused: {reason}")]
    Refused {
        /// The store.
        store: StoreId,
        /// The store's reason.
        reason: String,
    },
    /// The bytes may go by RDMA alone, and can't.
    #[error("store {store} can't be reached by RDMA, and this client may use nothing else: {reason}")]
    NoRdma {
        /// The store.
        store: StoreId,
        /// Why not.
        reason: String,
    },
    /// The tenant's bytes may not go by RDMA, and this client moves them by nothing else.
    #[error(
        "the tenant's bytes may not go by RDMA (mcctl tenants set --rdma off), and this client may use nothing else: let it \
         use TCP, too (--transport auto)"
    )]
    RdmaOff,
    /// The bytes may be there, and the store may still copy from the caller's memory for a request that it did not answer. So the
    /// range must not be published.
    #[error("store {store} may still copy bytes for a request that it did not answer")]
    InDoubt {
        /// The store.
        store: StoreId,
    },
    /// The bytes could not be copied from or to memory of a device of this process.
    #[error("{0}")]
    Device(DeviceError),
    /// The store offers no transport that this client speaks.
    #[error("store {store} offers no usable endpoint: {offered}")]
    NoEndpoint {
        /// The store.
        store: StoreId,
        /// Transports that it offers.
        offered: String,
    },
}

impl Peer {
    /// Its first address, for people.
    pub(crate) fn address(&self) -> String {
        self.endpoints.first().map(|endpoint| endpoint.address.clone()).unwrap_or_default()
    }
}

impl TransferError {
    /// Whether the error is about the store or the way to it. Any other error is about the call: its deadline, its
    /// grant, or how busy its own process was.
    #[must_use]
    pub fn is_of_the_store(&self) -> bool {
        match self {
            Self::Connect { .. }
            | Self::Broken { .. }
            | Self::Stalled { .. }
            | Self::NoRdma { .. }
            | Self::NoEndpoint { .. } => true,
            Self::Deadline { .. }
            | Self::Queued { .. }
            | Self::NoBuffer
            | Self::Refused { .. }
            | Self::RdmaOff
            | Self::InDoubt { .. }
            | Self::Device(_) => false,
        }
    }
}
