//! A master of an mc pool: the replicated index of which key lies where, and the API to it.

mod answer_room;
mod api;
mod config;
mod data_disk;
mod departed;
mod formation;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod fuzz;
mod http;
mod identity;
mod leader;
mod life;
mod master;
mod metrics;
mod mooncake;
mod overruled;
mod peers;
mod ports;
mod process;
mod rescue;
mod setting;

pub use config::{MasterArgs, MasterConfigError};
pub use formation::{BoundAddresses, FormationError};
pub use identity::IdentityError;
pub use master::{Environment, Master, StartError};
pub use metrics::metrics_reference;
pub use mooncake::mooncake_metrics_reference;
pub use peers::{DEFAULT_RAFT_PORT, PeersError};
pub use process::main_with;
pub use rescue::{Found, Rescue, RescueError, Rescued};
pub use setting::{SettingReference, settings_reference};
