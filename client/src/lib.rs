//! The Rust client library of mc, a replicated pool of memory for KV caches.
//!
//! [`Client`] finds the leader from any master, moves bytes directly between the caller's buffers and the stores,
//! retries what can be retried, and answers from its [local cache](Builder::local_cache) when no leader is in reach;
//! what is put meanwhile stays there, and is published later if [that is asked for](Builder::publish_local).
//! [`Admin`] asks the masters about themselves.
//!
//! Runnable examples are in `client/examples/`: `put_get`, `batches` and `outcomes`, as in
//! `cargo run -p mc-client --example put_get -- 127.0.0.1:50051`.

mod admin;
mod api;
mod avoid;
mod batch;
mod cache;
mod call;
mod channels;
mod core;
mod discover;
mod embedded;
mod error;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod fuzz;
mod get;
mod identity;
mod keys;
mod leader;
mod list;
mod masters;
mod metrics;
mod options;
mod placement;
mod publish;
mod put;
mod refusal;
mod round;
mod rpc;

pub use admin::{Admin, ClusterStatus, Lookup, MasterReport, PlacedReplica};
pub use api::{Client, GetInto, PutFrom};
pub use error::{ConnectError, Error, Outcome};
pub use keys::Presence;
pub use mc_transfer::{RegisterError, RegisteredMemory, Segment};
pub use mc_types::{ByteSize, ClusterId, Code, NodeId, ParseAddressError, PutId, StoreId};
pub use metrics::Stats;
pub use options::{Builder, DEFAULT_MASTER_PORT, Mode, Put, PutMode, PutOptions};
