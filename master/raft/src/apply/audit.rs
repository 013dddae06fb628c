use std::fmt;
use std::sync::Arc;

use mc_index::{AuditedCall, AuditedResult};

/// An applied entry that names the call that it was proposed for.
#[derive(Clone, Debug)]
pub struct AuditedEntry {
    /// Term and index of the entry.
    pub place: (u64, u64),
    /// The call.
    pub call: AuditedCall,
    /// Result of applying it.
    pub result: AuditedResult,
}

/// Takes the entries that name their calls, in the order of the log and before their proposers are answered. After a restart it
/// gets those after the last snapshot again. It must not block: entries are applied on the thread that calls it.
#[derive(Clone)]
pub struct AuditSink(Arc<dyn Fn(AuditedEntry) + Send + Sync>);

impl AuditSink {
    /// Returns a sink that passes entries to `take`.
    pub fn new(take: impl Fn(AuditedEntry) + Send + Sync + 'static) -> Self {
        Self(Arc::new(take))
    }

    pub(crate) fn take(&self, entry: AuditedEntry) {
        (self.0)(entry);
    }
}

impl fmt::Debug for AuditSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuditSink").finish_non_exhaustive()
    }
}
