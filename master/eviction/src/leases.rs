use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hashbrown::HashMap;
use mc_types::{ClusterTime, PutId};
use parking_lot::Mutex;

const SHARDS: usize = 64;

/// End of the lease of a version that is being evicted: no lease is granted on it, whatever the time.
const EVICTING: ClusterTime = ClusterTime(u64::MAX);

/// Read leases: the time until which each version may be in use by a client that was told its placement.
///
/// A lease makes a remove without `force` fail, and protects the object from eviction. It does not keep bytes from being
/// reused under a reader: a removed version's holding time does that and, on TCP, the store's fence.
///
/// An eviction marks a version before it proposes the entry. A mark and a lease exclude each other, because both are
/// made under the lock of the version's shard: a reader either gets its lease first, and the version is not evicted, or
/// finds the mark, and waits for the entry's outcome.
#[derive(Debug)]
pub struct Leases {
    shards: Vec<Mutex<HashMap<PutId, Lease>>>,
    /// Bytes of leased versions at the last [`Self::sweep`].
    bytes: AtomicU64,
    /// Whether marks were taken back since [`Self::marks_taken_back`] was asked last.
    taken_back: AtomicBool,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    end: ClusterTime,
    /// Bytes of all replicas.
    bytes: u64,
}

impl Default for Leases {
    fn default() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, bytes: AtomicU64::new(0), taken_back: AtomicBool::new(false) }
    }
}

impl Leases {
    /// Creates an empty set of leases.
    pub fn new() -> Self {
        Self::default()
    }

    fn shard(&self, version: PutId) -> &Mutex<HashMap<PutId, Lease>> {
        // Versions are random: their low bits are as good as a hash.
        &self.shards[(version.0 % SHARDS as u128) as usize]
    }

    /// Records a lease of a version whose replicas have so many bytes. It never shortens a longer one. Returns false,
    /// without a lease, if the version is being evicted.
    #[must_use]
    pub fn grant(&self, version: PutId, bytes: u64, until: ClusterTime) -> bool {
        let mut shard = self.shard(version).lock();
        let Lease { end, .. } = shard.entry(version).or_insert(Lease { end: until, bytes });
        if *end == EVICTING {
            return false;
        }
        *end = (*end).max(until);
        true
    }

    /// Whether a lease on `version` still runs at `now`.
    #[must_use]
    pub fn holds(&self, version: PutId, now: ClusterTime) -> bool {
        self.shard(version).lock().get(&version).is_some_and(|lease| lease.end > now && lease.end != EVICTING)
    }

    /// Marks a version as being evicted. Returns false, without a mark, while a lease on it runs.
    #[must_use]
    pub fn mark(&self, version: PutId, now: ClusterTime) -> bool {
        let mut shard = self.shard(version).lock();
        let Lease { end, .. } = shard.entry(version).or_insert(Lease { end: EVICTING, bytes: 0 });
        if *end > now && *end != EVICTING {
            return false;
        }
        *end = EVICTING;
        true
    }

    /// Removes the marks of versions that are not going to be evicted after all, because another one is leased.
    pub(crate) fn take_back(&self, versions: impl Iterator<Item = PutId>) {
        for version in versions {
            self.unmark(version);
            self.taken_back.store(true, Ordering::Relaxed);
        }
    }

    /// Whether marks were taken back since the last call. A reader that met one waits for an outcome: the caller wakes it.
    #[must_use]
    pub fn marks_taken_back(&self) -> bool {
        self.taken_back.swap(false, Ordering::Relaxed)
    }

    /// Removes the mark of a version whose eviction is decided, either way.
    pub fn unmark(&self, version: PutId) {
        let mut shard = self.shard(version).lock();
        if shard.get(&version).is_some_and(|lease| lease.end == EVICTING) {
            shard.remove(&version);
        }
    }

    /// Forgets the leases that have ended.
    pub fn sweep(&self, now: ClusterTime) {
        let mut bytes = 0;
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.retain(|_, lease| {
                let runs = lease.end > now;
                if runs && lease.end != EVICTING {
                    bytes += lease.bytes;
                }
                runs
            });
            if shard.capacity() > 4 * shard.len() + 1024 {
                shard.shrink_to_fit();
            }
        }
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// Bytes of the replicas of leased versions, as of the last sweep.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Number of remembered leases and marks.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Whether no lease and no mark is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_runs_until_its_latest_end_and_is_then_forgotten() {
        let leases = Leases::new();
        let version = PutId(7);
        assert!(leases.grant(version, 300, ClusterTime(20)) && leases.grant(version, 300, ClusterTime(10)));
        assert!(leases.holds(version, ClusterTime(19)));
        assert!(!leases.holds(version, ClusterTime(20)));
        assert!(!leases.holds(PutId(8), ClusterTime(0)));
        leases.sweep(ClusterTime(19));
        assert_eq!((leases.len(), leases.bytes()), (1, 300));
        leases.sweep(ClusterTime(20));
        assert!(leases.is_empty() && leases.bytes() == 0);
    }

    #[test]
    fn a_version_is_leased_or_being_evicted_but_never_both() {
        let leases = Leases::new();
        let version = PutId(7);
        assert!(leases.grant(version, 300, ClusterTime(20)));
        assert!(!leases.mark(version, ClusterTime(19)), "its lease runs");
        assert!(leases.mark(version, ClusterTime(20)));
        assert!(leases.mark(version, ClusterTime(20)), "an eviction that is tried again");
        assert!(!leases.grant(version, 300, ClusterTime(90)), "it is being evicted");
        assert!(!leases.holds(version, ClusterTime(20)), "a mark is no lease");
        leases.sweep(ClusterTime(1000));
        assert!(!leases.grant(version, 300, ClusterTime(2000)), "a mark does not end with the time");
        leases.unmark(version);
        assert!(leases.grant(version, 300, ClusterTime(2000)) && leases.holds(version, ClusterTime(1999)));
        leases.unmark(version);
        assert!(leases.holds(version, ClusterTime(1999)), "a lease is no mark");
    }
}
