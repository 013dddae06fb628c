//! openraft bound to mc: its types, its network, its state machine.
//!
//! - [`RaftNode`]: a running node; leader, leased reads, hand-over.
//! - [`RaftService`]: the Raft port, which also carries [`Formation`].
//! - [`SharedIndex`]: the index as it was applied, for readers.
//! - [`SnapshotStore`]: snapshots on disk.

mod apply;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod fuzz;
mod lease;
mod members;
mod network;
mod node;
mod snapshots;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;
mod timing;

pub use apply::index::{Applied, Gap, SharedIndex};
pub use apply::machine::{Builder, Machine};
pub use apply::snapshot_limits::SnapshotLimits;
pub use apply::take_snapshots::BytesSince;
pub use lease::leader_term::LeaderTerm;
pub use lease::restart_wait::VoteGuard;
pub use lease::writable::Blocked;
pub use members::address_book::AddressBook;
pub use members::change::{Change, ChangeError};
pub use members::departure::{Departure, can_spare_a_voter};
pub use members::member_role::Seat;
pub use members::membership_view::{CAUGHT_UP, Member, Roster};
pub use network::server::rpc_times::{RaftRpc, RpcTimer, RpcTimes};
pub use network::server::served_node::{HasDescriptors, NearlyFull};
pub use network::server::service::{Formation, RaftService};
pub use node::RaftNode;
pub use node::config::{RaftNodeConfig, StartError};
pub use node::leadership::{Leadership, REMOVED_FIX};
pub use node::propose::ProposeError;
pub use node::reads::NotLeader;
pub use node::start::is_overruled;
pub use node::transfer::TransferError;
pub use node::view::RaftView;
pub use snapshots::{Defect, Recovered, SnapshotError, SnapshotFile, SnapshotStore};
pub use timing::{RaftTiming, RaftTimingError};
