//! Evictions among the committed entries.

use std::collections::{BTreeMap, BTreeSet};

use mc_log::Entry;

use crate::exercised::Exercised;
use crate::replay::{Evicted, Replay};

/// Applies committed entries in the order of the log, as soon as each was seen on a master.
pub(crate) struct Evictions {
    replay: Replay,
    /// Index of the next entry to apply.
    next: u64,
    /// Later ones.
    waiting: BTreeMap<u64, Entry>,
    /// Evicted objects that were not taken yet, with the indexes of the entries.
    found: Vec<(u64, Evicted)>,
    objects: usize,
    groups: usize,
}

impl Evictions {
    pub(crate) fn new() -> Self {
        Self {
            replay: Replay::new(),
            next: 0,
            waiting: BTreeMap::new(),
            found: Vec::new(),
            objects: 0,
            groups: 0,
        }
    }

    /// Takes an entry that was seen to be committed, each once.
    pub(crate) fn committed(&mut self, entry: Entry) {
        self.waiting.insert(entry.log_id.index, entry);
        while let Some(entry) = self.waiting.remove(&self.next) {
            let evicted = self.replay.apply(&entry);
            self.objects += evicted.len();
            let groups: BTreeSet<_> = evicted.iter().filter_map(|it| it.object.group).collect();
            self.groups += groups.len();
            self.found.extend(evicted.into_iter().map(|it| (self.next, it)));
            self.next += 1;
        }
    }

    /// Returns what was evicted since the last call.
    pub(crate) fn take(&mut self) -> Vec<(u64, Evicted)> {
        std::mem::take(&mut self.found)
    }

    pub(crate) fn count(&self, exercised: &mut Exercised) {
        exercised.evictions = self.objects;
        exercised.groups_evicted = self.groups;
    }

    /// The entry that was committed and purged before anybody saw it, if one was. Evictions from there on are not known.
    pub(crate) fn missing(&self) -> Option<u64> {
        (!self.waiting.is_empty()).then_some(self.next)
    }
}
