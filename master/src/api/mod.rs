//! The gRPC API: translates between protobuf and the services of [`crate::leader`], and bounds what calls take up.

mod audit;
mod bucket;
mod call_limits;
mod caller;
mod cluster;
mod config;
mod convert;
#[cfg(feature = "testing")]
pub(crate) mod fuzz;
mod in_flight;
mod objects;
mod places;
pub(crate) mod ports;
mod refusal;
mod reply_memory;
mod security;
mod service;
mod shed;
mod stores;
mod tenants;

pub(crate) use audit::AuditedCaller;
pub(crate) use in_flight::InFlight;
pub(crate) use places::KeptForStores;
pub(crate) use reply_memory::ReplySize;
pub(crate) use service::{Api, MasterService};
