//! A pool of child processes on free loopback ports, for the playground and the benches. The processes are watched,
//! killed and restarted through it, and end when the value is dropped.

mod certificates;
mod cluster;
mod ports;
mod process;
mod role;

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

pub use cluster::{Cluster, Master, Security, Shape, Store, segment_bytes};
pub use process::{Process, died_of};
pub use role::role_of_this_process;

/// Error of the pool of child processes.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message of each says what its fields are")]
pub enum ChildrenError {
    #[error("cannot start {name} as a child process: {why}")]
    Start { name: String, why: std::io::Error },
    #[error("{name} ended by itself ({status}); the end of its log {}:\n{tail}", log.display())]
    Exited { name: String, status: ExitStatus, log: PathBuf, tail: String },
    #[error("cannot signal or reap {name}: {why}")]
    Signal { name: String, why: std::io::Error },
    #[error("{name} (pid {pid}) is still running {limit:?} after it was told to end")]
    StillAlive { name: String, pid: u32, limit: Duration },
    #[error("the pool was not ready within {limit:?}: {waiting_for}; logs are in {}\n{tail}", logs.display())]
    NotReady { limit: Duration, waiting_for: String, logs: PathBuf, tail: String },
    #[error("cannot use {} for the children's data: {why}", path.display())]
    Directory { path: PathBuf, why: std::io::Error },
    #[error("cannot make certificates: {0}")]
    Certificates(#[from] mc_console::certificates::CertificateError),
    #[error("no free port on 127.0.0.1: stop something, or look at `ss -tln`")]
    NoPort,
    #[error(transparent)]
    Connect(#[from] mc_client::ConnectError),
    #[error("no child process is the leader at {address}")]
    NotOurs { address: String },
}
