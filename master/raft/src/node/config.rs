use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use mc_log::{LogStore, SyncPace, TypeConfig, VoteTiming};
use mc_net::Network;
use mc_types::{Clock, ClusterId, NodeId};
use metrics::Histogram;
use openraft::ConfigError;
use openraft::errors::Fatal;

use crate::apply::audit::AuditSink;
use crate::apply::snapshot_limits::SnapshotLimits;
use crate::apply::take_snapshots::BytesSince;
use crate::network::server::served_node::{HasDescriptors, NearlyFull};
use crate::network::server::service::RaftService;
use crate::snapshots::SnapshotError;
use crate::timing::RaftTiming;

/// Parts of a Raft node. Only the tests of this crate have another log.
pub struct RaftNodeConfig<L = LogStore> {
    /// Id of this node.
    pub node: NodeId,
    /// Id of its cluster.
    pub cluster: ClusterId,
    /// Heartbeats and election timeouts.
    pub timing: RaftTiming,
    /// Connects to the other masters.
    pub network: Arc<dyn Network>,
    /// Times the wait after a restart.
    pub clock: Clock,
    /// The Raft log, vote included.
    pub log: L,
    /// The election timeout that the log records beside the vote.
    pub vote_timing: Arc<VoteTiming>,
    /// Bytes of the log that a snapshot does not cover.
    pub bytes_since: BytesSince,
    /// Time that the log's syncs take.
    pub pace: Arc<SyncPace>,
    /// Tells whether the disk of the data directory is nearly full. Reported to the leader.
    pub nearly_full: NearlyFull,
    /// Tells whether this process can open files and connections. Reported to the leader.
    pub has_descriptors: HasDescriptors,
    /// Directory of the snapshots; created if it does not exist.
    pub snapshot_dir: PathBuf,
    /// Limits at which snapshots are taken.
    pub limits: SnapshotLimits,
    /// The Raft port's service, which answers for this node from now on.
    pub service: RaftService,
    /// Records the time that entries took to apply.
    pub apply_seconds: Histogram,
    /// Takes the entries that name the call that they were proposed for.
    pub audit: AuditSink,
    /// Records the time of the elections that this node won.
    pub election_seconds: Histogram,
}

/// Error of starting a Raft node.
#[derive(Debug, thiserror::Error)]
pub enum RaftStartError {
    /// The snapshots cannot be used.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The log cannot be read.
    #[error("cannot read the Raft log: {0}")]
    Log(#[source] io::Error),
    /// The Raft timing is not usable.
    #[error("the Raft timing is not usable: {0}")]
    Timing(#[from] ConfigError),
    /// openraft refused to start.
    #[error("Raft does not start: {0}")]
    Raft(#[from] Fatal<TypeConfig>),
}
