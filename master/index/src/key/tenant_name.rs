use mc_types::MAX_TENANT_LEN;

/// A tenant's name, in place. A longer one is cut: callers check the length.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantName {
    bytes: [u8; MAX_TENANT_LEN],
    len: u8,
}

impl TenantName {
    /// Returns the name in place, cut to [`MAX_TENANT_LEN`] bytes.
    #[must_use]
    pub fn new(name: &[u8]) -> Self {
        let name = name.get(..MAX_TENANT_LEN).unwrap_or(name);
        let mut bytes = [0; MAX_TENANT_LEN];
        bytes[..name.len()].copy_from_slice(name);
        Self { bytes, len: u8::try_from(name.len()).unwrap_or_default() }
    }

    /// Reads the name at the start of an index key.
    pub(crate) fn of_index_key(key: &[u8]) -> Self {
        let (len, rest) = key.split_first().unwrap_or((&0, &[]));
        Self::new(rest.get(..usize::from(*len)).unwrap_or_default())
    }

    /// Returns the bytes of the name.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl std::fmt::Debug for TenantName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self.as_bytes()))
    }
}
