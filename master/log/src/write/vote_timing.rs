use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The longest election timeout, which is stored with the vote.
///
/// A voter that took a leader's message has promised to vote for nobody else for one maximum election timeout, in
/// memory only. After a restart it keeps that promise by the record here, since its timing may be another by then.
#[derive(Debug, Default)]
pub struct VoteTiming(AtomicU64);

impl VoteTiming {
    pub(crate) fn recorded(election_max_ms: u64) -> Self {
        Self(AtomicU64::new(election_max_ms))
    }

    /// Returns the timeout that the next vote is stored with: until [`Self::set`] the one on the disk, or zero.
    pub fn election_max(&self) -> Duration {
        Duration::from_millis(self.ms())
    }

    pub(crate) fn ms(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Sets the timeout that votes are stored with from now on.
    pub fn set(&self, election_max: Duration) {
        self.0.store(u64::try_from(election_max.as_millis()).unwrap_or(u64::MAX), Ordering::Release);
    }
}
