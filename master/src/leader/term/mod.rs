//! The term that this master leads: who leads, proposals, and the soft state that ends with the term.
//!
//! `coordinator` uses `admission`, `call`, `leading` and `readiness`, and all may refuse with `refusal`; `leading` uses `liveness`,
//! `outdated`, `tls_reports` and `transports`.

mod admission;
mod call;
mod coordinator;
mod known_leader;
mod leading;
mod liveness;
mod outdated;
mod readiness;
mod refusal;
mod tls_reports;
mod transports;

#[cfg(test)]
pub(crate) use admission::Unwritten;
pub(crate) use call::audited;
pub(crate) use coordinator::{Coordinator, CoordinatorConfig, StatusView};
pub(crate) use known_leader::KnownLeader;
pub(crate) use leading::{Leading, PutTimes};
pub(crate) use liveness::{LOOK_INTERVAL, Liveness, StoreEvents, StoreState};
pub(crate) use outdated::{HEARD_WITHIN, OutdatedCaller};
pub(crate) use readiness::Unready;
pub(crate) use refusal::Refusal;
pub(crate) use transports::TransportUse;
