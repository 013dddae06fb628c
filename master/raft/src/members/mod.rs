//! The membership as values: who is a member, in which role, at which address, and which changes Raft is asked for.

pub(crate) mod address_book;
pub(crate) mod change;
pub(crate) mod departure;
pub(crate) mod member_role;
pub(crate) mod membership_view;
pub(crate) mod removal;
