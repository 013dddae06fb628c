use std::collections::HashMap;

use mc_types::{ClusterTime, PutId};
use parking_lot::Mutex;

const SHARDS: usize = 64;

/// Read leases: until when each version may be in use by somebody who was told its placement.
///
/// A lease makes a remove without `force` fail and lets eviction skip the object. It is not what keeps bytes from being
/// reused under a reader: the holding time of a removed version does (see [`super::Leading::hold_until`]), and
/// on TCP the store's fence.
#[derive(Debug)]
pub(crate) struct Leases {
    shards: Vec<Mutex<HashMap<PutId, ClusterTime>>>,
}

impl Leases {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, version: PutId) -> &Mutex<HashMap<PutId, ClusterTime>> {
        // Versions are random: their low bits are as good as a hash.
        &self.shards[(version.0 % SHARDS as u128) as usize]
    }

    /// Notes a lease; a shorter one never shortens a longer one.
    pub(crate) fn grant(&self, version: PutId, until: ClusterTime) {
        let mut shard = self.shard(version).lock();
        let end = shard.entry(version).or_insert(until);
        *end = (*end).max(until);
    }

    /// Whether a lease on `version` runs at `now`.
    pub(crate) fn holds(&self, version: PutId, now: ClusterTime) -> bool {
        self.shard(version).lock().get(&version).is_some_and(|end| *end > now)
    }

    /// Forgets the leases that have ended.
    pub(crate) fn sweep(&self, now: ClusterTime) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.retain(|_, end| *end > now);
            if shard.capacity() > 4 * shard.len() + 1024 {
                shard.shrink_to_fit();
            }
        }
    }

    /// Leases that are remembered.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_runs_until_its_latest_end_and_is_then_forgotten() {
        let leases = Leases::new();
        let version = PutId(7);
        leases.grant(version, ClusterTime(20));
        leases.grant(version, ClusterTime(10));
        assert!(leases.holds(version, ClusterTime(19)));
        assert!(!leases.holds(version, ClusterTime(20)));
        assert!(!leases.holds(PutId(8), ClusterTime(0)));
        leases.sweep(ClusterTime(19));
        assert_eq!(leases.len(), 1);
        leases.sweep(ClusterTime(20));
        assert_eq!(leases.len(), 0);
    }
}
