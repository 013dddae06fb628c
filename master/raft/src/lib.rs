//! openraft bound to mc: its types, its network, its state machine.
//!
//! - [`RaftNode`]: a running node; leader, leased reads, hand-over.
//! - [`RaftService`]: the Raft port, which also carries [`Formation`].
//! - [`SharedIndex`]: the index as it was applied, for readers.
//! - [`SnapshotStore`]: snapshots on disk.
//!
//! Each room imports only those before it: `snapshots`, `apply`, `lease`, `members`, `network`, `node`.

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

pub use apply::audit::{AuditSink, AuditedEntry};
pub use apply::index::{Applied, Gap, SharedIndex};
pub use apply::snapshot_limits::SnapshotLimits;
pub use apply::state_machine::{SnapshotBuilder, StateMachine};
pub use apply::take_snapshots::BytesSince;
pub use lease::leader_lease::LeaderTerm;
pub use lease::writable::Blocked;
pub use members::address_book::AddressBook;
pub use members::change::{MembershipChange, MembershipChangeError};
pub use members::departure::{Departure, can_spare_a_voter};
pub use members::member_role::MemberRole;
pub use members::membership_view::{CAUGHT_UP, Member, MembershipView};
pub use network::server::rpc_times::{RaftRpc, RpcTimer, RpcTimes};
pub use network::server::served_node::{HasDescriptors, NearlyFull};
pub use network::server::service::{Formation, RaftService};
pub use node::RaftNode;
pub use node::config::{RaftNodeConfig, RaftStartError};
pub use node::leadership::{Leadership, REMOVED_FIX};
pub use node::propose::ProposeError;
pub use node::reads::NotLeader;
pub use node::start::conflicts_with_snapshot;
pub use node::transfer::LeaderTransferError;
pub use node::view::RaftView;
pub use snapshots::{Defect, RecoveredSnapshot, SnapshotError, SnapshotFile, SnapshotStore};
pub use timing::{RaftTiming, RaftTimingError};
