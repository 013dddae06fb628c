//! Who follows this node, whom it follows, and what it may conclude: that it still leads, that it can write, that it may
//! vote. Answers and messages of other masters are noted here; nothing is sent.

pub(crate) mod acks;

pub(crate) mod leader_contact;
pub(crate) mod leader_lease;
pub(crate) mod restart_wait;
pub(crate) mod revocation;
pub(crate) mod writable;
