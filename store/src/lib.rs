//! A store: allocates memory, serves it, mounts it at the masters, and keeps it mounted through their failovers.
//!
//! [`Store`] is a value that any process can embed; nothing here is global. `mc-store-server` is the process around it.

mod config;
mod data;
mod data_dir;
mod descriptors;
mod error;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod fuzz;
mod link;
mod masters;
mod segments;
mod state;
mod store;
mod transports;

pub use config::{Config, InvalidConfig};
pub use data::Totals;
pub use error::StartError;
pub use masters::MasterList;
pub use segments::{SegmentError, Segments};
pub use state::{StoreReport, StoreStatus};
pub use store::{Opened, Store, Surroundings};
pub use transports::TransportReport;
