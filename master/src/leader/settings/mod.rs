//! What the cluster is told and remembers besides objects: its settings, tenants and their quotas, and the key-value table.
//! No part uses another.

mod configuration;
mod key_values;
mod tenants;

pub(crate) use configuration::{Configuration, Replicated};
pub(crate) use key_values::{KeyValues, SetFirst};
pub(crate) use tenants::{TenantState, Tenants};
