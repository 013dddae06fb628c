//! How empty masters that list each other become one cluster, once, and how a node knows the cluster it belongs to.
//!
//! Every master meets every address of its `--peers` list, in rounds. [`decide`] looks at one round's answers and
//! says what to do: wait (for whom, and why), found, join, or give up. Only the smallest node id founds, and only
//! when every listed peer answered, none is formed and all show the same list:
//!
//! 1. it draws a cluster id and records it, with itself as the founder;
//! 2. it asks every peer to take part ([`FormationService::found`]); each records the cluster id before it answers;
//! 3. when all have accepted, its caller initializes Raft with the members; the others start Raft uninitialized.
//!
//! # What if the process dies, or is wiped, at any of these lines
//!
//! - Before 1: nothing happened.
//! - After 1 or within 2: no Raft state exists anywhere. Every node restarts empty, with a cluster id on disk that
//!   binds nobody: a new round founds again, over what the receivers show.
//! - After 2, before Raft has written: the same. Nobody has voted, because a vote is on disk before it is answered.
//! - After Raft has written on the founder: it restarts as formed and its Raft goes on; the members' Raft answers
//!   because their identity names the cluster. If the founder is wiped instead, it comes back as a new id and is not
//!   the node that its old members were asked to follow; a member that has Raft state says so and nobody founds.
//! - A member that has accepted and is empty may accept another founding: it has never voted. Once its Raft has
//!   started (it is *bound*) it accepts none in this life of the process, and in the next only if it is still empty.
//!
//! # Why two foundings can't both get a majority
//!
//! A founding succeeds only when every listed peer accepted it within one round, over the cluster id that the peer
//! had shown in the meeting of the same round (compare-and-set, with ids that are never drawn twice). Let two
//! foundings, C and D, both succeed, with peers P and Q in both. If P took C first, then D's founder met P after
//! that, and only then, having met everyone, asked anyone. If Q had taken D first, C's founder would have met Q
//! after D was asked and before C was asked anywhere, so before D's founder met P: a circle. So all common peers
//! took them in one order, say C first, and none of them was bound when it took D: C can only count on the nodes
//! that are not in D, those that were wiped or replaced in between. `tests/schedule.rs` runs these rules through
//! random orders of messages, deaths and a replaced machine; it fails without the compare-and-set, and without
//! binding.
//!
//! # What a wiped node can do
//!
//! Nothing, until it is asked to: its new id is in no membership, and every Raft call names the id it is for.
//! Where peers are formed it never founds; it waits, visibly, joins the id that most of the list reports, and
//! answers a leader that takes it in. A node that kept its identity and lost its Raft log refuses to start
//! ([`FormationError::LogLost`]): it could vote a second time.

mod accept;
mod advertise;
mod decide;
mod error;
mod follow;
#[cfg(feature = "testing")]
pub(crate) mod fuzz;
mod meet;
mod run;
mod serve;
mod service;

#[cfg(test)]
mod tests;

pub use advertise::{Advertise, BoundAddresses};
pub use decide::{Answer, Decision, Instance, Invitation, Met, Own, Reason, decide, find_self};
pub use error::FormationError;
pub use follow::ClusterView;
pub use run::{Formation, FormationConfig, Formed, Plan};
pub use service::FormationService;
