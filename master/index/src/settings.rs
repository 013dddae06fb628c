//! Settings that all masters of a cluster share.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The highest cluster version that this build supports: what is logged and what `apply` does. A cluster is at the version
/// that all its members support, raised by `mcctl upgrade finish`; until then the old build can be started again.
pub const CLUSTER_VERSION: u32 = 1;

/// Replicated settings: everything that changes what `apply` or a leader answers. Seeded at formation from flags.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Longest deadline of a put, in ms; at most [`mc_types::MAX_GRANT_LIFETIME`].
    pub put_deadline_max_ms: u64,
    /// Length of a read lease, in ms.
    pub read_lease_ms: u64,
    /// A store that is silent for so long is dropped, in ms.
    pub store_ttl_ms: u64,
    /// Heartbeats of stores, in ms.
    pub store_heartbeat_ms: u64,
    /// A store that is silent for so long is suspect, in ms.
    pub store_suspect_ms: u64,
    /// Raft heartbeat, in ms.
    pub raft_heartbeat_ms: u64,
    /// Raft election timeout, lower end, in ms.
    pub raft_election_min_ms: u64,
    /// Raft election timeout, upper end, in ms; also the leader lease.
    pub raft_election_max_ms: u64,
    /// How a leader makes sure that it still leads before it answers.
    pub read_policy: ReadPolicy,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            put_deadline_max_ms: 60_000,
            read_lease_ms: 10_000,
            store_ttl_ms: 600_000,
            store_heartbeat_ms: 200,
            store_suspect_ms: 800,
            raft_heartbeat_ms: 50,
            raft_election_min_ms: 150,
            raft_election_max_ms: 300,
            read_policy: ReadPolicy::Lease,
        }
    }
}

/// How a read makes sure that it sees every acknowledged write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReadPolicy {
    /// By the leader's lease, which counts on monotonic clocks of nearly the same rate; else by asking a quorum.
    #[default]
    Lease,
    /// By asking a quorum each time. For machines that are suspended or migrated while they run.
    ReadIndex,
}

impl fmt::Display for ReadPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lease => "lease",
            Self::ReadIndex => "read-index",
        })
    }
}

impl FromStr for ReadPolicy {
    type Err = ReadPolicyError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "lease" => Ok(Self::Lease),
            "read-index" => Ok(Self::ReadIndex),
            other => Err(ReadPolicyError(other.to_owned())),
        }
    }
}

/// Text that names no [`ReadPolicy`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a read policy: it can be `lease` or `read-index`")]
pub struct ReadPolicyError(pub String);
