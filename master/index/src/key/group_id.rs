use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use super::index_key::{IndexKey, KeyHash};

/// Hash of a tenant and the name of one of its groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GroupId(#[serde(with = "postcard::fixint::be")] u128);

impl GroupId {
    /// Hashes the name of a tenant's group. Groups of two tenants are never the same.
    #[must_use]
    pub fn of(tenant: &str, name: &[u8]) -> Self {
        let mut bytes = IndexKey::prefix(tenant, name).unwrap_or_default();
        // Apart from keys: the group `x` and the key `x` are two units in the order of eviction.
        bytes.extend_from_slice(b"\0group");
        Self(xxh3_128(&bytes))
    }

    pub(crate) fn from_u128(id: u128) -> Self {
        Self(id)
    }

    pub(crate) fn to_u128(self) -> u128 {
        self.0
    }

    /// Returns the hash under which the order of eviction knows the group, beside the hashes of keys.
    #[must_use]
    pub fn unit(self) -> KeyHash {
        KeyHash::from_u64((self.0 >> 64) as u64)
    }

    /// Returns the id in its bytes, for answers to clients.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}
