use mc_base::{MAX_KEY_LEN, MAX_TENANT_LEN};
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64;

/// Shards of the index. A snapshot lists objects in their order, so it is part of the format.
pub(super) const SHARDS: u32 = 1 << 18;

/// A key in the index: the tenant's length, the tenant, the key. Two tenants never meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IndexKey {
    bytes: SmallVec<[u8; 128]>,
    hash: u64,
}

impl IndexKey {
    /// `None` when the tenant or the key is too long, or the key is empty.
    pub(super) fn new(tenant: &str, key: &[u8]) -> Option<Self> {
        if !Self::is_valid(tenant, key) {
            return None;
        }
        let mut bytes = SmallVec::with_capacity(1 + tenant.len() + key.len());
        bytes.push(u8::try_from(tenant.len()).ok()?);
        bytes.extend_from_slice(tenant.as_bytes());
        bytes.extend_from_slice(key);
        Some(Self::hashed(bytes))
    }

    /// Whether tenant and key have lengths that a key in the index can have.
    pub(super) fn is_valid(tenant: &str, key: &[u8]) -> bool {
        tenant.len() <= MAX_TENANT_LEN && (1..=MAX_KEY_LEN).contains(&key.len())
    }

    /// Whether this is what [`Self::new`] makes of them, without hashing them.
    pub(super) fn is(&self, tenant: &str, key: &[u8]) -> bool {
        let rest = self.bytes.split_first().filter(|(len, _)| usize::from(**len) == tenant.len());
        rest.is_some_and(|(_, rest)| rest.strip_prefix(tenant.as_bytes()) == Some(key))
    }

    /// Reads the bytes of a key, from a snapshot; `None` when they aren't one.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&tenant_len, rest) = bytes.split_first()?;
        let (tenant, key) = rest.split_at_checked(usize::from(tenant_len))?;
        Self::new(std::str::from_utf8(tenant).ok()?, key)
    }

    fn hashed(bytes: SmallVec<[u8; 128]>) -> Self {
        let hash = xxh3_64(&bytes);
        Self { bytes, hash }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Which of the shards of the index, below [`SHARDS`].
    pub(super) fn shard(&self) -> u32 {
        u32::try_from(self.hash >> (64 - SHARDS.ilog2())).unwrap_or_default()
    }

    /// The order within a shard, before the bytes themselves.
    pub(super) fn order(&self) -> u32 {
        u32::try_from(self.hash & 0xffff_ffff).unwrap_or_default()
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
    fn a_key_knows_its_tenant_and_its_bytes() {
        let key = IndexKey::new("ab", b"cd").unwrap();
        assert!(key.is("ab", b"cd"));
        for (tenant, bytes) in
            [("a", &b"bcd"[..]), ("abc", b"d"), ("ab", b"cde"), ("ab", b"c"), ("xb", b"cd")]
        {
            assert!(!key.is(tenant, bytes), "{tenant} {bytes:?}");
        }
    }
}
