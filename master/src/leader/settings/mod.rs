//! Replicated state besides objects: the settings of the cluster, tenants and their quotas, and the key-value table. No part
//! uses another.

mod configuration;
mod key_values;
mod tenants;

pub(crate) use configuration::{Configuration, Replicated};
pub(crate) use key_values::{KeyValues, SetFirst};
pub(crate) use tenants::{TenantState, Tenants};
