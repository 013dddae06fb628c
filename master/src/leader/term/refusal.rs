use std::path::PathBuf;
use std::time::Duration;

use mc_net::Denied;
use mc_types::{ClusterId, Code, NodeId};

use super::KnownLeader;
use crate::data_dir::DiskShortage;

/// Why a whole call is refused, with a message that says what to do next. Items of a batch get codes instead.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum Refusal {
    /// Another master leads, or no leader is known.
    #[error("{}", not_leader(.leader.as_ref(), *.term))]
    NotLeader {
        /// The leader, when it is known.
        leader: Option<KnownLeader>,
        /// The highest term seen.
        term: u64,
    },
    /// No cluster has formed here yet.
    #[error("this master belongs to no cluster yet: {0}")]
    Forming(String),
    /// The caller means another cluster.
    #[error("this master belongs to cluster {ours}, the caller means {theirs}: check the list of masters")]
    WrongCluster {
        /// This master's cluster.
        ours: ClusterId,
        /// The cluster that the caller named.
        theirs: String,
    },
    /// The caller means another node.
    #[error("this master is node {ours}, the caller means {theirs}: it was replaced, reconnect")]
    WrongNode {
        /// This master's node id.
        ours: NodeId,
        /// The node that the caller named.
        theirs: String,
    },
    /// Master and caller have no protocol version in common.
    #[error(
        "no protocol version in common: this master speaks {ours}, the caller {theirs}: upgrade the older side"
    )]
    VersionSkew {
        /// Protocol versions that this master speaks.
        ours: String,
        /// Protocol versions that the caller speaks.
        theirs: String,
    },
    /// The caller's identity does not permit it.
    #[error(transparent)]
    Denied(Denied),
    /// The request itself is wrong.
    #[error("{0}")]
    Invalid(String),
    /// The call cannot be served right now; nothing was done.
    #[error("{0}; try again shortly")]
    Busy(String),
    /// Too many proposals are in flight, or too many bytes of them.
    #[error(
        "{proposals} proposals, or {bytes} bytes of them, are in flight, which is this master's bound: slow down and try \
         again"
    )]
    Exhausted {
        /// Limit on proposals in flight.
        proposals: usize,
        /// Limit on their bytes.
        bytes: usize,
    },
    /// The disk under this master's log does not keep up, or hangs.
    #[error(
        "{unwritten} bytes of the log wait for this master's disk, the bound is {most}: the disk is slow or hangs, look at \
         it; try again, another master may lead by then"
    )]
    DiskBehind {
        /// Log bytes that wait for the disk.
        unwritten: u64,
        /// Limit on those bytes.
        most: u64,
    },
    /// Requests that are being read or worked on, and replies that are being sent, take up too much memory.
    #[error(
        "requests and replies of {bytes} bytes are under way, which is this master's bound for such a call: slow down and \
         try again"
    )]
    Overloaded {
        /// Limit on their bytes.
        bytes: usize,
    },
    /// The users of a tenant have made as many calls as they may.
    #[error(
        "tenant `{tenant}` makes more than {limit} calls a second, its limit (`mcctl tenants set --calls`): try again in {} ms",
        again.as_millis() + 1
    )]
    TooManyCalls {
        /// The tenant.
        tenant: String,
        /// Its limit.
        limit: u32,
        /// Time until it has another call.
        again: Duration,
    },
    /// All places for clients on the client port are taken; those that are left are for stores.
    #[error(
        "this master has no place for another client's connection: close some, or raise its limit on open files \
         (LimitNOFILE); try again"
    )]
    NoPlace,
    /// The master is short of CPU time and puts off calls that can wait.
    #[error("this master is short of CPU time and refuses some {what}: try again shortly")]
    Shed {
        /// Kind of the refused calls.
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
        /// Free and needed space.
        shortage: DiskShortage,
    },
    /// The disks of so many other masters are nearly full that no majority has room.
    #[error(
        "no puts are started: the disks of the data directories of {} are nearly full, and no majority of the masters is \
         known to have room; make room there (the log of each says where, and how much is needed), or give them larger \
         disks (reads, removes and puts under way go on)",
        masters(nodes)
    )]
    NoMajorityHasRoom {
        /// Masters whose disks are nearly full.
        nodes: Vec<NodeId>,
    },
    /// The outcome is unknown: the change was proposed and may or may not have happened.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
    /// A tenant can't be unregistered.
    #[error("{}", tenant(name, *code))]
    Tenant {
        /// The tenant.
        name: String,
        /// Kind of refusal.
        code: Code,
    },
    /// A store's mount is refused.
    #[error("{message}")]
    Store {
        /// Kind of refusal.
        code: Code,
        /// Explanation for a person.
        message: String,
    },
}

fn tenant(name: &str, code: Code) -> String {
    match code {
        Code::TenantNotRegistered => {
            format!("tenant `{name}` is not registered: `mcctl tenants list` shows which are")
        }
        Code::TenantNotEmpty => format!(
            "tenant `{name}` has objects or puts in flight: remove them first (mcctl rm --all --tenant {name})"
        ),
        code => format!("tenant `{name}`: {}", code.name()),
    }
}

fn not_leader(leader: Option<&KnownLeader>, term: u64) -> String {
    match leader {
        Some(leader) => format!("not the leader: term {} is led from {}", leader.term, leader.address),
        None => format!("no leader is known (term {term}): an election is under way, try again shortly"),
    }
}

impl Refusal {
    /// The result code of the call.
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::NotLeader { .. } => Code::NotLeader,
            Self::Forming(_) | Self::Busy(_) => Code::UnavailableInCurrentStatus,
            Self::WrongCluster { .. } => Code::WrongCluster,
            Self::WrongNode { .. } => Code::WrongNode,
            Self::VersionSkew { .. } => Code::VersionSkew,
            Self::Denied(denied) if denied.lacks_identity() => Code::Unauthenticated,
            Self::Denied(_) => Code::PermissionDenied,
            Self::Invalid(_) => Code::InvalidParams,
            Self::Exhausted { .. }
            | Self::DiskBehind { .. }
            | Self::Overloaded { .. }
            | Self::NoPlace
            | Self::TooManyCalls { .. }
            | Self::Shed { .. } => Code::ResourceExhausted,
            Self::DiskNearlyFull { .. } | Self::NoMajorityHasRoom { .. } => Code::DiskNearlyFull,
            Self::Unknown(_) => Code::OutcomeUnknown,
            Self::Store { code, .. } | Self::Tenant { code, .. } => *code,
        }
    }
}

fn masters(nodes: &[NodeId]) -> String {
    let names: Vec<_> = nodes.iter().map(|node| format!("master {node}")).collect();
    names.join(" and ")
}
