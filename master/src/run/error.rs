use std::path::PathBuf;

use mc_durable::DurableError;
use mc_log::OpenError;
use mc_raft::RaftStartError;

use crate::config::MasterConfigError;
use crate::data_dir::IdentityError;
use crate::formation::FormationError;

/// Why a master does not start, or cannot go on. Each message is one sentence for the person who starts it.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The flags cannot work.
    #[error(transparent)]
    Config(#[from] MasterConfigError),
    /// The data directory cannot be locked or written.
    #[error("--data-dir: {0}")]
    DataDir(#[from] DurableError),
    /// The identity in the data directory cannot be read or written.
    #[error("--data-dir: {0}")]
    Identity(#[from] IdentityError),
    /// The log in the data directory cannot be opened.
    #[error("--data-dir: {0}")]
    Log(#[from] OpenError),
    /// A rescue of the data directory was cut short, half-way from one cluster to another.
    #[error(
        "--data-dir: a rescue of {dir} was cut short: finish it with `mcctl members rescue --data-dir {dir} --yes`",
        dir = dir.display()
    )]
    RescueUnfinished {
        /// The directory.
        dir: PathBuf,
    },
    /// The master cannot listen on a port.
    #[error("--{flag} {address}: cannot listen: {source}")]
    Listen {
        /// Name of the flag.
        flag: &'static str,
        /// The address that was asked for.
        address: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The master cannot form or join a cluster.
    #[error(transparent)]
    Formation(#[from] FormationError),
    /// Raft cannot start.
    #[error(transparent)]
    Raft(#[from] RaftStartError),
    /// Raft refuses to initialize the new cluster.
    #[error("the new cluster could not be initialized: {0}")]
    Initialize(String),
    /// The log failed, or Raft stopped, after the start.
    #[error("this master cannot go on: {0}")]
    Failed(String),
}
