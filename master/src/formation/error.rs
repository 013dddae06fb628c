use mc_types::{ClusterId, HostPort, NodeId};

use crate::config::{PeersError, list};
use crate::data_dir::IdentityError;

/// Why this master cannot be part of a cluster with these flags and this data. Each message is one sentence; `main`
/// exits with 2.
#[derive(Debug, thiserror::Error)]
pub enum FormationError {
    /// Neither `--peers` nor `--single` is given, and there is no data.
    #[error(
        "the data directory is empty: name all masters with --peers a,b,c, or start a cluster of one with --single"
    )]
    NoPeers,
    /// Two entries of the list are this node.
    #[error("--peers names this master twice: {0} and {1} are the same process")]
    SelfTwice(HostPort, HostPort),
    /// Every entry answered and none is this node.
    #[error(
        "--peers ({}) does not name this master: every address answers as another one; add its own Raft address, \
         or say which it is with --advertise",
        list(.0)
    )]
    SelfMissing(Vec<HostPort>),
    /// Two entries are the same peer.
    #[error("--peers names one master twice: {0} and {1} are the same process")]
    SameMaster(HostPort, HostPort),
    /// Two masters show the same node id.
    #[error(
        "the masters at {first} and {second} both have node id {node}: a data directory was copied; empty the copy"
    )]
    CopiedIdentity {
        /// First of the two masters.
        first: HostPort,
        /// Second of the two masters.
        second: HostPort,
        /// Node id of both.
        node: NodeId,
    },
    /// A peer and this node have no protocol version in common.
    #[error(
        "the master at {address} ({software}) speaks protocol versions {theirs}, this one ({}) speaks {ours}: \
         upgrade the older one",
        env!("CARGO_PKG_VERSION")
    )]
    VersionSkew {
        /// The peer.
        address: HostPort,
        /// Its build.
        software: String,
        /// Protocol versions that the peer speaks.
        theirs: String,
        /// Protocol versions that this node speaks.
        ours: String,
    },
    /// A listed address is held by a master of another cluster.
    #[error(
        "the master at {address} belongs to cluster {theirs}, this one to cluster {ours}: correct --peers, or start \
         the one that is wrong with an empty data directory"
    )]
    Foreign {
        /// The peer.
        address: HostPort,
        /// Cluster of the peer.
        theirs: ClusterId,
        /// Cluster of this node.
        ours: ClusterId,
    },
    /// `--single` on a node that was taken in by a cluster and holds none of its data.
    #[error(
        "the data directory belongs to cluster {0}: start it with --peers, or start --single with an empty data \
         directory"
    )]
    SingleOfCluster(ClusterId),
    /// The Raft log is gone, although the identity says that there was one.
    #[error(
        "node {node} has been a member of cluster {cluster} and its Raft log is gone: it could vote twice; move the \
         whole data directory away, so that it comes back as a new node"
    )]
    LogLost {
        /// This node.
        node: NodeId,
        /// Its cluster.
        cluster: String,
    },
    /// There is a Raft log, but the identity names no cluster.
    #[error(
        "the data directory has a Raft log and its identity file names no cluster: restore the file `identity`, or \
         move the whole data directory away"
    )]
    IdentityLost,
    /// The list is wrong.
    #[error(transparent)]
    Peers(#[from] PeersError),
    /// The identity file cannot be read or written.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}
