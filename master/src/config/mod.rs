//! Configuration of a master: its flags, the list of its peers, and the replicated settings of its cluster.
//!
//! `args` uses `peers` and `setting`.

mod args;
mod peers;
mod setting;

pub use args::{MasterArgs, MasterConfigError, MetadataAccess};
pub use peers::{DEFAULT_RAFT_PORT, PeersError};
pub(crate) use peers::{Entries, Expansion, PeerList, Resolver, list, system_resolver};
pub(crate) use setting::{SETTINGS, Setting};
pub use setting::{SettingReference, settings_reference};
