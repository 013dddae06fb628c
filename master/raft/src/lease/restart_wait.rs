use std::time::Duration;

use mc_types::Clock;

/// Keeps a voter that has just restarted out of elections.
///
/// A leader that a quorum acknowledged serves reads from its own memory for up to one maximum election timeout, because
/// every voter of that quorum refuses other candidates for so long. openraft keeps that promise in memory only: a voter
/// that crashes and is back within the lease could vote at once, and a new leader would commit writes that the old
/// one's readers do not see. So a voter that has a vote on disk neither votes, grants pre-votes, stands nor takes over
/// leadership until one maximum election timeout has passed since its start: by then every lease that it may have
/// promised is over. The timing can change between two runs, so the timeout is recorded beside the vote, and the longer
/// one of the recorded and the configured one counts. The random part on top keeps masters that restarted together from
/// standing together.
#[derive(Clone, Debug)]
pub(crate) struct RestartWait {
    clock: Clock,
    until: Duration,
}

impl RestartWait {
    /// Returns the wait of a node that has just started and had a vote on disk.
    pub(crate) fn after_restart(clock: Clock, election_timeout_max: Duration, random_part: Duration) -> Self {
        let until = clock.now() + election_timeout_max + random_part;
        Self { clock, until }
    }

    /// Returns no wait, for a node that has never voted and so has promised nothing.
    pub(crate) fn none(clock: Clock) -> Self {
        Self { clock, until: Duration::ZERO }
    }

    /// Returns the time for which the node must still keep out of elections; zero if it need not.
    pub(crate) fn remaining(&self) -> Duration {
        self.until.saturating_sub(self.clock.now())
    }

    /// Returns when the node may take part in elections. The clock is injected and may run at another speed than the
    /// runtime's, so it is asked again every few milliseconds.
    pub(crate) async fn over(&self) {
        const LOOK_AGAIN: Duration = Duration::from_millis(10);
        loop {
            let remaining = self.remaining();
            if remaining.is_zero() {
                return;
            }
            tokio::time::sleep(remaining.min(LOOK_AGAIN)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn a_restarted_voter_waits_out_every_lease_it_may_have_promised() {
        let now = Arc::new(AtomicU64::new(5_000));
        let clock = Clock::from_fn({
            let now = now.clone();
            move || Duration::from_millis(now.load(Ordering::Relaxed))
        });
        assert!(RestartWait::none(clock.clone()).remaining().is_zero());

        let restart_wait =
            RestartWait::after_restart(clock, Duration::from_millis(300), Duration::from_millis(70));
        now.store(5_369, Ordering::Relaxed);
        assert_eq!(restart_wait.remaining(), Duration::from_millis(1));
        now.store(5_370, Ordering::Relaxed);
        assert!(restart_wait.remaining().is_zero());
    }
}
