//! A master from its start to its end.
//!
//! `process` (flags, runtimes, signals) uses `master` (start and stop), which uses `tasks`: everything that runs between
//! the two. `serve` and `leaders` are tasks; the other parts are what these are made of.

mod environment;
mod error;
mod ignored_flags;
mod leaders;
mod leave;
mod listeners;
mod log;
mod master;
mod process;
mod serve;
mod tasks;

pub use environment::Environment;
pub use error::StartError;
pub use master::Master;
pub use process::main_with;
