use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mc_types::{MAX_NAMED_STORES, StoreId};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

const FIRST: Duration = Duration::from_millis(100);
const MOST: Duration = Duration::from_secs(5);

/// Stores that calls should avoid: those that failed this client, and those that the leader suspects.
///
/// A failed store is avoided for a time that doubles with every failure in a row.
#[derive(Debug)]
pub(crate) struct AvoidList {
    failures: Mutex<BTreeMap<StoreId, Failing>>,
    /// Suspect stores, each with the time at which this client last heard of it.
    suspects: watch::Sender<BTreeMap<StoreId, Instant>>,
}

#[derive(Clone, Copy, Debug)]
struct Failing {
    until: Instant,
    span: Duration,
}

impl AvoidList {
    pub(crate) fn new() -> Self {
        Self { failures: Mutex::default(), suspects: watch::Sender::new(BTreeMap::new()) }
    }

    pub(crate) fn failed(&self, store: StoreId, now: Instant) {
        let mut failures = self.failures.lock();
        let span = match failures.get(&store) {
            // Operations of one batch fail together and count as one failure.
            Some(failing) if now < failing.until => return,
            Some(failing) => (failing.span * 2).min(MOST),
            None => FIRST,
        };
        failures.insert(store, Failing { until: now + span, span });
    }

    pub(crate) fn worked(&self, store: StoreId) {
        let mut failures = self.failures.lock();
        if !failures.is_empty() {
            failures.remove(&store);
        }
    }

    pub(crate) fn avoids(&self, store: StoreId, now: Instant) -> bool {
        self.failures.lock().get(&store).is_some_and(|failing| now < failing.until)
            || self.suspects.borrow().contains_key(&store)
    }

    /// Returns the stores that are avoided now, as many as a put may name: first those that failed this client, because
    /// the leader knows by itself which ones it suspects.
    pub(crate) fn avoided(&self, now: Instant) -> Vec<StoreId> {
        let failures = self.failures.lock();
        let failed: BTreeSet<StoreId> =
            failures.iter().filter(|(_, failing)| now < failing.until).map(|(store, _)| *store).collect();
        drop(failures);
        let suspects = self.suspects.borrow();
        let others = suspects.keys().filter(|store| !failed.contains(store));
        failed.iter().chain(others).copied().take(MAX_NAMED_STORES).collect()
    }

    /// Replaces the suspect stores with the leader's complete list.
    pub(crate) fn hear_all(&self, suspects: impl IntoIterator<Item = StoreId>) {
        let now: BTreeMap<StoreId, Instant> =
            suspects.into_iter().map(|store| (store, Instant::now())).collect();
        self.suspects.send_if_modified(|suspects| {
            let changed = !(suspects.is_empty() && now.is_empty());
            *suspects = now;
            changed
        });
    }

    /// Notes changes of single stores: each comes with whether the leader suspects it.
    pub(crate) fn hear(&self, stores: impl IntoIterator<Item = (StoreId, bool)>) {
        self.suspects.send_if_modified(|suspects| {
            let mut changed = false;
            for (store, suspect) in stores {
                let before =
                    if suspect { suspects.insert(store, Instant::now()) } else { suspects.remove(&store) };
                changed |= suspect || before.is_some();
            }
            changed
        });
    }

    /// Forgets all suspects, because a new leader judges for itself.
    pub(crate) fn forget_suspects(&self) {
        self.suspects.send_if_modified(|suspects| !std::mem::take(suspects).is_empty());
    }

    /// Returns once the leader suspects the store, so that a transfer need not wait for its deadline.
    ///
    /// `offered` is when the call was sent that the leader answered with this store. That answer overrules every
    /// earlier suspicion, so only later ones count.
    pub(crate) async fn suspected(&self, store: StoreId, offered: Instant) {
        let mut suspects = self.suspects.subscribe();
        let since = |suspects: &BTreeMap<_, _>| suspects.get(&store).is_some_and(|since| *since >= offered);
        if suspects.wait_for(since).await.is_err() {
            // The sender belongs to `self`, which is borrowed, so it cannot be gone.
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: StoreId = StoreId(7);

    #[tokio::test]
    async fn a_store_that_keeps_failing_is_avoided_for_a_growing_bounded_time() {
        let list = AvoidList::new();
        let mut now = Instant::now();
        let mut spans = Vec::new();
        for _ in 0..8 {
            assert!(!list.avoids(STORE, now));
            list.failed(STORE, now);
            list.failed(STORE, now);
            let began = now;
            while list.avoids(STORE, now) {
                now += Duration::from_millis(50);
            }
            spans.push(u64::try_from((now - began).as_millis()).unwrap());
        }
        assert_eq!(spans, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        list.worked(STORE);
        list.failed(STORE, now);
        assert!(!list.avoids(STORE, now + FIRST), "a success ends the row");
        assert!(!list.avoids(StoreId(8), now), "others are not its concern");
    }

    #[tokio::test]
    async fn of_many_stores_those_that_failed_are_named() {
        let list = AvoidList::new();
        let many = 2 * MAX_NAMED_STORES as u64;
        list.hear_all((0..many).map(StoreId));
        let failed = StoreId(many + 1);
        list.failed(failed, Instant::now());
        let named = list.avoided(Instant::now());
        assert_eq!((named.len(), named[0]), (MAX_NAMED_STORES, failed));
    }

    #[tokio::test]
    async fn a_suspect_is_avoided_and_wakes_who_waits_for_it() {
        let list = AvoidList::new();
        let long = Duration::from_secs(5);
        let (suspected, ()) =
            tokio::join!(tokio::time::timeout(long, list.suspected(STORE, Instant::now())), async {
                list.hear([(STORE, true)]);
            });
        assert!(suspected.is_ok());
        let later = list.suspected(STORE, Instant::now() + long);
        assert!(futures::FutureExt::now_or_never(later).is_none(), "offered after that, it is waited for");
        assert_eq!(list.avoided(Instant::now()), [STORE]);
        list.hear([(STORE, false)]);
        assert!(list.avoided(Instant::now()).is_empty());
    }
}
