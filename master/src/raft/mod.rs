//! openraft bound to mc: its types, its network, its state machine.

mod types;

pub use types::{
    CommittedLeaderId, Entry, LogId, MasterNode, Membership, Proposal, Raft, SnapshotMeta, StoredMembership,
    TypeConfig, Vote,
};
