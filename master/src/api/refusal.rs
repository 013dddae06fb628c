use std::path::PathBuf;

use mc_proto::v1::{self, ErrorDetail};
use mc_types::{ClusterId, Code, NodeId};
use tonic::Status;

use crate::data_disk::Shortage;

/// Why a whole call is refused. Each says what to do next; none is an answer to an item of a batch.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum Refusal {
    /// Another master leads, or none that is known.
    #[error("{}", not_leader(.leader.as_ref(), *.term))]
    NotLeader {
        /// The leader, when it is known.
        leader: Option<v1::Leader>,
        /// The highest term seen.
        term: u64,
    },
    /// No cluster has formed here yet.
    #[error("this master belongs to no cluster yet: {0}")]
    Forming(String),
    /// The caller means another cluster.
    #[error("this master belongs to cluster {ours}, the caller means {theirs}: check the list of masters")]
    WrongCluster {
        /// This master's.
        ours: ClusterId,
        /// The caller's.
        theirs: String,
    },
    /// The caller means another node.
    #[error("this master is node {ours}, the caller means {theirs}: it was replaced, reconnect")]
    WrongNode {
        /// This master's.
        ours: NodeId,
        /// The caller's.
        theirs: String,
    },
    /// No protocol version in common.
    #[error(
        "no protocol version in common: this master speaks {ours}, the caller {theirs}: upgrade the older side"
    )]
    VersionSkew {
        /// This master's range.
        ours: String,
        /// The caller's range.
        theirs: String,
    },
    /// The request itself is wrong.
    #[error("{0}")]
    Invalid(String),
    /// Not now; nothing was done.
    #[error("{0}; try again shortly")]
    Busy(String),
    /// Too much is in flight.
    #[error(
        "{proposals} proposals, or {bytes} bytes of them, are in flight, which is this master's bound: slow down and try \
         again"
    )]
    Exhausted {
        /// Most proposals in flight.
        proposals: usize,
        /// Most bytes of them.
        bytes: usize,
    },
    /// The disk under this master's log does not keep up, or hangs.
    #[error(
        "{unwritten} bytes of the log wait for this master's disk, the bound is {most}: the disk is slow or hangs, look at \
         it; try again, another master may lead by then"
    )]
    DiskBehind {
        /// Bytes that wait.
        unwritten: u64,
        /// Most of them.
        most: u64,
    },
    /// Requests that are being read or worked on, and replies that are being sent, take up too much.
    #[error(
        "requests and replies of {bytes} bytes are under way, which is this master's bound for such a call: slow down and \
         try again"
    )]
    Overloaded {
        /// Most bytes of them.
        bytes: usize,
    },
    /// There is no CPU time for calls that can come later.
    #[error("this master is short of CPU time and puts {what} off: try again shortly")]
    Shed {
        /// The kind of calls.
        what: &'static str,
    },
    /// The disk of the data directory is nearly full.
    #[error(
        "master {node} starts no puts: the disk of its data directory {dir} is nearly full, {shortage}; make room there, \
         or give it a larger disk (reads, removes and puts under way go on)",
        dir = dir.display()
    )]
    DiskNearlyFull {
        /// This master.
        node: NodeId,
        /// Its data directory.
        dir: PathBuf,
        /// By how much.
        shortage: Shortage,
    },
    /// The disks of so many other masters are nearly full that no majority has room.
    #[error(
        "no puts are started: the disks of the data directories of {} are nearly full, and no majority of the masters is \
         known to have room; make room there (the log of each says where, and how much is needed), or give them larger \
         disks (reads, removes and puts under way go on)",
        masters(nodes)
    )]
    NoMajorityHasRoom {
        /// Those whose disks are nearly full.
        nodes: Vec<NodeId>,
    },
    /// Proposed, and not known to have happened or not.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
    /// A store's mount is refused.
    #[error("{message}")]
    Store {
        /// Kind of refusal.
        code: Code,
        /// In words.
        message: String,
    },
}

fn not_leader(leader: Option<&v1::Leader>, term: u64) -> String {
    match leader {
        Some(leader) => format!("not the leader: term {} is led from {}", leader.term, leader.address),
        None => format!("no leader is known (term {term}): an election is under way, try again shortly"),
    }
}

impl Refusal {
    fn code(&self) -> Code {
        match self {
            Self::NotLeader { .. } => Code::NotLeader,
            Self::Forming(_) | Self::Busy(_) => Code::UnavailableInCurrentStatus,
            Self::WrongCluster { .. } => Code::WrongCluster,
            Self::WrongNode { .. } => Code::WrongNode,
            Self::VersionSkew { .. } => Code::VersionSkew,
            Self::Invalid(_) => Code::InvalidParams,
            Self::Exhausted { .. }
            | Self::DiskBehind { .. }
            | Self::Overloaded { .. }
            | Self::Shed { .. } => Code::ResourceExhausted,
            Self::DiskNearlyFull { .. } | Self::NoMajorityHasRoom { .. } => Code::DiskNearlyFull,
            Self::Unknown(_) => Code::OutcomeUnknown,
            Self::Store { code, .. } => *code,
        }
    }
}

fn masters(nodes: &[NodeId]) -> String {
    let names: Vec<_> = nodes.iter().map(|node| format!("master {node}")).collect();
    names.join(" and ")
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let mut detail =
            ErrorDetail { code: refusal.code() as i32, message: refusal.to_string(), ..Default::default() };
        match refusal {
            Refusal::NotLeader { leader, .. } => detail.leader = leader,
            Refusal::WrongCluster { ours, theirs } => {
                (detail.ours, detail.theirs) = (ours.to_string(), theirs);
            }
            Refusal::WrongNode { ours, theirs } => (detail.ours, detail.theirs) = (ours.to_string(), theirs),
            Refusal::VersionSkew { ours, theirs } => (detail.ours, detail.theirs) = (ours, theirs),
            _ => {}
        }
        mc_proto::status_of(&detail)
    }
}
