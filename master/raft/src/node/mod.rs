//! The running node: openraft with its log, its state machine and its network, and the tasks beside it.
//!
//! This room imports all others, and none imports it. Its parts add methods to [`RaftNode`], one subject each.

pub(crate) mod config;
pub(crate) mod election;
pub(crate) mod leadership;
pub(crate) mod members;
pub(crate) mod openraft_config;
pub(crate) mod propose;
pub(crate) mod reads;
pub(crate) mod start;
pub(crate) mod tasks;
pub(crate) mod transfer;
pub(crate) mod view;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use mc_log::{MasterNode, Raft, SyncPace, TypeConfig};
use mc_types::NodeId;
use openraft::RaftMetrics;
use openraft::alias::WatchReceiverOf;
use openraft::errors::{Fatal, InitializeError, RaftError};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::apply::index::SharedIndex;
use crate::apply::state_machine::StateMachine;
use crate::lease::acks::Acks;
use crate::lease::leader_contact::LeaderContact;
use crate::lease::revocation::LeaseRevocation;
use crate::lease::writable::Blocked;
use crate::members::address_book::AddressBook;
use crate::snapshots::SnapshotStore;
use crate::timing::RaftTiming;
use leadership::Leadership;

/// A running Raft node. Its tasks run on the runtime that [`RaftNode::start`] was called on. That should not be the
/// one that serves clients, because a busy runtime makes followers miss heartbeats.
pub struct RaftNode {
    node: NodeId,
    raft: Raft<StateMachine>,
    index: SharedIndex,
    snapshots: SnapshotStore,
    metrics: WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>,
    leadership: watch::Receiver<Leadership>,
    pub(crate) leader_contact: LeaderContact,
    addresses: AddressBook,
    acks: Arc<Acks>,
    pace: Arc<SyncPace>,
    /// Whether this node asks the leader to take its vote: see [`Self::ask_to_leave`].
    leaving: Arc<AtomicBool>,
    /// Held while the membership is changed.
    changing: tokio::sync::Mutex<()>,
    timing: RaftTiming,
    /// A hand-over revokes the lease: voters may elect another leader before this node's lease ends.
    revocation: Arc<LeaseRevocation>,
    blocked: watch::Receiver<Option<Blocked>>,
    stopped: watch::Receiver<Option<String>>,
    _tasks: [AbortOnDropHandle<()>; 8],
}

impl fmt::Debug for RaftNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RaftNode").field("node", &self.node).finish_non_exhaustive()
    }
}

impl RaftNode {
    /// Forms a cluster of `members`, and returns when this node's vote is durable, and with it the first entry. Exactly
    /// one of them must call this, once.
    ///
    /// # Errors
    /// The node already has Raft state, is not one of `members`, or has stopped.
    pub async fn initialize(
        &self,
        members: BTreeMap<NodeId, MasterNode>,
    ) -> Result<(), RaftError<TypeConfig, InitializeError<TypeConfig>>> {
        // openraft answers without waiting for the entry: it compares with what was durable before. It writes the entry
        // and then its vote, which the log syncs whatever `--log-sync` says, and in this order.
        let mut durable = self.raft.watch_log_progress();
        self.raft.initialize(members).await?;
        let written = durable.wait_until(|now| now.as_ref().is_some_and(|now| now.vote.leader_id.term > 0));
        let written = written.await;
        written.map(drop).map_err(|_| RaftError::Fatal(Fatal::Stopped))
    }

    /// Returns the heartbeat interval and election timeouts of this node.
    pub fn timing(&self) -> RaftTiming {
        self.timing
    }

    /// Returns openraft's handle: proposals, membership changes, metrics.
    pub fn raft(&self) -> &Raft<StateMachine> {
        &self.raft
    }

    /// Returns the index. Reads of it are linearizable only under [`Self::try_lease`] or after
    /// [`Self::read_barrier`].
    pub fn index(&self) -> &SharedIndex {
        &self.index
    }

    /// Stops taking part in the cluster. The membership stays. If this node led, the others elect a leader.
    pub async fn shutdown(&self) {
        if let Err(err) = self.raft.shutdown().await {
            tracing::warn!("Raft did not stop cleanly: {err}");
        }
    }
}
