//! Parts that every process of mc needs besides its own work.
//!
//! - [`config`]: flags over environment over file over default, with the origin of each value.
//! - [`http`], [`metrics`], [`telemetry`]: monitoring of a process.
//! - [`HttpAccess`]: who may ask for which HTTP route.
//! - [`keep_files_private`]: lets nobody else read what this process writes.
//! - [`raise_descriptor_limit`]: makes room for many connections.
//! - [`TlsOptions`], [`keep_certificates`], [`shake_hands_apart`]: the certificates of this process, and the work with them.
//! - [`stdin_eof`]: notices the end of the process that started this one.

mod access;
pub mod config;
mod descriptors;
pub mod http;
mod lines;
pub mod metrics;
mod private;
mod stdin;
pub mod telemetry;
mod tls;

pub use access::{HttpAccess, standard_access, status_page};
pub use descriptors::{descriptor_limit, has_descriptors, raise_descriptor_limit};
pub use private::keep_files_private;
pub use stdin::stdin_eof;
pub use tls::{TlsMetrics, TlsOptions, keep_certificates, shake_hands_apart};
