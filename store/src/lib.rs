//! Lends memory to the pool: allocates and serves it, mounts it at the masters, and keeps it mounted through their
//! failovers.
//!
//! [`Store`] is a value that any process can embed; nothing here is global. [`main_with`] is the process around it,
//! which `mc-store` and `mcctl run store` are.

mod command;
mod config;
mod data;
mod data_dir;
mod descriptors;
mod error;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod fuzz;
mod http;
mod link;
mod metrics;
mod state;
mod store;

pub use command::{command, main_with};
pub use config::{Config, InvalidConfig};
pub use error::StartError;
pub use store::{Store, Surroundings};
