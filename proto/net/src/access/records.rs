use mc_types::TokenHash;

/// Source of records about callers.
pub trait CallerRecords: Send + Sync {
    /// Returns the record of an identity, which is written without its trust domain.
    fn by_path(&self, path: &str) -> Option<CallerRecord>;

    /// Returns the caller with a token.
    fn by_token(&self, token: &TokenHash) -> Option<CallerRecord>;

    /// Returns the caller for which an identity of another system stands.
    fn by_certificate(&self, uri: &str) -> Option<CallerRecord>;
}

/// Record of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerRecord {
    /// Its identity without the trust domain.
    pub path: String,
    /// Number of its token.
    pub token_number: u64,
    /// Whether its time is over.
    pub is_over: bool,
    /// Whether it is refused, whatever it shows.
    pub is_denied: bool,
    /// Whether it may map the memory of stores on its host.
    pub shares_memory: bool,
}
