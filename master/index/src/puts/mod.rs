//! Puts in flight and puts that ended not long ago.

mod deadlines;
mod shard;

use mc_types::{ClusterTime, PutId};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use triomphe::Arc;
use xxhash_rust::xxh3::xxh3_64;

use super::command::{PlacedReplica, PutMode};
use super::cow::{CowMap, CowTable};
use super::key::IndexKey;
use deadlines::Deadlines;
use shard::Shard;

/// Shards of the puts, by a hash of their ids. A snapshot with more than [`ENDED_PER_SHARD`] ended puts in one of them
/// is refused, so number, hash and limit are part of its format.
const SHARDS: usize = 1 << 14;
/// Most ended puts that a shard remembers. One more, while the deadlines of all are still to come, and the half of them
/// whose deadlines are next are forgotten early: a repeated end of those is told apart by the object's version alone.
/// With deadlines of 60 s this begins at about 2,000 puts a second.
///
/// The limit bounds memory (some 20 MB), and what every start and end looks through stays in the cache.
const ENDED_PER_SHARD: usize = 16;
/// Shards that an entry clears of ended puts past their deadline.
const SHARDS_PER_ENTRY: u64 = 16;

/// A put in flight: its bytes are allocated, nothing is visible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Put {
    pub(super) key: IndexKey,
    pub(super) size: u64,
    pub(super) mode: PutMode,
    pub(super) deadline: ClusterTime,
    /// The answer, kept so that the same put gets the same answer even if a store died since.
    pub(super) replicas: SmallVec<[PutReplica; 1]>,
}

/// A replica to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PutReplica {
    /// Number of the segment within the cluster.
    pub(super) segment: u32,
    pub(super) placed: PlacedReplica,
}

/// How a put ended, kept so that a repeated end gets the same answer: until its deadline, or until its shard is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    pub(super) deadline: ClusterTime,
}

/// Answer of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Outcome {
    /// It made the object.
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
pub(super) enum PutState {
    InFlight(Arc<Put>),
    Ended(Ended),
}

/// Puts in flight and puts that ended not long ago by id.
///
/// Which ended puts are known depends on the puts and the cluster's time alone: neither on the order within a shard,
/// so that puts rebuilt from a snapshot act as those that were written, nor on how far the forgetting of due ones has
/// got.
#[derive(Clone)]
pub(super) struct Puts {
    shards: Shards,
    deadlines: Deadlines,
}

type Shards = CowTable<Shard, { SHARDS / 2048 }>;

const _: () = assert!(SHARDS == Shards::SLOTS);

/// Ids are random, but nothing forces a client to draw them so: the hash spreads those that count or repeat a half.
pub(super) fn shard_of(id: PutId) -> u32 {
    (xxh3_64(&id.0.to_le_bytes()) >> (64 - SHARDS.ilog2())) as u32
}

fn is_in_flight(shards: &Shards, id: PutId, deadline: ClusterTime) -> bool {
    shards.get(shard_of(id)).in_flight(id).is_some_and(|put| put.deadline == deadline)
}

impl Puts {
    pub(super) fn new() -> Self {
        Self { shards: CowTable::new(), deadlines: Deadlines::new() }
    }

    pub(super) fn in_flight(&self, id: PutId) -> Option<&Arc<Put>> {
        self.shards.get(shard_of(id)).in_flight(id)
    }

    pub(super) fn ended(&self, id: PutId) -> Option<&Ended> {
        self.shards.get(shard_of(id)).ended(id)
    }

    /// Puts in flight, by id: the order of a snapshot.
    pub(super) fn all_in_flight(&self) -> Vec<(PutId, &Put)> {
        let mut all: Vec<_> = self.shards.iter().flat_map(Shard::iter_in_flight).collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all
    }

    /// Puts that ended, by id.
    pub(super) fn all_ended(&self) -> Vec<(PutId, Ended)> {
        let mut all: Vec<_> = self.shards.iter().flat_map(Shard::iter_ended).collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all
    }

    /// How many are in flight.
    pub(super) fn len_in_flight(&self) -> usize {
        self.deadlines.in_flight()
    }

    /// The earliest deadline of a put in flight.
    pub(super) fn next_deadline(&self) -> Option<ClusterTime> {
        self.deadlines.first()
    }

    /// Puts in flight whose deadline has come, by deadline and id, at most `limit` of them.
    pub(super) fn due(&self, now: ClusterTime, limit: usize) -> Vec<PutId> {
        self.deadlines.due(now, limit, |id, deadline| is_in_flight(&self.shards, id, deadline))
    }

    pub(super) fn start(&mut self, id: PutId, put: Put) {
        self.deadlines.add(put.deadline, id);
        self.shards.get_mut(shard_of(id)).start(id, put);
    }

    /// A put is in flight no longer.
    fn left(&mut self, put: &Put) {
        self.deadlines.remove(put.deadline, |id| is_in_flight(&self.shards, id, put.deadline));
    }

    /// Whether one more put that ends is remembered beside all that its shard remembers.
    pub(super) fn has_room_for(&self, id: PutId) -> bool {
        !self.shards.get(shard_of(id)).is_full()
    }

    /// Records how a put ended, which is no longer in flight.
    pub(super) fn end(&mut self, id: PutId, ended: Ended, now: ClusterTime) {
        let shard = self.shards.get_mut(shard_of(id));
        let put = shard.take_in_flight(id);
        shard.end(id, ended, now);
        if let Some(put) = put {
            self.left(&put);
        }
    }

    /// Forgets a put in flight.
    pub(super) fn forget(&mut self, id: PutId) -> Option<Arc<Put>> {
        self.in_flight(id)?;
        let put = self.shards.get_mut(shard_of(id)).take_in_flight(id)?;
        self.left(&put);
        Some(put)
    }

    /// Forgets ended puts whose deadline has come and that share a shard with this one.
    pub(super) fn forget_due_beside(&mut self, id: PutId, now: ClusterTime) {
        self.shards.get_mut(shard_of(id)).forget_due(now);
    }

    /// Forgets ended puts whose deadline has come, in the few shards that are this log entry's turn. It saves memory;
    /// whoever asks for a put looks at its deadline.
    pub(super) fn forget_due(&mut self, index: u64, now: ClusterTime) {
        for turn in 0..SHARDS_PER_ENTRY {
            let shard = (index.wrapping_mul(SHARDS_PER_ENTRY).wrapping_add(turn) % SHARDS as u64) as u32;
            if self.shards.get(shard).has_due(now) {
                self.shards.get_mut(shard).forget_due(now);
            }
        }
    }

    /// Reads what a start or an end of that put is going to read, so that the cache has it.
    pub(super) fn touch(&self, id: PutId) -> u64 {
        self.shards.get(shard_of(id)).touch()
    }
}
