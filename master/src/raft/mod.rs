//! openraft bound to mc: its types, its network, its state machine.
//!
//! - [`RaftNode`]: a running node; leader, leased reads, hand-over.
//! - [`RaftService`]: the Raft port, which also carries [`Formation`].
//! - [`SharedIndex`]: the index as it was applied, for readers.
//! - [`SnapshotStore`]: snapshots on disk.

mod acks;
mod addresses;
mod append_stream;
mod ballots;
mod config;
mod convert;
mod election;
mod envelope;
pub(crate) mod fuzz;
mod guard;
mod hush;
mod leadership;
mod lease;
mod machine;
mod members;
mod node;
mod observe;
mod peer;
mod peers;
mod receive_snapshot;
mod removal;
mod send_snapshot;
mod service;
mod snapshots;
mod tasks;
#[cfg(test)]
mod tests;
mod types;
mod writable;

pub use addresses::AddressBook;
pub use config::SnapshotLimits;
pub use guard::VoteGuard;
pub use leadership::Leadership;
pub(crate) use leadership::REMOVED_FIX;
pub use lease::LeaderTerm;
pub use machine::{Applied, Builder, Machine, SharedIndex};
pub use members::{Change, ChangeError, Member, Roster};
pub use node::{BytesSince, NearlyFull, NotLeader, RaftNode, RaftNodeConfig, StartError, TransferError};
pub use observe::RaftView;
pub use service::{Formation, RaftService};
pub use snapshots::{Defect, Recovered, SnapshotError, SnapshotFile, SnapshotStore};
pub use types::{
    CommittedLeaderId, Entry, LogId, MasterNode, Membership, Proposal, Raft, SnapshotMeta, StoredMembership,
    TypeConfig, Vote,
};
pub use writable::Blocked;
