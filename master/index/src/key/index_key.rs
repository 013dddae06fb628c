use mc_types::{MAX_KEY_LEN, MAX_TENANT_LEN};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64;

use crate::key::TenantName;

/// Number of shards of the index. A snapshot lists objects in the order of shards, so this is part of its format.
pub(crate) const SHARDS: u32 = 1 << 18;

/// XXH3 of an index key (tenant and key), by which the end of a put names its key.
///
/// The put id identifies the put. The hash only prevents a client that mixes up its keys from ending another key's put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeyHash(#[serde(with = "postcard::fixint::be")] u64);

impl KeyHash {
    /// Hashes a tenant and a key; returns 0 when they are too long or the key is empty.
    ///
    /// The 0 is harmless: no put of such a key was ever started, and an object found by hash must also match the put
    /// id.
    #[must_use]
    pub fn of(tenant: &str, key: &[u8]) -> Self {
        IndexKey::new(tenant, key).map_or(Self(0), |key| key.hash())
    }

    /// Hashes an index key in its bytes.
    pub(crate) fn of_index_key(bytes: &[u8]) -> Self {
        Self(xxh3_64(bytes))
    }

    pub(crate) fn from_u64(hash: u64) -> Self {
        Self(hash)
    }

    /// Returns the hash as a number.
    #[must_use]
    pub fn to_u64(self) -> u64 {
        self.0
    }

    /// Returns the shard of the index, below [`SHARDS`].
    pub(crate) fn shard(self) -> u32 {
        u32::try_from(self.0 >> (64 - SHARDS.ilog2())).unwrap_or_default()
    }

    /// Returns the 32 bits by which keys are sorted within a shard, before their bytes.
    pub(crate) fn order(self) -> u32 {
        u32::try_from(self.0 & 0xffff_ffff).unwrap_or_default()
    }
}

/// A key in the index: the tenant's length, the tenant, the key. Keys of two tenants are never equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IndexKey {
    bytes: SmallVec<[u8; 128]>,
    hash: KeyHash,
}

impl IndexKey {
    /// Joins tenant and key; `None` when either is too long or the key is empty.
    pub(crate) fn new(tenant: &str, key: &[u8]) -> Option<Self> {
        if tenant.len() > MAX_TENANT_LEN || !(1..=MAX_KEY_LEN).contains(&key.len()) {
            return None;
        }
        let mut bytes = SmallVec::with_capacity(1 + tenant.len() + key.len());
        bytes.push(u8::try_from(tenant.len()).ok()?);
        bytes.extend_from_slice(tenant.as_bytes());
        bytes.extend_from_slice(key);
        Some(Self::hashed(bytes))
    }

    /// Returns the bytes with which the index keys of a tenant begin whose keys begin with `prefix`; `None` when the
    /// tenant's name is too long.
    pub(crate) fn prefix(tenant: &str, prefix: &[u8]) -> Option<Vec<u8>> {
        if tenant.len() > MAX_TENANT_LEN {
            return None;
        }
        let mut bytes = vec![u8::try_from(tenant.len()).ok()?];
        bytes.extend_from_slice(tenant.as_bytes());
        bytes.extend_from_slice(prefix);
        Some(bytes)
    }

    /// Reads an index key from the bytes in a snapshot; `None` when they are not one.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&tenant_len, rest) = bytes.split_first()?;
        let (tenant, key) = rest.split_at_checked(usize::from(tenant_len))?;
        Self::new(std::str::from_utf8(tenant).ok()?, key)
    }

    fn hashed(bytes: SmallVec<[u8; 128]>) -> Self {
        let hash = KeyHash::of_index_key(&bytes);
        Self { bytes, hash }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn hash(&self) -> KeyHash {
        self.hash
    }

    /// Returns the shard of the index, below [`SHARDS`].
    pub(crate) fn shard(&self) -> u32 {
        self.hash.shard()
    }

    pub(crate) fn tenant(&self) -> TenantName {
        TenantName::of_index_key(&self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_never_meet_and_lengths_are_checked() {
        fn key(tenant: &str, key: &[u8]) -> Option<Vec<u8>> {
            IndexKey::new(tenant, key).map(|key| key.bytes().to_vec())
        }
        assert_ne!(key("a", b"b"), key("", b"ab"));
        assert_ne!(key("", b"\x01ab"), key("a", b"b"));
        assert!(key("", b"").is_none() && key("", &[0; MAX_KEY_LEN]).is_some());
        assert!(key("", &[0; MAX_KEY_LEN + 1]).is_none());
        assert!(key(&"t".repeat(MAX_TENANT_LEN), b"k").is_some());
        assert!(key(&"t".repeat(MAX_TENANT_LEN + 1), b"k").is_none());
    }

    #[test]
    fn bytes_come_back_and_others_are_refused() {
        let key = IndexKey::new("tenant", b"key").unwrap();
        assert!(IndexKey::from_bytes(key.bytes()) == Some(key));
        for bad in [&b""[..], b"\x00", b"\x05abc", b"\x01\xffk", b"\x01a"] {
            assert!(IndexKey::from_bytes(bad).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn the_hash_of_a_key_is_that_of_its_place_in_the_index() {
        let key = IndexKey::new("ab", b"cd").unwrap();
        assert_eq!(KeyHash::of("ab", b"cd"), key.hash());
        for (tenant, bytes) in [("a", &b"bcd"[..]), ("abc", b"d"), ("ab", b"cde"), ("ab", b""), ("xb", b"cd")]
        {
            assert_ne!(KeyHash::of(tenant, bytes), key.hash(), "{tenant} {bytes:?}");
        }
    }
}
