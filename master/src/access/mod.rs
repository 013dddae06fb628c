//! Who may do what on the ports of a master: tables of the calls, and the checks that need more than a role.

mod layer;
mod records;
mod routes;
mod stores;
mod table;
mod tenant;

pub(crate) use layer::{GuardedCalls, name_of, principal_of};
pub(crate) use records::ReplicatedRecords;
pub(crate) use routes::{FORWARDED, route_open_to};
pub(crate) use stores::StoreCaller;
pub(crate) use table::calls_of;
pub use table::calls_reference;
pub(crate) use tenant::{TenantField, resolve_tenant};
