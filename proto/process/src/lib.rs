//! Parts of a process of mc besides its work.
//!
//! - [`config`]: flags over environment over file over default, and where each value came from.
//! - [`http`], [`metrics`], [`telemetry`]: how a process is watched.
//! - [`raise_descriptor_limit`]: room for many connections.
//! - [`stdin_eof`]: the end of the process that started this one.

pub mod config;
mod descriptors;
pub mod http;
pub mod metrics;
mod stdin;
pub mod telemetry;

pub use descriptors::raise_descriptor_limit;
pub use stdin::stdin_eof;
