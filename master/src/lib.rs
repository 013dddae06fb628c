//! The replicated index of mc.

mod api;
pub mod config;
mod data_disk;
pub mod formation;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod fuzz;
mod http;
pub mod identity;
mod leader;
mod life;
mod master;
mod metrics;
mod overruled;
pub mod peers;
mod process;
pub mod rescue;
mod setting;

pub use master::{Environment, Master, StartError};
pub use process::main_with;
