use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mc_client::Builder;
use tokio::task::JoinSet;

use super::deadlines::Deadlines;
use super::judged::{Errors, Judged, Unread};
use crate::checker::Outcome;
use crate::{History, Recorder, until};

/// Longest time for which the final reads wait for a leader, and are repeated after all keys have been read once.
const BACK_WITHIN: Duration = Duration::from_secs(5);
/// Pause before keys that were missed are read again.
const REREAD_AFTER: Duration = Duration::from_millis(100);

/// A workload under way.
#[derive(Debug)]
pub struct Running {
    pub(super) recorder: Recorder,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) clients: JoinSet<()>,
    pub(super) builder: Builder,
    pub(super) deadlines: Deadlines,
    pub(super) errors: Errors,
    pub(super) cached: bool,
}

impl Running {
    /// Returns the time limits of the calls.
    pub fn deadlines(&self) -> Deadlines {
        self.deadlines
    }

    /// Returns the recorder of the clients' calls.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Waits until `more` puts are acknowledged from now on, which shows that the pool works. Returns how long that
    /// took.
    pub async fn acknowledged(&self, more: usize) -> Duration {
        let acknowledged = || self.recorder.count(|operation| operation.outcome == Outcome::Stored);
        let before = acknowledged();
        until(format!("{more} more puts are acknowledged"), || {
            std::future::ready(acknowledged() >= before + more)
        })
        .await
    }

    /// Waits until `more` operations of any kind end from now on. Returns how long that took.
    pub async fn operations(&self, more: usize) -> Duration {
        let before = self.recorder.count(|_| true);
        until(format!("{more} more operations end"), || {
            std::future::ready(self.recorder.count(|_| true) >= before + more)
        })
        .await
    }

    /// Returns the first errors, in words.
    pub fn errors(&self) -> Vec<String> {
        self.errors.lock().unwrap().clone()
    }

    /// Lets the last reader, a new client, look for the masters at `addresses`: they have moved since the start.
    #[must_use]
    pub fn moved_to(mut self, addresses: String) -> Self {
        self.builder = self.builder.masters(addresses);
        self
    }

    /// Ends the clients, reads every key that was touched once more with a client of its own, and returns the history.
    ///
    /// All faults must be over. A store that is suspect for a moment makes misses that say nothing about what is kept. While the
    /// masters know an object that was missed, all missed keys are read again, and only the last reads count as final. A lost
    /// object is missed by those, too. Reads that fail are repeated as well, for the sake of the judgement, and counted: the
    /// pool serves no client well whose reads fail without a fault.
    pub async fn stop(self) -> History {
        let Self { recorder, stop, clients, builder, errors, cached, .. } = self;
        stop.store(true, Ordering::Relaxed);
        clients.join_all().await;
        let client = builder.connect().await.expect("settings of a client");
        assert!(client.connected(BACK_WITHIN).await, "no leader for the final reads in {BACK_WITHIN:?}");
        let one = Judged { number: u32::MAX, client, recorder, next_put: Arc::default(), errors, cached };
        let mut keys: BTreeSet<String> =
            one.recorder.history().operations.into_iter().map(|operation| operation.key).collect();
        let mut give_up = None;
        let (mut final_failures, mut final_misses) = (0, 0);
        let settled = loop {
            let settled = one.recorder.now();
            let Unread { missed, failed } = one.read_all(&keys).await;
            let is_over = Instant::now() >= *give_up.get_or_insert_with(|| Instant::now() + BACK_WITHIN);
            assert!(
                failed.is_empty() || !is_over,
                "{} keys cannot be read, such as {:?}",
                failed.len(),
                failed.first()
            );
            if failed.is_empty() && (is_over || !one.is_any_there(&missed).await) {
                break settled;
            }
            final_failures += failed.len();
            final_misses += missed.len();
            keys = missed.into_iter().chain(failed).collect();
            tokio::time::sleep(REREAD_AFTER).await;
        };
        let mut history = one.recorder.history().settled_at(settled);
        (history.final_failures, history.final_misses) = (final_failures, final_misses);
        history
    }
}
