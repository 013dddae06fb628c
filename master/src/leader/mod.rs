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
//!
//! `term` is below all others. `objects`, `stores`, `members` and `settings` use `term` alone; `services` owns them;
//! `duties` and `watch` use the services.

pub(crate) mod duties;
mod members;
mod objects;
mod services;
mod settings;
mod stores;
mod term;
#[cfg(test)]
pub(crate) mod tests;
mod watch;

pub(crate) use members::{
    MemberState, Members, SpareDescriptors, keep_members, leave_to_a_better_disk,
    leave_to_a_master_with_descriptors,
};
#[cfg(feature = "testing")]
pub(crate) use objects::proofs_testing;
pub(crate) use objects::{
    Described, DescribedGroup, DescribedReplica, Doubtful, GrantedReplica, Holder, LeaseMode, Miss, Near,
    Objects, Placement, Preference, PutToEnd, RemovalPage, RemoveObject, StoreGrant, keep_room,
};
pub(crate) use services::{Services, ServicesConfig};
pub(crate) use settings::{
    Configuration, CutOff, PrincipalChange, Replicated, SecuritySettings, SetFirst, TenantState, Tenants,
};
pub(crate) use stores::HeartbeatSession;
pub(crate) use term::{
    Coordinator, CoordinatorConfig, KnownLeader, Leading, OutdatedCaller, PutTimes, Refusal, StatusView,
    TransportUse, Unready, audited,
};
pub(crate) use watch::{WatchEvent, over, tell_of_members, watch};
