use std::time::Duration;

use crate::checker::Action;

/// Time limits of the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// A put.
    pub put: Duration,
    /// A get.
    pub get: Duration,
    /// Any other call.
    pub call: Duration,
}

impl Default for Deadlines {
    /// The library's deadlines, but 10 s for puts.
    fn default() -> Self {
        Self { put: Duration::from_secs(10), get: Duration::from_secs(5), call: Duration::from_secs(5) }
    }
}

impl Deadlines {
    /// Returns the deadline of a call.
    pub fn of(&self, action: Action) -> Duration {
        match action {
            Action::PutIfAbsent(_) | Action::Upsert(_) | Action::UpsertPinned(..) => self.put,
            Action::Get => self.get,
            Action::Exist | Action::Remove => self.call,
            // No client waits for it.
            Action::Evict(_) => Duration::ZERO,
        }
    }
}
