/// What a client counted since it was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Gets that answered with bytes.
    pub hits: u64,
    /// Gets that answered with a miss.
    pub misses: u64,
    /// Hits that came out of the local cache.
    pub cache_hits: u64,
    /// Puts that were acknowledged.
    pub puts_stored: u64,
    /// Puts whose key was there.
    pub puts_existing: u64,
    /// Puts that stayed in the local cache.
    pub puts_local: u64,
    /// Bytes read from stores.
    pub bytes_read: u64,
    /// Bytes written to stores, each replica counted.
    pub bytes_written: u64,
    /// Replicas whose bytes did not match their checksum; such bytes are never returned.
    pub checksum_mismatches: u64,
    /// Objects that the masters know and no replica of which could be read: they were answered as misses.
    pub unreachable_replicas: u64,
    /// Calls to masters that were issued again.
    pub retries: u64,
    /// Times that a new leader was found.
    pub leader_changes: u64,
    /// Times that local-only mode was entered.
    pub local_only_entries: u64,
    /// Bytes in the local cache.
    pub cache_bytes: u64,
}
