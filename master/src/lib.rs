//! The replicated index of mc.

mod api;
pub mod config;
mod data_disk;
pub mod formation;
#[doc(hidden)]
pub mod fuzz;
mod http;
pub mod identity;
mod leader;
mod life;
pub mod log;
mod master;
mod metrics;
mod overruled;
pub mod peers;
mod process;
pub mod raft;
pub mod rescue;
mod setting;
pub mod state;

pub use master::{Environment, Master, StartError};
pub use process::main_with;
