//! The list of masters, which may change while the store runs.

use std::sync::Arc;

use mc_types::HostPort;
use tracing::info;

use crate::config::InvalidConfig;
use crate::state::StoreState;

/// Changes the list of masters of a store while it runs, so that it keeps its memory when all masters have moved at once.
/// Clones are handles of the same store.
#[derive(Clone)]
pub struct MasterList(pub(crate) Arc<StoreState>);

impl MasterList {
    /// Returns the list.
    #[must_use]
    pub fn get(&self) -> Vec<HostPort> {
        self.0.masters.borrow().clone()
    }

    /// Replaces the list. Masters that the store knows from others stay known, and a session with a leader goes on.
    ///
    /// # Errors
    /// [`InvalidConfig::NoMasters`]; the list then stays as it is.
    pub fn set(&self, masters: Vec<HostPort>) -> Result<(), InvalidConfig> {
        if masters.is_empty() {
            return Err(InvalidConfig::NoMasters);
        }
        let names = masters.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let changed = self.0.masters.send_if_modified(|list| {
            let changed = *list != masters;
            *list = masters;
            changed
        });
        if changed {
            info!(masters = names, "the list of masters was changed");
        }
        Ok(())
    }
}

impl std::fmt::Debug for MasterList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("MasterList").field(&self.get()).finish()
    }
}
