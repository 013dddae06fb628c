//! The gRPC API: what clients, stores and mcctl ask of a master.

mod caller;
mod cluster;
mod config;
#[cfg(feature = "testing")]
pub(crate) mod fuzz;
mod grants;
mod in_flight;
mod objects;
mod refusal;
mod service;
mod shed;
mod stores;

pub(crate) use cluster::{leader_message, node_id};
pub(crate) use in_flight::InFlight;
pub(crate) use refusal::Refusal;
pub(crate) use service::{Api, MasterService};
