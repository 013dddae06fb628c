//! Soft state of a leader, which it does not replicate: read leases, the liveness of stores, the running cluster time.
//!
//! It belongs to one term. Whatever is decided from it is stamped with that term and does nothing in an entry of
//! another, so it dies with the leadership.

mod admission;
mod coordinator;
pub(crate) mod duties;
mod leading;
mod leases;
mod liveness;
mod membership;
mod slow_disk;
#[cfg(test)]
mod tests;

pub(crate) use coordinator::{Coordinator, CoordinatorConfig, leader_of};
pub(crate) use leading::Leading;
pub(crate) use liveness::StoreState;
pub(crate) use membership::keep_members;
pub(crate) use slow_disk::leave_to_a_better_disk;
