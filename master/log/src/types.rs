//! openraft's generic types, bound to mc's type configuration.

use std::fmt;

use bytes::Bytes;
use mc_types::NodeId;
use openraft::impls::leader_id_std;
use serde::{Deserialize, Serialize};

use mc_index::Response;

openraft::declare_raft_types!(
    /// openraft's type configuration for mc.
    ///
    /// `leader_id_std` allows one leader in a term, so a term identifies a leader. Decisions from a leader's soft state
    /// are stamped with its term and have no effect in another one.
    pub TypeConfig:
        D = Proposal,
        R = Response,
        NodeId = NodeId,
        Node = MasterNode,
        LeaderId = leader_id_std::LeaderId<u64, NodeId>,
);

/// An encoded command. The leader encodes it once ([`mc_index::Command::encode`]), the log and the network carry its
/// bytes, and `apply` decodes it.
#[derive(Clone, PartialEq, Eq)]
pub struct Proposal(pub Bytes);

impl fmt::Debug for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proposal({} B)", self.0.len())
    }
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Addresses of a master, replicated with the membership.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MasterNode {
    /// host:port of its Raft service.
    pub raft: String,
    /// host:port of its client API.
    pub client: String,
    /// host:port of its HTTP server.
    pub http: String,
}

impl MasterNode {
    /// The place of a master that has given up its vote and stops: its address stays in the membership, without an HTTP
    /// server. A master that runs always has one, so every leader tells the two apart.
    pub fn reserved(&self) -> Self {
        Self { http: String::new(), ..self.clone() }
    }

    /// Whether this is the place of a master that has given up its vote: see [`Self::reserved`].
    pub fn is_reserved(&self) -> bool {
        self.http.is_empty()
    }
}

/// The id of a committed leader: its term.
pub type CommittedLeaderId = openraft::alias::CommittedLeaderIdOf<TypeConfig>;
/// Term and index of an entry.
pub type LogId = openraft::alias::LogIdOf<TypeConfig>;
/// A vote: term, candidate, committed or not.
pub type Vote = openraft::alias::VoteOf<TypeConfig>;
/// A log entry.
pub type Entry = openraft::alias::EntryOf<TypeConfig>;
/// The cluster's members.
pub type Membership = openraft::Membership<NodeId, MasterNode>;
/// A membership and the entry that set it.
pub type StoredMembership = openraft::alias::StoredMembershipOf<TypeConfig>;
/// Coverage of a snapshot: last entry, membership, id.
pub type SnapshotMeta = openraft::alias::SnapshotMetaOf<TypeConfig>;
/// The Raft handle, given its state machine.
pub type Raft<SM> = openraft::Raft<TypeConfig, SM>;
