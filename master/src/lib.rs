//! A master of an mc pool: the replicated index of which key lies where, and the API to it.
//!
//! Each room uses the ones before it: `config`, `metrics`, `data_dir`, `audit`, `formation`, `leader`, `judged`, `access`, `api`,
//! `mooncake`, `http`, `run`.

mod access;
mod api;
mod audit;
mod config;
mod data_dir;
mod formation;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod fuzz;
mod http;
mod judged;
mod leader;
mod metrics;
mod mooncake;
mod run;
#[cfg(test)]
mod tests;

pub use access::calls_reference;
pub use config::{
    DEFAULT_RAFT_PORT, MasterArgs, MasterConfigError, MetadataAccess, PeersError, SettingReference,
    settings_reference,
};
pub use data_dir::{IdentityError, Prepared, Rescue, RescueError, Rescued};
pub use formation::{BoundAddresses, FormationError};
pub use metrics::metrics_reference;
pub use mooncake::mooncake_metrics_reference;
pub use run::{Environment, Master, StartError, main_with};
