//! Replicated state besides objects: the settings of the cluster, who is let in, tenants and their quotas, and the
//! key-value table. No part
//! uses another.

mod configuration;
mod key_values;
mod security;
mod tenants;

pub(crate) use configuration::{Configuration, Replicated};
pub(crate) use key_values::{KeyValues, SetFirst};
pub(crate) use security::{CutOff, PrincipalChange, SecuritySettings};
pub(crate) use tenants::{TenantState, Tenants};
