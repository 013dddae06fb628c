//! The process around a store: flags, health, metrics, signals. `mc-store` and `mcctl run store` are this.

mod args;
mod command;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod fuzz;
mod http;
mod metrics;
mod server;

pub use args::StoreArgs;
pub use command::{command, main_with};
pub use server::Server;
