//! Reads through shared memory.
//!
//! A store gives the descriptors of its segments to processes of its host ([`DataServer::serve_local`]). Such a client
//! reads from them past the store, and then looks at the [stamps](crate::stamps) of the bytes that it has copied, which the
//! store shares, too. If no newer write was there, the bytes are good. Otherwise, and with a store that shares no stamps, it
//! asks the store over TCP: a block may have a stamp of a neighbour. The store's fence then decides as it does for a read of its
//! own; any other answer, and none, fails the read.
//!
//! The segments are mapped read-only. They can't shrink, because the store has sealed them against that, so that no access
//! faults. A mapping costs 2 bytes of page tables for each KiB that was read; `pread` would do without and take three
//! times as long, because it looks every page up.
//!
//! A client keeps mappings only as long as its connection to the store lasts. Otherwise the memory of a store that has
//! ended could not be freed, and the next one would not find any.
//!
//! [`DataServer::serve_local`]: crate::DataServer::serve_local

mod access;
mod connect;
mod record;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use mc_types::{Grant, GrantedRange, SealedGrant, SegmentEpoch, SegmentNumber, StoreId};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use self::access::{ParseShmAccessError, ShmAccess};
pub use self::record::socket_name;
pub(crate) use self::record::{RECORD_LEN, Record};
use crate::checksum::{Checksum, Sums};
use crate::mapping::Mapping;
use crate::stamps::newest;
use crate::tcp::TcpTransport;
use crate::transport::{Peer, ReadOp, Seal, TransferError, Transport, WriteOp};

/// Fewest bytes of a batch that are read through shared memory of a store that shares no stamps. To ask it is one round trip,
/// and fewer bytes come with one.
const WORTH_IT: u64 = 16 << 10;
/// Bytes that are read and summed in one step: few enough to stay in the cache.
const CACHED: usize = 128 << 10;
/// Bytes after which a read yields to other tasks.
const TURN: usize = 1 << 20;
/// Time after which a store that could not be reached through shared memory is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// Reads through shared memory from stores of this host that share theirs, and moves everything else over TCP.
pub struct ShmTransport {
    tcp: TcpTransport,
    access: ShmAccess,
    stores: Arc<Stores>,
    on_read: OnRead,
    closed: CancellationToken,
    _life: DropGuard,
}

/// Callback with the number of bytes of each read through shared memory that was found good.
pub type OnRead = Box<dyn Fn(u64) + Send + Sync>;

/// Stores that were tried, by the memory that was meant.
#[derive(Default)]
struct Stores(Mutex<HashMap<(StoreId, SegmentEpoch), Reach>>);

enum Reach {
    /// A call connects.
    Connecting,
    Shared(Arc<Segments>),
    /// The store shares nothing; try again at this time.
    Not(Instant),
}

/// The segments that a store shares.
struct Segments {
    by_number: HashMap<SegmentNumber, SharedSegment>,
}

struct SharedSegment {
    bytes: Mapping,
    /// `None` if the store shares none.
    stamps: Option<Mapping>,
}

/// A read of the caller, and where its bytes are.
struct Found<'a, 'b> {
    segment: &'a SharedSegment,
    bytes: Range<u64>,
    /// Index of their allocation.
    index: u64,
    op: &'a mut ReadOp<'b>,
}

/// A call that connects. Its drop records the result; a call that was cancelled leaves no entry.
struct Connecting<'a> {
    stores: &'a Stores,
    memory: (StoreId, SegmentEpoch),
    reach: Option<Reach>,
}

impl Drop for Connecting<'_> {
    fn drop(&mut self) {
        let (mut stores, now) = (self.stores.0.lock(), Instant::now());
        stores.remove(&self.memory);
        stores.retain(|_, reach| !matches!(reach, Reach::Not(until) if *until <= now));
        stores.extend(self.reach.take().map(|reach| (self.memory, reach)));
    }
}

impl ShmTransport {
    /// Creates a transport over `tcp`. It shares memory with the stores that `access` admits.
    #[must_use]
    pub fn new(tcp: TcpTransport, access: ShmAccess, on_read: OnRead) -> Self {
        let closed = CancellationToken::new();
        let life = closed.clone().drop_guard();
        Self { tcp, access, stores: Arc::default(), on_read, closed, _life: life }
    }

    /// Returns the segments that the store shares; `None` while there is no connection for them. The first call connects;
    /// until it has, the others use TCP.
    async fn segments(&self, peer: &Peer, deadline: Instant) -> Option<Arc<Segments>> {
        let memory = (peer.store, peer.epoch);
        match self.stores.0.lock().entry(memory) {
            Entry::Occupied(mut tried) => match tried.get() {
                Reach::Shared(segments) => return Some(segments.clone()),
                Reach::Connecting => return None,
                Reach::Not(until) if Instant::now() < *until => return None,
                Reach::Not(_) => drop(tried.insert(Reach::Connecting)),
            },
            Entry::Vacant(untried) => drop(untried.insert(Reach::Connecting)),
        }
        let mut connecting = Connecting { stores: &self.stores, memory, reach: None };
        match connect::connect(peer, self.access, deadline).await {
            Ok((stream, segments)) => {
                tracing::info!(store = %peer.store, "reads from this store go through shared memory");
                let segments = Arc::new(segments);
                connecting.reach = Some(Reach::Shared(segments.clone()));
                // Before the watch can find that it has ended.
                drop(connecting);
                let (stores, mine) = (self.stores.clone(), segments.clone());
                let watch = async move {
                    connect::ended(stream).await;
                    stores.forget(memory, &mine);
                };
                tokio::spawn(self.closed.clone().run_until_cancelled_owned(watch));
                Some(segments)
            }
            Err(why) => {
                tracing::debug!(store = %peer.store, "no shared memory: {why}");
                // A call without time says nothing about the store.
                if Instant::now() < deadline {
                    connecting.reach = Some(Reach::Not(Instant::now() + AGAIN));
                }
                None
            }
        }
    }

    /// Copies the bytes of each read, and returns its checksum and whether its bytes are known to be good.
    /// The copies are bounded, so only the deadline and other tasks get between them.
    async fn copy(found: Vec<Found<'_, '_>>, sums: Sums) -> Vec<(Checksum, bool)> {
        let (mut copied, mut since_turn) = (Vec::with_capacity(found.len()), 0);
        for Found { segment, bytes, index, op } in found {
            let (mut checksum, mut from) = (sums.of_reads(), bytes.start);
            for part in op.into.iter_mut().flat_map(|buffer| buffer.chunks_mut(CACHED)) {
                segment.bytes.read(from, part);
                checksum.update(part);
                from += part.len() as u64;
                since_turn += part.len();
                if since_turn >= TURN {
                    since_turn = 0;
                    tokio::task::yield_now().await;
                }
            }
            // After the last byte: see the module.
            let good = segment.stamps.as_ref().is_some_and(|stamps| newest(stamps, &bytes) <= index);
            copied.push((checksum.finish(), good));
        }
        copied
    }
}

impl Segments {
    /// Whether every segment has stamps.
    fn are_stamped(&self) -> bool {
        self.by_number.values().all(|segment| segment.stamps.is_some())
    }

    /// Finds the bytes of reads under a grant; `None` if some are not here.
    fn find<'a, 'b>(&'a self, grant: &[u8], ops: &'a mut [ReadOp<'b>]) -> Option<Vec<Found<'a, 'b>>> {
        let ranges = Grant::peek(grant).ok()?.ranges;
        let find = |op: &'a mut ReadOp<'b>| {
            let GrantedRange { segment, offset, len, index } =
                *ranges.get(usize::try_from(op.range).ok()?)?;
            let segment = self.by_number.get(&segment)?;
            let (start, wanted) = (offset.checked_add(op.offset)?, len_of(op));
            let inside = op.offset.checked_add(wanted)? <= len && segment.bytes.contains(start, wanted);
            inside.then_some(Found { segment, bytes: start..start + wanted, index, op })
        };
        ops.iter_mut().map(find).collect()
    }
}

fn len_of(op: &ReadOp<'_>) -> u64 {
    op.into.iter().map(|buffer| buffer.len() as u64).sum()
}

impl Stores {
    /// Forgets segments whose connection has ended.
    fn forget(&self, memory: (StoreId, SegmentEpoch), segments: &Arc<Segments>) {
        let mut stores = self.0.lock();
        if matches!(stores.get(&memory), Some(Reach::Shared(now)) if Arc::ptr_eq(now, segments)) {
            stores.remove(&memory);
        }
    }
}

impl Transport for ShmTransport {
    fn read<'a>(
        &'a self,
        peer: &'a Peer,
        grant: &'a SealedGrant,
        ops: &'a mut [ReadOp<'_>],
        deadline: Instant,
    ) -> BoxFuture<'a, Vec<Result<Checksum, TransferError>>> {
        if self.access == ShmAccess::Off {
            return self.tcp.read(peer, grant, ops, deadline);
        }
        Box::pin(async move {
            let total: u64 = ops.iter().map(len_of).sum();
            let usable = |segments: &Arc<Segments>| total >= WORTH_IT || segments.are_stamped();
            let Some(segments) = self.segments(peer, deadline).await.filter(usable) else {
                return self.tcp.read(peer, grant, ops, deadline).await;
            };
            let Some(found) = segments.find(grant, ops) else {
                return self.tcp.read(peer, grant, ops, deadline).await;
            };
            let Ok(copied) = timeout_at(deadline, Self::copy(found, self.tcp.sums())).await else {
                let (store, address) = (peer.store, socket_name(peer.store, peer.epoch));
                return vec![Err(TransferError::Deadline { store, address }); ops.len()];
            };
            let unsure = || ops.iter().zip(&copied).filter(|(_, (_, good))| !good);
            let asked: Vec<_> = unsure().map(|(op, _)| (op.range, op.offset, len_of(op))).collect();
            let verdicts = match asked.as_slice() {
                [] => Vec::new(),
                asked => self.tcp.check(peer, grant, asked, deadline).await,
            };
            let mut verdicts = verdicts.into_iter();
            let mut verdict = |good| if good { Ok(()) } else { verdicts.next().unwrap_or(Ok(())) };
            let answers: Vec<_> =
                copied.into_iter().map(|(checksum, good)| verdict(good).map(|()| checksum)).collect();
            let good = ops.iter().zip(&answers).filter(|(_, answer)| answer.is_ok());
            (self.on_read)(good.map(|(op, _)| len_of(op)).sum());
            answers
        })
    }

    fn write<'a>(
        &'a self,
        peer: &'a Peer,
        grant: &'a SealedGrant,
        ops: &'a [WriteOp<'_>],
        seal: Seal,
        deadline: Instant,
    ) -> BoxFuture<'a, Vec<Result<Checksum, TransferError>>> {
        self.tcp.write(peer, grant, ops, seal, deadline)
    }
}

impl fmt::Debug for ShmTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmTransport").field("access", &self.access).finish_non_exhaustive()
    }
}
