use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use mc_types::StoreId;
use parking_lot::Mutex;

/// Which stores are alive, as this leader hears them. It decides what is offered, never what is lost.
///
/// A store is suspect at once when its heartbeat stream breaks, and after `suspect_after` of silence. One that has not
/// been heard in this term yet is believed for that long and [`Self::spread`] more, over which stores come to a new
/// leader, so that the keys of a healthy store are served right after a failover; so is one whose stream this leader
/// ended, unsure for a moment whether it still led.
///
/// A leader that does not come to listen (its process was stopped, its threads had no processor) does not count that as
/// the stores' silence: what [`Self::refresh`] is late by is not counted.
#[derive(Debug)]
pub(crate) struct Liveness {
    suspect_after_ms: AtomicU64,
    spread_ms: AtomicU64,
    ears: Mutex<Ears>,
    suspects: ArcSwap<Vec<StoreId>>,
    changes: Mutex<Changes>,
}

/// Between two looks at the stores; a leader is late after twice that.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Time that each store adds to the period over which all of them go over to a new leader: 500 connections a second cost it a
/// tenth of a core.
const SPREAD_OF_ONE: Duration = Duration::from_millis(2);
/// Also the longest that keys of a store that died with its leader are offered beyond the time for silence.
const LONGEST_SPREAD: Duration = Duration::from_secs(2);

/// Over how long so many stores go over to a new leader. A few do at once.
fn spread(stores: usize) -> Duration {
    SPREAD_OF_ONE.saturating_mul(u32::try_from(stores).unwrap_or(u32::MAX)).min(LONGEST_SPREAD)
}

/// Which stores turned suspect or alive, and in which order: what a watcher that has seen the first `n` changes has not
/// been told costs what has changed since, not what there is.
#[derive(Debug, Default)]
struct Changes {
    count: u64,
    /// The last change of each store that ever changed.
    last: HashMap<StoreId, u64>,
    in_order: BTreeMap<u64, StoreId>,
}

impl Changes {
    fn note(&mut self, store: StoreId) {
        self.count += 1;
        if let Some(before) = self.last.insert(store, self.count) {
            self.in_order.remove(&before);
        }
        self.in_order.insert(self.count, store);
    }
}

/// News of the stores for one watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct News {
    /// Stores, and whether they are suspect now.
    pub(crate) stores: Vec<(StoreId, bool)>,
    /// Changes that the watcher has been told of with these.
    pub(crate) seen: u64,
    /// There are more.
    pub(crate) more: bool,
}

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
    /// It is expected: it has mounted, or its last stream was ended on this side, which says nothing of the store.
    expected: bool,
}

/// State of a store, from its heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreState {
    /// Heard lately.
    Alive,
    /// Its replicas are not offered.
    Suspect,
}

impl Liveness {
    pub(crate) fn new(suspect_after: Duration, since: Duration) -> Self {
        let liveness = Self {
            suspect_after_ms: AtomicU64::new(0),
            spread_ms: AtomicU64::new(0),
            ears: Mutex::new(Ears { since, looked: since, heard: HashMap::new() }),
            suspects: ArcSwap::default(),
            changes: Mutex::default(),
        };
        liveness.suspect_after(suspect_after);
        liveness
    }

    /// Over how long the stores that were mounted at the last refresh go over to another leader.
    pub(crate) fn spread(&self) -> Duration {
        Duration::from_millis(self.spread_ms.load(Ordering::Relaxed))
    }

    /// From now on a store is suspect after so long a silence.
    pub(crate) fn suspect_after(&self, silence: Duration) {
        let ms = u64::try_from(silence.as_millis()).unwrap_or(u64::MAX);
        self.suspect_after_ms.store(ms, Ordering::Relaxed);
    }

    fn patience(&self) -> Patience {
        let silence = Duration::from_millis(self.suspect_after_ms.load(Ordering::Relaxed));
        Patience { silence, coming: silence + self.spread() }
    }

    /// `store` was mounted: its heartbeats begin shortly.
    pub(crate) fn mounted(&self, store: StoreId, now: Duration) {
        let mut ears = self.ears.lock();
        let entry = ears.heard.entry(store).or_insert(Heard { at: now, streams: 0, expected: true });
        if entry.streams == 0 {
            *entry = Heard { at: now, streams: 0, expected: true };
        }
    }

    /// A stream of heartbeats of `store` has begun.
    pub(crate) fn opened(&self, store: StoreId, now: Duration) {
        let mut ears = self.ears.lock();
        let streams = ears.heard.get(&store).map_or(0, |heard| heard.streams);
        ears.heard.insert(store, Heard { at: now, streams: streams + 1, expected: false });
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
            *entry = Heard { at: now, streams, expected: streams == 0 };
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

    /// Recomputes the list of suspects among `stores`, which are all that are mounted; true when it changed.
    pub(crate) fn refresh(&self, stores: impl Iterator<Item = StoreId>, now: Duration) -> bool {
        let mut ears = self.ears.lock();
        ears.pass_over_own_delay(now);
        let stores: Vec<StoreId> = stores.collect();
        let spread_ms = u64::try_from(spread(stores.len()).as_millis()).unwrap_or(u64::MAX);
        self.spread_ms.store(spread_ms, Ordering::Relaxed);
        let patience = self.patience();
        let mut suspects = stores;
        suspects.retain(|store| ears.state(*store, now, patience) == StoreState::Suspect);
        suspects.sort_unstable();
        // With the lock held until it is replaced: of two changes the later one stays.
        let before = self.suspects.load_full();
        if *before == suspects {
            return false;
        }
        let mut changes = self.changes.lock();
        let differ = |one: &[StoreId], other: &[StoreId]| -> Vec<StoreId> {
            one.iter().copied().filter(|store| other.binary_search(store).is_err()).collect()
        };
        for store in differ(&before, &suspects).into_iter().chain(differ(&suspects, &before)) {
            changes.note(store);
        }
        self.suspects.store(Arc::new(suspects));
        true
    }

    /// Brings the list of suspects up to date about one mounted store, at a cost that does not grow with their number;
    /// true when it changed.
    pub(crate) fn look_at(&self, store: StoreId, now: Duration) -> bool {
        // Both locks are held to the end: a refresh or a watcher in between would take half of this for all.
        let ears = self.ears.lock();
        let suspect = ears.state(store, now, self.patience()) == StoreState::Suspect;
        let before = self.suspects.load_full();
        let mut suspects = match (before.binary_search(&store), suspect) {
            (Ok(_), true) | (Err(_), false) => return false,
            (Ok(_), false) | (Err(_), true) => (*before).clone(),
        };
        match suspects.binary_search(&store) {
            Ok(at) => drop(suspects.remove(at)),
            Err(at) => suspects.insert(at, store),
        }
        let mut changes = self.changes.lock();
        changes.note(store);
        self.suspects.store(Arc::new(suspects));
        true
    }

    /// The suspects as of the last change, sorted.
    pub(crate) fn suspects(&self) -> Arc<Vec<StoreId>> {
        self.suspects.load_full()
    }

    /// Changes after the first `seen` ones, up to `most` stores; for a watcher that has been told nothing, all
    /// suspects.
    pub(crate) fn news(&self, seen: Option<u64>, most: usize) -> News {
        // The list changes under this lock only: it is the one that these changes have led to.
        let changes = self.changes.lock();
        let suspects = self.suspects();
        let Some(seen) = seen else {
            let stores = suspects.iter().map(|store| (*store, true)).collect();
            return News { stores, seen: changes.count, more: false };
        };
        let mut since = changes.in_order.range(seen + 1..);
        let (mut stores, mut told) = (Vec::new(), seen);
        for (at, store) in since.by_ref().take(most) {
            stores.push((*store, suspects.binary_search(store).is_ok()));
            told = *at;
        }
        let more = since.next().is_some();
        News { stores, seen: if more { told } else { changes.count }, more }
    }
}

/// For how long a store is believed.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// One that is silent.
    silence: Duration,
    /// One that has yet to come to this leader, or to come back.
    coming: Duration,
}

impl Ears {
    fn state(&self, store: StoreId, now: Duration, patience: Patience) -> StoreState {
        let believed = match self.heard.get(&store) {
            Some(heard) if heard.streams > 0 => now.saturating_sub(heard.at) < patience.silence,
            Some(heard) => heard.expected && now.saturating_sub(heard.at) < patience.coming,
            None => now.saturating_sub(self.since) < patience.coming,
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
    fn a_new_leader_suspects_no_store_that_it_has_not_heard_while_they_come_over() {
        let stores = || (1..=1_000).map(StoreId);
        let liveness = Liveness::new(AFTER, at(0));
        assert!(!liveness.refresh(stores(), at(0)));
        assert_eq!(liveness.spread(), LONGEST_SPREAD);
        for ms in (100..2_800).step_by(100) {
            assert!(!liveness.refresh(stores(), at(ms)), "{ms} ms");
        }
        // One has come and died since: that is no longer waited for.
        liveness.opened(STORE, at(500));
        liveness.closed(STORE);
        assert!(liveness.refresh(stores(), at(2_700)));
        assert_eq!(*liveness.suspects(), vec![STORE]);
        assert!(liveness.refresh(stores(), at(2_800)));
        assert_eq!(liveness.suspects().len(), 1_000, "and then they are late");
    }

    #[test]
    fn few_stores_go_over_at_once_and_no_number_of_them_takes_longer_than_the_longest_spread() {
        assert_eq!(spread(0), Duration::ZERO);
        assert_eq!(spread(5), at(10));
        assert_eq!(spread(400), at(800));
        assert_eq!([spread(1_000), spread(100_000), spread(usize::MAX)], [LONGEST_SPREAD; 3]);
    }

    #[test]
    fn a_watcher_is_told_all_suspects_and_then_what_changed() {
        let liveness = Liveness::new(AFTER, at(0));
        let (a, b, c) = (StoreId(1), StoreId(2), StoreId(3));
        for store in [a, b, c] {
            liveness.opened(store, at(0));
        }
        assert_eq!(liveness.news(None, 64), News { stores: vec![], seen: 0, more: false });
        liveness.closed(b);
        assert!(liveness.look_at(b, at(1)) && !liveness.look_at(b, at(1)));
        let first = liveness.news(None, 64);
        assert_eq!(first, News { stores: vec![(b, true)], seen: 1, more: false });
        assert_eq!(liveness.news(Some(first.seen), 64).stores, vec![], "nothing has changed");

        liveness.closed(c);
        assert!(liveness.look_at(c, at(2)));
        liveness.opened(b, at(3));
        assert!(liveness.look_at(b, at(3)));
        let next = liveness.news(Some(first.seen), 64);
        assert_eq!(next.stores, vec![(c, true), (b, false)], "each once, as it is now");
        assert_eq!(liveness.news(Some(0), 64).stores, next.stores, "b has only its last change");
        let one = liveness.news(Some(first.seen), 1);
        assert_eq!(
            (&one.stores[..], one.more),
            (&[(c, true)][..], true),
            "the rest comes with the next event"
        );
        let rest = liveness.news(Some(one.seen), 1);
        assert_eq!(rest, News { stores: vec![(b, false)], seen: next.seen, more: false });

        // c was unmounted: it is no suspect any more, and clients that were told so hear it.
        assert!(liveness.refresh([a, b].into_iter(), at(4)));
        assert_eq!(liveness.news(Some(next.seen), 64).stores, vec![(c, false)]);
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
    fn a_store_that_was_expected_is_believed_for_a_moment() {
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

    #[test]
    fn a_store_that_has_mounted_is_believed_until_its_heartbeats_may_be_missed() {
        let liveness = Liveness::new(AFTER, at(0));
        assert!(look_until(&liveness, 0, 900), "nothing was heard of it");
        liveness.mounted(STORE, at(900));
        assert!(liveness.look_at(STORE, at(900)));
        assert_eq!(liveness.state(STORE, at(1_600)), StoreState::Alive);
        liveness.opened(STORE, at(1_650));
        liveness.mounted(STORE, at(1_700));
        liveness.closed(STORE);
        assert_eq!(
            liveness.state(STORE, at(1_701)),
            StoreState::Suspect,
            "a second mount hides no broken stream"
        );
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
