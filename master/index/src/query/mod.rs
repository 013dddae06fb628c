//! Queries of the index, by subject. Reads [`State`] alone, and no part of this room uses another.

mod clearing;
pub(crate) mod limits;
mod list;
mod objects;
mod puts;
mod stores;

use mc_types::ClusterTime;

use crate::command::Settings;
use crate::state::State;

pub use clearing::{Clearing, ClearingObject, Fit, SegmentRange};
pub use limits::TenantView;
pub use list::{KeyPage, ListedObject};
pub use objects::{EvictionUnit, GroupView, HashedObject, ObjectAge, ObjectView};
pub use puts::PutView;
pub use stores::{HeldRange, Memory, SegmentView, StoreView, Usage};

impl State {
    /// Cluster time as of the last applied entry.
    #[must_use]
    pub fn time(&self) -> ClusterTime {
        self.time
    }

    /// The replicated settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The cluster version: the lowest version that all members support.
    #[must_use]
    pub fn cluster_version(&self) -> u32 {
        self.cluster_version
    }

    /// Whether objects of dropped stores, or objects that a `remove_all` has removed, are left to sweep.
    #[must_use]
    pub fn needs_sweep(&self) -> bool {
        self.segments.next_to_sweep().is_some() || self.tenants.has_marks()
    }

    /// Time of the next put deadline or release of held bytes, at which a tick has something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<ClusterTime> {
        let held = self.segments.next_release();
        [self.puts.next_deadline(), held].into_iter().flatten().min()
    }

    /// Returns the value of an entry of the key-value table.
    #[must_use]
    pub fn key_value(&self, key: &[u8]) -> Option<&[u8]> {
        self.key_values.get(key)
    }
}
