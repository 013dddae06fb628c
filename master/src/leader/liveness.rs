use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use mc_base::StoreId;
use parking_lot::Mutex;

/// Which stores are alive, as this leader hears them. It decides what is offered, never what is lost.
///
/// A store is suspect at once when its heartbeat stream breaks, and after `suspect_after` of silence. One that has not
/// been heard in this term yet is believed for that long, so that the keys of a healthy store are served right after a
/// failover; so is one whose stream this leader ended, unsure for a moment whether it still led.
///
/// A leader that does not come to listen (its process was stopped, its threads had no processor) does not count that as
/// the stores' silence: what [`Self::refresh`] is late by is not counted.
#[derive(Debug)]
pub(crate) struct Liveness {
    suspect_after_ms: AtomicU64,
    ears: Mutex<Ears>,
    suspects: ArcSwap<Vec<StoreId>>,
}

/// Between two looks at the stores; a leader is late after twice that.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug)]
struct Ears {
    /// When this leader began to listen.
    since: Duration,
    looked: Duration,
    heard: HashMap<StoreId, Heard>,
}

#[derive(Clone, Copy, Debug)]
struct Heard {
    at: Duration,
    /// Open heartbeat streams; a store that reconnects has two for a moment.
    streams: u32,
    /// The last stream was ended on this side, which says nothing of the store.
    let_go: bool,
}

/// What a store's heartbeats say of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreState {
    /// Heard lately.
    Alive,
    /// Its replicas are not offered.
    Suspect,
}

impl Liveness {
    pub(crate) fn new(suspect_after: Duration, since: Duration) -> Self {
        let ears = Mutex::new(Ears { since, looked: since, heard: HashMap::new() });
        let liveness = Self { suspect_after_ms: AtomicU64::new(0), ears, suspects: ArcSwap::default() };
        liveness.suspect_after(suspect_after);
        liveness
    }

    /// From now on a store is suspect after so long a silence.
    pub(crate) fn suspect_after(&self, silence: Duration) {
        let ms = u64::try_from(silence.as_millis()).unwrap_or(u64::MAX);
        self.suspect_after_ms.store(ms, Ordering::Relaxed);
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(self.suspect_after_ms.load(Ordering::Relaxed))
    }

    /// A stream of heartbeats of `store` has begun.
    pub(crate) fn opened(&self, store: StoreId, now: Duration) {
        let mut ears = self.ears.lock();
        let streams = ears.heard.get(&store).map_or(0, |heard| heard.streams);
        ears.heard.insert(store, Heard { at: now, streams: streams + 1, let_go: false });
    }

    /// A heartbeat has come.
    pub(crate) fn beat(&self, store: StoreId, now: Duration) {
        if let Some(entry) = self.ears.lock().heard.get_mut(&store) {
            entry.at = now;
        }
    }

    /// A stream has ended.
    pub(crate) fn closed(&self, store: StoreId) {
        if let Some(entry) = self.ears.lock().heard.get_mut(&store) {
            entry.streams = entry.streams.saturating_sub(1);
        }
    }

    /// A heartbeat has come and its stream was ended in the place of an answer.
    pub(crate) fn let_go(&self, store: StoreId, now: Duration) {
        if let Some(entry) = self.ears.lock().heard.get_mut(&store) {
            let streams = entry.streams.saturating_sub(1);
            *entry = Heard { at: now, streams, let_go: streams == 0 };
        }
    }

    /// Whether `store` is alive at `now`.
    pub(crate) fn state(&self, store: StoreId, now: Duration) -> StoreState {
        self.ears.lock().state(store, now, self.patience())
    }

    /// How long `store` has been silent.
    pub(crate) fn silence(&self, store: StoreId, now: Duration) -> Duration {
        let ears = self.ears.lock();
        let last = ears.heard.get(&store).map_or(ears.since, |heard| heard.at);
        now.saturating_sub(last)
    }

    /// Recomputes the list of suspects among `stores`; true when it changed.
    pub(crate) fn refresh(&self, stores: impl Iterator<Item = StoreId>, now: Duration) -> bool {
        let mut ears = self.ears.lock();
        ears.pass_over_own_delay(now);
        let mut suspects: Vec<_> =
            stores.filter(|store| ears.state(*store, now, self.patience()) == StoreState::Suspect).collect();
        suspects.sort_unstable();
        if **self.suspects.load() == suspects {
            return false;
        }
        // With the lock held: of two refreshes the later one stays.
        self.suspects.store(Arc::new(suspects));
        true
    }

    /// The suspects as of the last refresh, sorted.
    pub(crate) fn suspects(&self) -> Arc<Vec<StoreId>> {
        self.suspects.load_full()
    }
}

impl Ears {
    fn state(&self, store: StoreId, now: Duration, suspect_after: Duration) -> StoreState {
        let believed = match self.heard.get(&store) {
            Some(heard) => {
                (heard.streams > 0 || heard.let_go) && now.saturating_sub(heard.at) < suspect_after
            }
            None => now.saturating_sub(self.since) < suspect_after,
        };
        if believed { StoreState::Alive } else { StoreState::Suspect }
    }

    fn pass_over_own_delay(&mut self, now: Duration) {
        let late = now.saturating_sub(self.looked).saturating_sub(2 * LOOK_INTERVAL);
        self.looked = now;
        if late.is_zero() {
            return;
        }
        self.since = (self.since + late).min(now);
        for heard in self.heard.values_mut() {
            heard.at = (heard.at + late).min(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Duration = Duration::from_millis(800);
    const STORE: StoreId = StoreId(1);

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_store_not_yet_heard_is_believed_for_a_moment() {
        let liveness = Liveness::new(AFTER, at(100));
        assert_eq!(liveness.state(STORE, at(800)), StoreState::Alive);
        assert_eq!(liveness.state(STORE, at(900)), StoreState::Suspect);
    }

    #[test]
    fn a_broken_stream_is_suspect_at_once_unless_another_is_open() {
        let liveness = Liveness::new(AFTER, at(0));
        liveness.opened(STORE, at(0));
        liveness.opened(STORE, at(10));
        liveness.closed(STORE);
        assert_eq!(liveness.state(STORE, at(20)), StoreState::Alive);
        liveness.closed(STORE);
        assert_eq!(liveness.state(STORE, at(20)), StoreState::Suspect);
    }

    #[test]
    fn a_store_that_was_let_go_is_believed_for_a_moment() {
        let liveness = Liveness::new(AFTER, at(0));
        liveness.opened(STORE, at(0));
        liveness.let_go(STORE, at(700));
        assert_eq!(liveness.state(STORE, at(1_499)), StoreState::Alive);
        assert_eq!(liveness.state(STORE, at(1_500)), StoreState::Suspect, "it has not come back");

        liveness.opened(STORE, at(2_000));
        liveness.closed(STORE);
        assert_eq!(
            liveness.state(STORE, at(2_000)),
            StoreState::Suspect,
            "this time it ended the stream itself"
        );

        liveness.opened(STORE, at(3_000));
        liveness.opened(STORE, at(3_010));
        liveness.let_go(STORE, at(3_020));
        liveness.closed(STORE);
        assert_eq!(liveness.state(STORE, at(3_030)), StoreState::Suspect, "it was back before it was let go");
    }

    /// Refreshes as a leader does that is never late; true when the last one changed something.
    fn look_until(liveness: &Liveness, from: u64, to: u64) -> bool {
        let mut changed = false;
        for ms in (from..=to).step_by(100) {
            changed = liveness.refresh([STORE].into_iter(), at(ms));
        }
        changed
    }

    #[test]
    fn a_leader_that_was_stopped_does_not_take_its_own_silence_for_the_store_s() {
        let liveness = Liveness::new(AFTER, at(0));
        liveness.opened(STORE, at(0));
        assert!(!look_until(&liveness, 0, 500));
        assert!(!liveness.refresh([STORE].into_iter(), at(10_500)), "10 s of nothing, on this side");
        assert!(look_until(&liveness, 10_600, 10_600), "and then the rest of 800 ms of the store's");
    }

    #[test]
    fn silence_makes_suspect_and_a_beat_makes_alive() {
        let liveness = Liveness::new(AFTER, at(0));
        liveness.opened(STORE, at(0));
        assert!(!look_until(&liveness, 0, 700));
        assert!(look_until(&liveness, 800, 800));
        assert_eq!(*liveness.suspects(), vec![STORE]);
        liveness.beat(STORE, at(850));
        assert!(liveness.refresh([STORE].into_iter(), at(860)));
        assert!(liveness.suspects().is_empty());
        assert!(!liveness.refresh([STORE].into_iter(), at(870)), "nothing has changed");
    }
}
