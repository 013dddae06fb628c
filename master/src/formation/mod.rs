//! Formation: how empty masters that list each other become one cluster, once, and how a node knows its cluster.
//!
//! Every master calls `Meet` at every address of its `--peers` list, in rounds. [`decide`] looks at one round's answers
//! and says what to do: wait (for which masters, and why), found, join, or give up. Only the smallest node id founds,
//! and only when every listed peer has answered, none is formed and all show the same list:
//!
//! 1. The founder draws a cluster id and records it, with itself as the founder.
//! 2. It asks every peer to take part ([`FormationService::found`]). Each peer records the cluster id before it
//!    answers.
//! 3. When all have accepted, the founder's process initializes Raft with the members. The others start Raft
//!    uninitialized.
//!
//! # What if the process dies, or is wiped, at any of these steps
//!
//! - Before 1: nothing happened.
//! - After 1 or within 2: no Raft state exists anywhere. Every node restarts empty, with a cluster id on disk that
//!   binds nobody. A new round founds again and replaces the ids that the peers show.
//! - After 2, before Raft has written: the same. Nobody has voted, because a vote is on disk before it is answered.
//! - After Raft has written on the founder: the founder restarts as formed and its Raft goes on. The members' Raft
//!   answers because their identity names the cluster. If the founder is wiped instead, it comes back with a new id and
//!   is not the node that its old members were asked to follow. A member that has Raft state says so, and nobody
//!   founds.
//! - A member that has accepted and is empty may accept another founding, because it has never voted. Once its Raft has
//!   started (it is *bound*), it accepts none while the process lives, and after a restart only if it is still empty.
//!
//! # Why two foundings cannot both get a majority
//!
//! A founding succeeds only when every listed peer accepted it within one round. A peer accepts only if the call names
//! the cluster id that the peer had shown in that round's meeting (compare-and-set, with ids that are never drawn
//! twice).
//!
//! Suppose two foundings, C and D, both succeed, with peers P and Q in both, and P accepted C first. Then D's founder
//! met P after that, and it asked its peers only once it had met all of them. If Q had accepted D first, C's founder
//! would have met Q after D was asked. It would have done so before it asked for C anywhere, and so before D's founder
//! met P: a contradiction.
//!
//! So all common peers accepted the two in one order, say C first, and none of them was bound when it accepted D. C can
//! then only count on nodes that are not in D: those that were wiped or replaced in between. `tests/schedule.rs` runs
//! these rules through random orders of messages, deaths and a replaced machine. It fails without the compare-and-set,
//! and without binding.
//!
//! # What a wiped node can do
//!
//! A wiped node can do nothing until it is asked to: its new id is in no membership, and every Raft call names the id
//! that it is for. Where peers are formed, it never founds. It shows that it waits, joins the cluster id that most of
//! the list reports, and answers a leader that takes it in. A node that kept its identity and lost its Raft log refuses
//! to start ([`FormationError::LogLost`]), because it could vote a second time.

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

pub(crate) use advertise::Advertise;
pub use advertise::BoundAddresses;
pub(crate) use decide::{
    Decision, FormingReason, Instance, Invitation, OwnState, PeerReply, PeerState, decide, find_self,
};
pub use error::FormationError;
pub(crate) use follow::ClusterView;
pub(crate) use run::{Formation, FormationConfig, Formed, Plan};
pub(crate) use service::{FormationService, TlsReport, tls_report};
