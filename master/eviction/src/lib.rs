//! Eviction, as far as it can be decided without I/O: which objects to give up when the pool is full.
//!
//! - [`Policy`]: the order of objects by use, with constant work for each operation.
//! - [`Evictor`]: follows the index and the reads, and chooses victims.
//! - [`Leases`]: versions that clients may be reading, and versions that are about to be evicted.
//! - [`Hits`]: reads on their way from the request threads to the evictor.
//!
//! All of it is soft state of a leader. The log carries only the outcome ([`mc_index::Op::Evict`]).

mod evictor;
mod excess;
mod grow;
mod hits;
mod leases;
mod policy;

pub use evictor::{
    ClearingStep, EvictionBlocked, EvictionGoal, Evictor, NOTE_INTERVAL, NOTES_PER_ENTRY, OBJECTS_PER_ENTRY,
    OBJECTS_PER_ENTRY_FOR_PUTS, Scope, Victims,
};
pub use excess::{Excess, excess, tenants_in_excess};
pub use hits::Hits;
pub use leases::Leases;
pub use policy::{Policy, Unit, VictimQueue};
