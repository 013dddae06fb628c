use std::sync::Arc;

use mc_base::{ClusterTime, PutId};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::command::{PlacedReplica, PutMode};
use super::cow::CowMap;

/// Most ended puts that are remembered; past that the ones whose deadline is next are forgotten early, and a repeated
/// end is told apart by the object's version alone. It bounds memory (some 30 MB), and a small map stays in the cache:
/// every start and end looks here.
pub(super) const ENDED_MAX: usize = 1 << 18;

/// A put in flight: its bytes are allocated, nothing is visible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Put {
    /// Index key.
    pub(super) key: Box<[u8]>,
    pub(super) size: u64,
    pub(super) mode: PutMode,
    pub(super) deadline: ClusterTime,
    /// What was answered, kept so that the same put gets the same answer even if a store died since.
    pub(super) replicas: SmallVec<[PutReplica; 1]>,
}

/// A replica to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PutReplica {
    /// Number of the segment within the cluster.
    pub(super) segment: u32,
    pub(super) placed: PlacedReplica,
}

/// How a put ended, kept until its deadline so that a repeated end gets the same answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    pub(super) deadline: ClusterTime,
}

/// What an end answered.
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

#[derive(Clone)]
pub(super) enum PutState {
    InFlight(Arc<Put>),
    Ended(Ended),
}

impl PutState {
    fn deadline(&self) -> ClusterTime {
        match self {
            Self::InFlight(put) => put.deadline,
            Self::Ended(ended) => ended.deadline,
        }
    }
}

/// Puts in flight and puts that ended not long ago, by id and by deadline.
#[derive(Clone)]
pub(super) struct Puts {
    by_id: CowMap<PutId, PutState>,
    in_flight: CowMap<(ClusterTime, PutId), ()>,
    ended: CowMap<(ClusterTime, PutId), ()>,
}

impl Puts {
    pub(super) fn new() -> Self {
        Self { by_id: CowMap::new(), in_flight: CowMap::new(), ended: CowMap::new() }
    }

    pub(super) fn get(&self, id: PutId) -> Option<&PutState> {
        self.by_id.get(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (PutId, &PutState)> {
        self.by_id.iter().map(|(&id, put)| (id, put))
    }

    /// Puts in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// The earliest deadline of a put in flight.
    pub(super) fn next_deadline(&self) -> Option<ClusterTime> {
        self.in_flight.first().map(|(&(deadline, _), ())| deadline)
    }

    /// A put in flight whose deadline has come.
    pub(super) fn first_due(&self, now: ClusterTime) -> Option<PutId> {
        self.in_flight.first().filter(|(key, ())| key.0 <= now).map(|(&(_, id), ())| id)
    }

    pub(super) fn start(&mut self, id: PutId, put: Put) {
        self.in_flight.insert((put.deadline, id), ());
        self.by_id.insert(id, PutState::InFlight(Arc::new(put)));
    }

    /// Records how a put in flight ended.
    pub(super) fn end(&mut self, id: PutId, ended: Ended) {
        self.in_flight.remove(&(ended.deadline, id));
        self.ended.insert((ended.deadline, id), ());
        self.by_id.insert(id, PutState::Ended(ended));
        if self.ended.len() > ENDED_MAX
            && let Some((&(_, oldest), ())) = self.ended.first()
        {
            self.forget(oldest);
        }
    }

    /// Forgets a put, in flight or ended.
    pub(super) fn forget(&mut self, id: PutId) -> Option<PutState> {
        let state = self.by_id.remove(&id)?;
        let key = (state.deadline(), id);
        match &state {
            PutState::InFlight(_) => self.in_flight.remove(&key),
            PutState::Ended(_) => self.ended.remove(&key),
        };
        Some(state)
    }

    /// Forgets ended puts whose deadline has come, at most `limit` of them.
    pub(super) fn forget_due(&mut self, now: ClusterTime, limit: usize) {
        for _ in 0..limit {
            match self.ended.first() {
                Some((&(deadline, id), ())) if deadline <= now => drop(self.forget(id)),
                _ => return,
            }
        }
    }
}
