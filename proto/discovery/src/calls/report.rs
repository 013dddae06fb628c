use bytes::Bytes;
use mc_proto::{VERSIONS, detail_of, reason_of, v1};
use mc_types::{ClientId, ClusterId, Code, NodeId, TlsLevel};
use tonic::Status;

use crate::Leader;

/// A master's report of itself, its cluster and the leader.
#[derive(Clone, Debug)]
pub struct ClusterReport {
    /// Its cluster; `None` while it waits for one to form.
    pub cluster: Option<ClusterId>,
    /// The master's node id; a watch does not tell it.
    pub node: Option<NodeId>,
    /// The leader, if the master knows one.
    pub leader: Option<Leader>,
    /// Client addresses of all masters of its cluster.
    pub masters: Vec<String>,
    /// How far processes of its cluster insist on TLS, if the master says.
    pub tls_level: Option<TlsLevel>,
}

/// The reason why a master did not name the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HelloError {
    /// The master answers, but is too busy for this question.
    Busy(String),
    /// The master answers, and refuses.
    Refused(String),
    /// The master speaks none of our protocol versions; these are its versions and its software.
    VersionSkew(String),
    /// The master does not answer.
    Silent(String),
}

impl HelloError {
    /// Returns whether the master answered, so that its connection works.
    #[must_use]
    pub fn answered(&self) -> bool {
        !matches!(self, Self::Silent(_))
    }

    pub(super) fn of(status: &Status) -> Self {
        match detail_of(status) {
            None => Self::Silent(reason_of(status)),
            Some(detail) if detail.code == Code::VersionSkew as i32 => Self::VersionSkew(detail.ours),
            Some(detail) if detail.code == Code::ResourceExhausted as i32 => Self::Busy(detail.message),
            Some(detail) => Self::Refused(detail.message),
        }
    }
}

/// Returns the addresses of masters in a message, without empty ones.
pub(super) fn named(mut masters: Vec<String>) -> Vec<String> {
    masters.retain(|address| !address.is_empty());
    masters
}

/// Makes the caller field of a call: the cluster and the node that the call is for, where known, and the client that
/// makes it.
#[must_use]
pub fn caller(cluster: Option<ClusterId>, node: Option<NodeId>, client: Option<ClientId>) -> v1::Caller {
    let bytes = |id: Option<&[u8]>| id.map(Bytes::copy_from_slice).unwrap_or_default();
    v1::Caller {
        cluster_id: bytes(cluster.map(|id| id.to_bytes()).as_ref().map(|id| &id[..])),
        node_id: bytes(node.map(|id| id.to_bytes()).as_ref().map(|id| &id[..])),
        client_id: bytes(client.map(|id| id.to_bytes()).as_ref().map(|id| &id[..])),
        version_min: *VERSIONS.start(),
        version_max: *VERSIONS.end(),
    }
}
