use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use mc_base::StoreId;
use parking_lot::Mutex;

/// Which stores are alive, as this leader hears them. It decides what is offered, never what is lost.
///
/// A store is suspect at once when its heartbeat stream breaks, and after `suspect_after` of silence. One that has not
/// been heard in this term yet is believed for that long, so that the keys of a healthy store are served right after a
/// failover.
#[derive(Debug)]
pub(crate) struct Liveness {
    suspect_after: Duration,
    /// When this leader began to listen.
    since: Duration,
    heard: Mutex<HashMap<StoreId, Heard>>,
    suspects: ArcSwap<Vec<StoreId>>,
}

#[derive(Clone, Copy, Debug)]
struct Heard {
    at: Duration,
    /// Open heartbeat streams; a store that reconnects has two for a moment.
    streams: u32,
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
        Self { suspect_after, since, heard: Mutex::default(), suspects: ArcSwap::default() }
    }

    /// A stream of heartbeats of `store` has begun.
    pub(crate) fn opened(&self, store: StoreId, now: Duration) {
        let mut heard = self.heard.lock();
        let entry = heard.entry(store).or_insert(Heard { at: now, streams: 0 });
        *entry = Heard { at: now, streams: entry.streams + 1 };
    }

    /// A heartbeat has come.
    pub(crate) fn beat(&self, store: StoreId, now: Duration) {
        if let Some(entry) = self.heard.lock().get_mut(&store) {
            entry.at = now;
        }
    }

    /// A stream has ended.
    pub(crate) fn closed(&self, store: StoreId) {
        if let Some(entry) = self.heard.lock().get_mut(&store) {
            entry.streams = entry.streams.saturating_sub(1);
        }
    }

    /// Whether `store` is alive at `now`.
    pub(crate) fn state(&self, store: StoreId, now: Duration) -> StoreState {
        let believed = match self.heard.lock().get(&store) {
            Some(heard) => heard.streams > 0 && now.saturating_sub(heard.at) < self.suspect_after,
            None => now.saturating_sub(self.since) < self.suspect_after,
        };
        if believed { StoreState::Alive } else { StoreState::Suspect }
    }

    /// How long `store` has been silent.
    pub(crate) fn silence(&self, store: StoreId, now: Duration) -> Duration {
        let last = self.heard.lock().get(&store).map_or(self.since, |heard| heard.at);
        now.saturating_sub(last)
    }

    /// Recomputes the list of suspects among `stores`; true when it changed.
    pub(crate) fn refresh(&self, stores: impl Iterator<Item = StoreId>, now: Duration) -> bool {
        let mut suspects: Vec<_> =
            stores.filter(|store| self.state(*store, now) == StoreState::Suspect).collect();
        suspects.sort_unstable();
        if *self.suspects.load_full() == suspects {
            return false;
        }
        self.suspects.store(Arc::new(suspects));
        true
    }

    /// The suspects as of the last refresh, sorted.
    pub(crate) fn suspects(&self) -> Arc<Vec<StoreId>> {
        self.suspects.load_full()
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
    fn silence_makes_suspect_and_a_beat_makes_alive() {
        let liveness = Liveness::new(AFTER, at(0));
        liveness.opened(STORE, at(0));
        assert!(liveness.refresh([STORE].into_iter(), at(900)));
        assert_eq!(*liveness.suspects(), vec![STORE]);
        liveness.beat(STORE, at(950));
        assert!(liveness.refresh([STORE].into_iter(), at(960)));
        assert!(liveness.suspects().is_empty());
        assert!(!liveness.refresh([STORE].into_iter(), at(970)), "nothing has changed");
    }
}
