//! Decisions of a leading master: reads and puts, stores, members, the cluster's configuration.
//!
//! - [`Coordinator`]: who leads, proposals, and the soft state of the term that this master leads.
//! - [`Objects`], [`Stores`], [`Members`], [`Configuration`]: a service for each kind of call.
//! - [`duties`], [`keep_room`], [`keep_members`], [`leave_to_a_better_disk`],
//!   [`leave_to_a_master_with_descriptors`]: work that a leader does unasked.
//!
//! Soft state is not replicated: read leases, the liveness of stores, the running cluster time. It belongs to one term.
//! A decision made from it is stamped with that term and does nothing in an entry of another, so it dies with the
//! leadership.

mod admission;
mod ages;
mod configuration;
mod coordinator;
mod describe;
mod descriptors;
pub(crate) mod duties;
mod eviction;
mod grants;
mod key_values;
mod leading;
mod line;
mod liveness;
mod members;
mod objects;
mod preference;
mod refusal;
mod removal;
mod room;
mod services;
mod shortage;
mod slow_disk;
mod stores;
mod tenants;
#[cfg(test)]
mod tests;
mod transports;
mod watch;

pub(crate) use configuration::{Configuration, Replicated};
pub(crate) use coordinator::{Coordinator, CoordinatorConfig, KnownLeader, Look};
pub(crate) use describe::{Described, DescribedGroup, DescribedReplica};
pub(crate) use descriptors::{SpareDescriptors, leave_to_a_master_with_descriptors};
pub(crate) use eviction::keep_room;
pub(crate) use grants::{GrantedReplica, StoreGrant};
pub(crate) use key_values::{KeyValues, SetFirst};
pub(crate) use leading::Leading;
pub(crate) use members::{MemberState, Members, keep_members};
pub(crate) use objects::{Doubtful, EndPut, Found, Lease, Miss, NewPin, NewPut, Objects, RemoveObject};
pub(crate) use preference::{Near, Preference};
pub(crate) use refusal::Refusal;
pub(crate) use removal::Removed;
pub(crate) use room::Room;
pub(crate) use services::{Services, ServicesConfig};
pub(crate) use slow_disk::leave_to_a_better_disk;
pub(crate) use stores::{Session, Stores};
pub(crate) use tenants::{TenantState, Tenants};
pub(crate) use transports::TransportUse;
pub(crate) use watch::{Event, tell_of_members, watch};
