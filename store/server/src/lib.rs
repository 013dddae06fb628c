//! The process around a store: flags, health, metrics, signals. Both `mc-store` and `mcctl run store` use it.

mod args;
mod command;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod fuzz;
mod http;
mod masters;
mod metrics;
mod segments;
mod server;

pub use args::{StoreArgs, command, with_flags};
pub use command::main_with;
pub use metrics::metrics_reference;
pub use server::Server;
