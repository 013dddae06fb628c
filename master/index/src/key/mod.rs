//! Names of things in the index, and their hashes: keys, tenants, groups.
//!
//! `group_id` uses `index_key`, which uses `tenant_name`.

mod group_id;
mod index_key;
mod tenant_name;

pub use group_id::GroupId;
pub use index_key::KeyHash;
pub(crate) use index_key::{IndexKey, SHARDS};
pub use tenant_name::TenantName;
