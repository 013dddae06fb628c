//! Puts in flight, and recently ended puts.

mod deadlines;
mod shard;

use mc_types::{ClusterTime, PutId, PutMode};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use triomphe::Arc;
use xxhash_rust::xxh3::xxh3_64;

use crate::alloc::allocated;
use crate::command::{Pin, PlacedReplica};
use crate::cow::{CowMap, CowTable};
use crate::key::{GroupId, IndexKey, KeyHash};
use crate::tenants::Share;
use deadlines::Deadlines;
use shard::Shard;

/// Number of shards of the puts, by a hash of their ids. A snapshot with more than [`ENDED_PER_SHARD`] ended puts in
/// one shard is refused, so the number, the hash and the limit are part of its format.
pub(crate) const SHARDS: usize = 1 << 14;
/// Maximum number of ended puts that a shard remembers.
///
/// When one more put ends before any of their deadlines, the shard forgets the half with the earliest deadlines. A
/// repeated end of such a put is recognised by the object's version alone. With deadlines of 60 s this begins at about
/// 2,000 puts a second. The limit bounds memory (some 20 MB), and keeps in the cache the ids that starts and ends
/// search.
pub(crate) const ENDED_PER_SHARD: usize = 16;
/// Number of shards that each entry clears of ended puts past their deadline.
pub(crate) const SHARDS_PER_ENTRY: u64 = 16;

/// A put in flight: its bytes are allocated, but no object is visible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Put {
    pub(crate) key: IndexKey,
    pub(crate) size: u64,
    pub(crate) mode: PutMode,
    pub(crate) deadline: ClusterTime,
    /// Pin of the object that it makes.
    pub(crate) pin: Pin,
    pub(crate) data_type: u8,
    /// Group that the object joins.
    pub(crate) group: Option<GroupId>,
    /// Replicas as answered to the start, kept so that a repeated start gets the same answer even if a store has died.
    pub(crate) replicas: SmallVec<[PutReplica; 1]>,
}

impl Put {
    /// Share of the put in the usage of its tenant.
    pub(crate) fn share(&self) -> Share {
        Share::of(self.bytes(), self.pin)
    }

    /// Bytes of its replicas, each rounded up to the alignment.
    fn bytes(&self) -> u64 {
        allocated(self.size) * self.replicas.len() as u64
    }
}

/// A replica to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PutReplica {
    /// Number of the segment within the cluster.
    pub(crate) segment: u32,
    pub(crate) placed: PlacedReplica,
}

/// Outcome and deadline of an ended put, for the answers to repeated ends. Kept until that deadline or a full shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    pub(crate) deadline: ClusterTime,
}

/// Outcome of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// The put made the object.
    Visible {
        /// The version that it replaced.
        replaced: Option<PutId>,
    },
    /// Another put of the key was first.
    Exists,
    /// No replica was written.
    Failed,
}

/// State of a put.
#[derive(Clone)]
pub(crate) enum PutState {
    InFlight(Arc<Put>),
    Ended(Ended),
}

/// Puts in flight and recently ended puts, by id.
///
/// Which ended puts are known depends on the puts and the cluster's time alone. It depends neither on the order within
/// a shard, so that puts restored from a snapshot act as the original ones, nor on how far the clearing of due puts has
/// got.
#[derive(Clone)]
pub(crate) struct Puts {
    shards: Shards,
    deadlines: Deadlines,
    /// Number of puts in flight of each key, by its hash.
    of_key: CowMap<u64, u32>,
    /// Bytes of the puts in flight.
    bytes: u64,
}

type Shards = CowTable<Shard, { SHARDS / 2048 }>;

const _: () = assert!(SHARDS == Shards::SLOTS);

/// Returns the shard of an id by a hash, which also spreads ids that clients count up or build from a repeated half.
pub(crate) fn shard_of(id: PutId) -> u32 {
    (xxh3_64(&id.0.to_le_bytes()) >> (64 - SHARDS.ilog2())) as u32
}

fn is_in_flight(shards: &Shards, id: PutId, deadline: ClusterTime) -> bool {
    shards.get(shard_of(id)).in_flight(id).is_some_and(|put| put.deadline == deadline)
}

impl Puts {
    pub(crate) fn new() -> Self {
        Self { shards: CowTable::new(), deadlines: Deadlines::new(), of_key: CowMap::new(), bytes: 0 }
    }

    pub(crate) fn in_flight(&self, id: PutId) -> Option<&Arc<Put>> {
        self.shards.get(shard_of(id)).in_flight(id)
    }

    pub(crate) fn ended(&self, id: PutId) -> Option<&Ended> {
        self.shards.get(shard_of(id)).ended(id)
    }

    /// Whether a put of a key with this hash is in flight.
    pub(crate) fn is_being_written(&self, key: KeyHash) -> bool {
        self.of_key.contains(&key.to_u64())
    }

    /// Lists the puts in flight by id, which is their order in a snapshot.
    pub(crate) fn all_in_flight(&self) -> Vec<(PutId, &Put)> {
        let mut all: Vec<_> = self.shards.iter().flat_map(Shard::iter_in_flight).collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all
    }

    /// Lists the ended puts by id.
    pub(crate) fn all_ended(&self) -> Vec<(PutId, Ended)> {
        let mut all: Vec<_> = self.shards.iter().flat_map(Shard::iter_ended).collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all
    }

    /// Number of puts in flight.
    pub(crate) fn len_in_flight(&self) -> usize {
        self.deadlines.in_flight()
    }

    /// Bytes of the replicas of the puts in flight, each rounded up to the alignment.
    pub(crate) fn bytes_in_flight(&self) -> u64 {
        self.bytes
    }

    /// The earliest deadline of a put in flight.
    pub(crate) fn next_deadline(&self) -> Option<ClusterTime> {
        self.deadlines.first()
    }

    /// Lists puts in flight whose deadline has come, by deadline and id, at most `limit` of them.
    pub(crate) fn due(&self, now: ClusterTime, limit: usize) -> Vec<PutId> {
        self.deadlines.due(now, limit, |id, deadline| is_in_flight(&self.shards, id, deadline))
    }

    pub(crate) fn start(&mut self, id: PutId, put: Put) {
        self.deadlines.add(put.deadline, id);
        self.bytes = self.bytes.saturating_add(put.bytes());
        let key = put.key.hash().to_u64();
        let others = self.of_key.get(&key).copied().unwrap_or_default();
        self.of_key.insert(key, others + 1);
        self.shards.get_mut(shard_of(id)).start(id, put);
    }

    /// Updates the deadlines, the keys and the bytes for a put that is no longer in flight.
    fn left(&mut self, put: &Put) {
        self.bytes = self.bytes.saturating_sub(put.bytes());
        let key = put.key.hash().to_u64();
        match self.of_key.get(&key).copied().unwrap_or_default() {
            0 | 1 => self.of_key.remove(&key),
            count => self.of_key.insert(key, count - 1),
        };
        self.deadlines.remove(put.deadline, |id| is_in_flight(&self.shards, id, put.deadline));
    }

    /// Whether the shard of this id can remember one more ended put without forgetting any.
    pub(crate) fn has_room_for(&self, id: PutId) -> bool {
        !self.shards.get(shard_of(id)).is_full()
    }

    /// Moves a put from in flight to ended, and records its outcome.
    pub(crate) fn end(&mut self, id: PutId, ended: Ended, now: ClusterTime) {
        let shard = self.shards.get_mut(shard_of(id));
        let put = shard.take_in_flight(id);
        shard.end(id, ended, now);
        if let Some(put) = put {
            self.left(&put);
        }
    }

    /// Removes and returns a put in flight.
    pub(crate) fn forget(&mut self, id: PutId) -> Option<Arc<Put>> {
        self.in_flight(id)?;
        let put = self.shards.get_mut(shard_of(id)).take_in_flight(id)?;
        self.left(&put);
        Some(put)
    }

    /// Forgets ended puts in the shard of this id whose deadline has come.
    pub(crate) fn forget_due_beside(&mut self, id: PutId, now: ClusterTime) {
        self.shards.get_mut(shard_of(id)).forget_due(now);
    }

    /// Forgets ended puts whose deadline has come, in the few shards that are this log entry's turn. It only saves
    /// memory: callers check the deadline of every put that they find.
    pub(crate) fn forget_due(&mut self, index: u64, now: ClusterTime) {
        for turn in 0..SHARDS_PER_ENTRY {
            let shard = (index.wrapping_mul(SHARDS_PER_ENTRY).wrapping_add(turn) % SHARDS as u64) as u32;
            if self.shards.get(shard).has_due(now) {
                self.shards.get_mut(shard).forget_due(now);
            }
        }
    }

    /// Reads the memory that a start or an end of that put is going to read, to bring it into the cache.
    pub(crate) fn prefetch(&self, id: PutId) -> u64 {
        self.shards.get(shard_of(id)).prefetch()
    }
}
