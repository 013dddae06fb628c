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
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod fuzz;
mod guard;
mod hush;
mod leadership;
mod lease;
mod leaving;
mod machine;
mod members;
mod node;
mod observe;
mod peer;
mod peers;
mod propose;
mod receive_snapshot;
mod removal;
mod roster;
mod rpc_times;
mod seat;
mod send_snapshot;
mod service;
mod snapshots;
mod tasks;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;
mod timing;
mod writable;

pub use addresses::AddressBook;
pub use config::SnapshotLimits;
pub use guard::VoteGuard;
pub use leadership::{Leadership, REMOVED_FIX};
pub use lease::LeaderTerm;
pub use leaving::{Departure, can_spare_a_voter};
pub use machine::{Applied, Builder, Gap, Machine, SharedIndex};
pub use members::{Change, ChangeError};
pub use node::{
    BytesSince, HasDescriptors, NearlyFull, NotLeader, RaftNode, RaftNodeConfig, StartError, TransferError,
    is_overruled,
};
pub use observe::RaftView;
pub use propose::ProposeError;
pub use roster::{CAUGHT_UP, Member, Roster};
pub use rpc_times::{RaftRpc, RpcTimer, RpcTimes};
pub use seat::Seat;
pub use service::{Formation, RaftService};
pub use snapshots::{Defect, Recovered, SnapshotError, SnapshotFile, SnapshotStore};
pub use timing::{RaftTiming, RaftTimingError};
pub use writable::Blocked;
