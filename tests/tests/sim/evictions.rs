//! Evictions among the committed entries.

use std::collections::BTreeSet;

use mc_log::Entry;
use mc_types::{GrantKey, StoreId};

use crate::exercised::Exercised;
use crate::replay::{Evicted, Replay};

/// Applies committed entries in the order of the log.
pub(crate) struct Evictions {
    replay: Replay,
    /// Evicted objects that were not taken yet, with the indexes of the entries.
    found: Vec<(u64, Evicted)>,
    objects: usize,
    groups: usize,
}

impl Evictions {
    pub(crate) fn new() -> Self {
        Self { replay: Replay::new(), found: Vec::new(), objects: 0, groups: 0 }
    }

    /// Takes the next committed entry.
    pub(crate) fn committed(&mut self, entry: &Entry) {
        let evicted = self.replay.apply(entry);
        self.objects += evicted.len();
        let groups: BTreeSet<_> = evicted.iter().filter_map(|it| it.object.group).collect();
        self.groups += groups.len();
        self.found.extend(evicted.into_iter().map(|it| (entry.log_id.index, it)));
    }

    /// Returns what was evicted since the last call.
    pub(crate) fn take(&mut self) -> Vec<(u64, Evicted)> {
        std::mem::take(&mut self.found)
    }

    /// Keys of the grants of all mounted stores.
    pub(crate) fn grant_keys(&self) -> impl Iterator<Item = (StoreId, GrantKey)> {
        let state = self.replay.state();
        state.mounted().filter_map(|(store, _)| Some((store, *state.store(store)?.grant_key)))
    }

    pub(crate) fn count(&self, exercised: &mut Exercised) {
        exercised.evictions = self.objects;
        exercised.groups_evicted = self.groups;
    }
}
