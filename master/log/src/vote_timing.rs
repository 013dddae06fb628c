use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The longest election timeout that stands beside the vote.
///
/// A voter that took a leader's message has promised to vote for nobody else for one maximum election timeout, in memory
/// only. After a restart it keeps that promise by the record here, since its timing may be another by then.
#[derive(Debug, Default)]
pub struct VoteTiming(AtomicU64);

impl VoteTiming {
    pub(super) fn recorded(election_max_ms: u64) -> Self {
        Self(AtomicU64::new(election_max_ms))
    }

    /// The one that the next vote is recorded with. Until [`Self::set`], the one that stands on the disk; zero where none does.
    #[must_use]
    pub fn election_max(&self) -> Duration {
        Duration::from_millis(self.ms())
    }

    pub(super) fn ms(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Records votes with `election_max` from now on.
    pub fn set(&self, election_max: Duration) {
        self.0.store(u64::try_from(election_max.as_millis()).unwrap_or(u64::MAX), Ordering::Release);
    }
}
