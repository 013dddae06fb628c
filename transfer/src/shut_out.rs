use std::collections::BTreeSet;

/// Who gets nothing from a store any more, whatever it shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShutOut {
    /// Identities without the trust domain, as `tenant/a/rw/engine`.
    pub identities: BTreeSet<String>,
    /// Numbers of tokens.
    pub tokens: BTreeSet<u64>,
}

impl ShutOut {
    /// Number of identities and tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.identities.len() + self.tokens.len()
    }

    /// Whether nobody is shut out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
