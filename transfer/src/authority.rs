use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use mc_types::{Clock, ClusterId, ClusterTime, SpiffeId};
use parking_lot::RwLock;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// A store's knowledge from its masters: the cluster that it serves, the time there, and the callers to refuse.
///
/// The heartbeat thread updates it, and the data server checks grants against it.
#[derive(Debug)]
pub struct Authority {
    clock: Clock,
    heard: RwLock<Option<LastAuthorityContact>>,
    learned: Notify,
    shut_out: ArcSwap<BTreeSet<u64>>,
}

#[derive(Clone, Copy, Debug)]
struct LastAuthorityContact {
    cluster: ClusterId,
    time: ClusterTime,
    /// Local time at which it was heard.
    at: Duration,
}

/// The cluster's time as a store knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) cluster: ClusterId,
    /// The latest cluster time that a master sent. Unlike `now` it never runs ahead of the cluster.
    pub(crate) heard: ClusterTime,
    /// `heard` plus the local time since then. Runs ahead while the cluster has no leader and its time stands still.
    pub(crate) now: ClusterTime,
}

impl Authority {
    /// Creates an authority that knows nothing: every grant is refused until [`Self::learn`].
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self { clock, heard: RwLock::new(None), learned: Notify::new(), shut_out: ArcSwap::default() }
    }

    /// Records that a master of `cluster` sent the cluster time `now`.
    ///
    /// Cluster time stands still without a leader, while the estimate here runs on. A master's time replaces the
    /// estimate, so that a new leader's grants are not refused. An earlier time than one already heard from the same
    /// cluster counts as that one: a new leader may be a tick behind the old one.
    pub fn learn(&self, cluster: ClusterId, now: ClusterTime) {
        let at = self.clock.now();
        let mut heard = self.heard.write();
        let time = heard.filter(|old| old.cluster == cluster).map_or(now, |old| old.time.max(now));
        *heard = Some(LastAuthorityContact { cluster, time, at });
        drop(heard);
        self.learned.notify_waiters();
    }

    /// Replaces the callers that the store refuses: numbers of tokens and of identities, as grants carry them.
    pub fn shut_out(&self, callers: BTreeSet<u64>) {
        self.shut_out.store(Arc::new(callers));
    }

    /// Number of callers that the store refuses.
    #[must_use]
    pub fn callers_shut_out(&self) -> usize {
        self.shut_out.load().len()
    }

    /// Whether the store refuses the caller with a number.
    #[must_use]
    pub fn has_shut_out(&self, caller: u64) -> bool {
        self.shut_out.load().contains(&caller)
    }

    /// Whether the store refuses an identity of its trust domain.
    #[must_use]
    pub fn has_shut_out_identity(&self, path: &str) -> bool {
        let callers = self.shut_out.load();
        !callers.is_empty() && callers.contains(&SpiffeId::number_of_path(path))
    }

    /// Returns a future that completes at the first [`Self::learn`] after this call.
    pub(crate) fn learned(&self) -> Notified<'_> {
        self.learned.notified()
    }

    /// Returns once something was learned.
    pub(crate) async fn known(&self) {
        loop {
            // Created before the look, so that nothing is missed in between.
            let learned = self.learned();
            if self.times().is_some() {
                return;
            }
            learned.await;
        }
    }

    /// Returns the cluster and its time: last heard plus the local monotonic time since; `None` before the first.
    #[must_use]
    pub fn now(&self) -> Option<(ClusterId, ClusterTime)> {
        self.times().map(|times| (times.cluster, times.now))
    }

    pub(crate) fn times(&self) -> Option<Times> {
        let heard = (*self.heard.read())?;
        let elapsed = self.clock.now().saturating_sub(heard.at);
        Some(Times { cluster: heard.cluster, heard: heard.time, now: heard.time.after(elapsed) })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn given() -> (Authority, Arc<AtomicU64>) {
        let ms = Arc::new(AtomicU64::new(1_000));
        let read = ms.clone();
        let clock = Clock::from_fn(move || Duration::from_millis(read.load(Ordering::Relaxed)));
        (Authority::new(clock), ms)
    }

    #[test]
    fn nothing_is_known_before_the_first_heartbeat() {
        let (authority, _) = given();
        assert_eq!(authority.now(), None);
    }

    #[test]
    fn time_runs_on_between_heartbeats() {
        let (authority, ms) = given();
        authority.learn(ClusterId(1), ClusterTime(50));
        ms.fetch_add(7, Ordering::Relaxed);
        assert_eq!(authority.now(), Some((ClusterId(1), ClusterTime(57))));
        authority.learn(ClusterId(1), ClusterTime(55));
        let times = authority.times().unwrap();
        assert_eq!((times.heard, times.now), (ClusterTime(55), ClusterTime(55)), "the master's word counts");
    }

    #[test]
    fn an_earlier_time_is_ignored_unless_the_cluster_is_another() {
        let (authority, _) = given();
        authority.learn(ClusterId(1), ClusterTime(50));
        authority.learn(ClusterId(1), ClusterTime(40));
        assert_eq!(authority.now(), Some((ClusterId(1), ClusterTime(50))));
        authority.learn(ClusterId(2), ClusterTime(3));
        assert_eq!(authority.now(), Some((ClusterId(2), ClusterTime(3))));
    }
}
