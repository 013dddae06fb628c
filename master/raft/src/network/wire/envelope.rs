//! Sender and addressee of a message.
//!
//! openraft's messages name neither the cluster nor the node, so a receiver checks the envelope before Raft sees the
//! message. Otherwise a wiped node at an old address could vote with lost state, and two clusters that share an address
//! could mix their logs.

use std::fmt::Display;

use bytes::Bytes;
use mc_proto::{
    RAFT_VERSIONS, status_of,
    v1::{self, ErrorDetail},
};
use mc_types::{ClusterId, Code, NodeId};
use tonic::Status;

use super::convert::node_to_wire;

/// This node, as its messages name it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalNode {
    pub(crate) cluster: ClusterId,
    pub(crate) node: NodeId,
    /// Its longest election timeout, in ms.
    pub(crate) election_max_ms: u64,
}

impl LocalNode {
    /// Returns the envelope of a message to `to`.
    pub(crate) fn envelope(&self, to: NodeId) -> v1::Envelope {
        v1::Envelope {
            cluster_id: Bytes::copy_from_slice(&self.cluster.to_bytes()),
            from: node_to_wire(self.node),
            to: node_to_wire(to),
            version: *RAFT_VERSIONS.end(),
            election_max_ms: self.election_max_ms,
        }
    }
}

/// Refuses a message that is not for `node` of `cluster`; a node that belongs to no cluster refuses every one.
pub(crate) fn check_envelope(
    node: NodeId,
    cluster: Option<ClusterId>,
    envelope: Option<&v1::Envelope>,
) -> Result<(), Status> {
    let Some(envelope) = envelope else {
        return Err(Status::invalid_argument(
            "the message has no envelope: its sender is not a master of this version",
        ));
    };
    let theirs = ClusterId::from_bytes(&envelope.cluster_id);
    let from = NodeId::from_bytes(&envelope.from)
        .map_or_else(|| "an unnamed node".into(), |id| format!("node {id}"));
    if cluster.is_none() || theirs != cluster {
        let ours = cluster.map_or_else(|| "no cluster".into(), |id| format!("cluster {id}"));
        let theirs = theirs.map_or_else(|| "no cluster".into(), |id| format!("cluster {id}"));
        let message = format!("node {node} belongs to {ours}, {from} calls for {theirs}");
        return Err(refusal(Code::WrongCluster, message, ours, theirs));
    }
    let to = NodeId::from_bytes(&envelope.to);
    if to != Some(node) {
        let meant = to.map_or_else(|| "an unnamed node".into(), |id| format!("node {id}"));
        let message =
            format!("{from} means {meant}, but this is node {node} (was its data directory replaced?)");
        return Err(refusal(Code::WrongNode, message, node, meant));
    }
    if !RAFT_VERSIONS.contains(&envelope.version) {
        let ours = format!("{}-{}", RAFT_VERSIONS.start(), RAFT_VERSIONS.end());
        let message = format!(
            "{from} speaks protocol version {}, node {node} speaks {ours}: upgrade the older one",
            envelope.version
        );
        return Err(refusal(Code::VersionSkew, message, ours, envelope.version));
    }
    Ok(())
}

/// Refuses a peer whose election timeout differs from `ours`.
///
/// A leader counts its lease by its own timeout, and voters keep out of elections by theirs. If they differ, a leader
/// could serve reads after another one was elected.
pub(crate) fn check_timing(ours: u64, envelope: &v1::Envelope) -> Result<(), Status> {
    let theirs = envelope.election_max_ms;
    if theirs == ours {
        return Ok(());
    }
    let message = format!(
        "the masters' election timeouts differ: {ours} ms here, {theirs} ms there; start all with the same --raft-timing"
    );
    Err(refusal(Code::InvalidParams, message, ours, theirs))
}

fn refusal(code: Code, message: String, ours: impl Display, theirs: impl Display) -> Status {
    status_of(&ErrorDetail {
        code: code.into(),
        message,
        ours: ours.to_string(),
        theirs: theirs.to_string(),
        ..ErrorDetail::default()
    })
}

#[cfg(test)]
mod tests {
    use mc_proto::detail_of;

    use super::*;

    #[test]
    fn only_a_message_for_this_node_of_this_cluster_passes() {
        let us = LocalNode { cluster: ClusterId(1), node: NodeId(10), election_max_ms: 300 };
        let peer = LocalNode { cluster: ClusterId(1), node: NodeId(11), election_max_ms: 300 };
        let stranger = LocalNode { cluster: ClusterId(2), node: NodeId(11), election_max_ms: 300 };
        let check = |envelope: &v1::Envelope, cluster| {
            let refused = check_envelope(us.node, cluster, Some(envelope)).err()?;
            Some(detail_of(&refused).unwrap())
        };

        assert_eq!(check(&peer.envelope(us.node), Some(us.cluster)), None);

        let detail = check(&stranger.envelope(us.node), Some(us.cluster)).unwrap();
        assert_eq!(detail.code, Code::WrongCluster as i32);
        assert!(
            detail.ours.contains(&us.cluster.to_string())
                && detail.theirs.contains(&stranger.cluster.to_string())
        );

        assert_eq!(check(&peer.envelope(us.node), None).unwrap().code, Code::WrongCluster as i32);

        let detail = check(&peer.envelope(NodeId(12)), Some(us.cluster)).unwrap();
        assert_eq!(detail.code, Code::WrongNode as i32);
        assert!(
            detail.message.contains(&us.node.to_string()) && detail.theirs.contains(&NodeId(12).to_string())
        );

        assert!(check_timing(300, &peer.envelope(us.node)).is_ok());
        let slower = v1::Envelope { election_max_ms: 1_000, ..peer.envelope(us.node) };
        let detail = detail_of(&check_timing(300, &slower).unwrap_err()).unwrap();
        assert!(detail.message.contains("300 ms here, 1000 ms there"), "{}", detail.message);

        let newer = v1::Envelope { version: RAFT_VERSIONS.end() + 1, ..peer.envelope(us.node) };
        assert_eq!(check(&newer, Some(us.cluster)).unwrap().code, Code::VersionSkew as i32);
        assert!(check_envelope(us.node, Some(us.cluster), None).is_err());
    }
}
