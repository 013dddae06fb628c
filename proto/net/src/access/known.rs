use mc_types::TokenHash;

/// What a process knows of callers beyond their certificates.
pub trait KnownCallers: Send + Sync {
    /// Returns what is known of a caller by its identity without the trust domain; `None` if nothing is.
    fn by_path(&self, path: &str) -> Option<Known>;

    /// Returns the caller with a token.
    fn by_token(&self, token: &TokenHash) -> Option<Known>;

    /// Returns the caller for which an identity of another system stands.
    fn by_certificate(&self, uri: &str) -> Option<Known>;
}

/// A caller that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its identity without the trust domain.
    pub path: String,
    /// Number of its token.
    pub token_number: u64,
    /// Whether its time is over.
    pub is_over: bool,
    /// Whether it is refused, whatever it shows.
    pub is_denied: bool,
}
