use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use mc_types::StoreId;
use parking_lot::Mutex;

/// Liveness of the stores, as this leader hears them. It decides which replicas are offered, never what is lost.
///
/// A store is suspect at once when its heartbeat stream breaks, and otherwise after `suspect_after` of silence. A store
/// that this leader has not heard in its term counts as alive for that time plus [`Self::spread`], the period over
/// which stores come to a new leader. So the keys of a healthy store are served right after a failover. The same goes
/// for a store whose stream this leader ended while it was unsure whether it still led.
///
/// A leader may fail to listen, because its process was stopped or its threads got no CPU. It then subtracts the delay
/// of its own [`Self::refresh`] from the stores' silence.
#[derive(Debug)]
pub(crate) struct Liveness {
    suspect_after_ms: AtomicU64,
    spread_ms: AtomicU64,
    heartbeats: Mutex<Heartbeats>,
    suspects: ArcSwap<Vec<StoreId>>,
    changes: Mutex<ChangeLog>,
}

/// Time between two looks at the stores. A leader is late after twice that.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Time that each store adds to the period over which all stores go over to a new leader. At that rate, 500 connections
/// a second, the leader spends a tenth of a core on them.
const SPREAD_OF_ONE: Duration = Duration::from_millis(2);
/// Longest such period. Also the longest time beyond `suspect_after` for which the keys of a store that died with its
/// leader are offered.
const LONGEST_SPREAD: Duration = Duration::from_secs(2);

/// Period over which `stores` stores go over to a new leader. A few go over nearly at once.
fn spread(stores: usize) -> Duration {
    SPREAD_OF_ONE.saturating_mul(u32::try_from(stores).unwrap_or(u32::MAX)).min(LONGEST_SPREAD)
}

/// Log of which stores turned suspect or alive, in order. Telling a watcher what is new since the first `n` changes
/// costs by what has changed since, not by the number of stores.
#[derive(Debug, Default)]
struct ChangeLog {
    count: u64,
    /// The last change of each store that ever changed.
    last: HashMap<StoreId, u64>,
    in_order: BTreeMap<u64, StoreId>,
}

impl ChangeLog {
    fn note(&mut self, store: StoreId) {
        self.count += 1;
        if let Some(before) = self.last.insert(store, self.count) {
            self.in_order.remove(&before);
        }
        self.in_order.insert(self.count, store);
    }
}

/// Changes of the stores, for one watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreEvents {
    /// Stores, each with whether it is suspect now.
    pub(crate) stores: Vec<(StoreId, bool)>,
    /// Number of changes that the watcher has been told, these included.
    pub(crate) seen: u64,
    /// Whether more changes remain to be told.
    pub(crate) more: bool,
}

#[derive(Debug)]
struct Heartbeats {
    /// When this leader began to listen.
    since: Duration,
    looked: Duration,
    heard: HashMap<StoreId, LastHeard>,
}

#[derive(Clone, Copy, Debug)]
struct LastHeard {
    at: Duration,
    /// Open heartbeat streams; a store that reconnects has two for a moment.
    streams: u32,
    /// Whether the store is expected to open a stream: it has mounted, or this leader ended its last stream, which says
    /// nothing about the store.
    expected: bool,
}

/// State of a store, from its heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreState {
    /// Heard recently, or not overdue yet.
    Alive,
    /// Silent for too long: its replicas are not offered.
    Suspect,
}

impl Liveness {
    pub(crate) fn new(suspect_after: Duration, since: Duration) -> Self {
        let liveness = Self {
            suspect_after_ms: AtomicU64::new(0),
            spread_ms: AtomicU64::new(0),
            heartbeats: Mutex::new(Heartbeats { since, looked: since, heard: HashMap::new() }),
            suspects: ArcSwap::default(),
            changes: Mutex::default(),
        };
        liveness.suspect_after(suspect_after);
        liveness
    }

    /// Period over which the stores that were mounted at the last refresh go over to another leader.
    pub(crate) fn spread(&self) -> Duration {
        Duration::from_millis(self.spread_ms.load(Ordering::Relaxed))
    }

    /// Sets the silence after which a store is suspect from now on.
    pub(crate) fn suspect_after(&self, silence: Duration) {
        let ms = u64::try_from(silence.as_millis()).unwrap_or(u64::MAX);
        self.suspect_after_ms.store(ms, Ordering::Relaxed);
    }

    fn limits(&self) -> SilenceLimits {
        let silence = Duration::from_millis(self.suspect_after_ms.load(Ordering::Relaxed));
        SilenceLimits { silence, coming: silence + self.spread() }
    }

    /// Notes that `store` was mounted: its heartbeats begin shortly.
    pub(crate) fn mounted(&self, store: StoreId, now: Duration) {
        let mut heartbeats = self.heartbeats.lock();
        let entry =
            heartbeats.heard.entry(store).or_insert(LastHeard { at: now, streams: 0, expected: true });
        if entry.streams == 0 {
            *entry = LastHeard { at: now, streams: 0, expected: true };
        }
    }

    /// Notes that a heartbeat stream of `store` has begun.
    pub(crate) fn opened(&self, store: StoreId, now: Duration) {
        let mut heartbeats = self.heartbeats.lock();
        let streams = heartbeats.heard.get(&store).map_or(0, |heard| heard.streams);
        heartbeats.heard.insert(store, LastHeard { at: now, streams: streams + 1, expected: false });
    }

    /// Notes a heartbeat of `store`.
    pub(crate) fn beat(&self, store: StoreId, now: Duration) {
        if let Some(entry) = self.heartbeats.lock().heard.get_mut(&store) {
            entry.at = now;
        }
    }

    /// Notes that a stream of `store` has ended.
    pub(crate) fn closed(&self, store: StoreId) {
        if let Some(entry) = self.heartbeats.lock().heard.get_mut(&store) {
            entry.streams = entry.streams.saturating_sub(1);
        }
    }

    /// Notes that `store` sent a heartbeat and this leader ended the stream instead of answering.
    pub(crate) fn let_go(&self, store: StoreId, now: Duration) {
        if let Some(entry) = self.heartbeats.lock().heard.get_mut(&store) {
            let streams = entry.streams.saturating_sub(1);
            *entry = LastHeard { at: now, streams, expected: streams == 0 };
        }
    }

    /// Whether `store` is alive at `now`.
    pub(crate) fn state(&self, store: StoreId, now: Duration) -> StoreState {
        self.heartbeats.lock().state(store, now, self.limits())
    }

    /// How long `store` has been silent.
    pub(crate) fn silence(&self, store: StoreId, now: Duration) -> Duration {
        let heartbeats = self.heartbeats.lock();
        let last = heartbeats.heard.get(&store).map_or(heartbeats.since, |heard| heard.at);
        now.saturating_sub(last)
    }

    /// Recomputes the list of suspects; `stores` are all mounted stores. Returns whether the list changed.
    pub(crate) fn refresh(&self, stores: impl Iterator<Item = StoreId>, now: Duration) -> bool {
        let mut heartbeats = self.heartbeats.lock();
        heartbeats.pass_over_own_delay(now);
        let stores: Vec<StoreId> = stores.collect();
        let spread_ms = u64::try_from(spread(stores.len()).as_millis()).unwrap_or(u64::MAX);
        self.spread_ms.store(spread_ms, Ordering::Relaxed);
        let limits = self.limits();
        let mut suspects = stores;
        suspects.retain(|store| heartbeats.state(*store, now, limits) == StoreState::Suspect);
        suspects.sort_unstable();
        // The lock is held until the list is replaced, so that of two changes the later one stays.
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

    /// Updates the list of suspects for one mounted store, without a look at the others. Returns whether the list
    /// changed.
    pub(crate) fn look_at(&self, store: StoreId, now: Duration) -> bool {
        // Both locks are held to the end, so that neither a refresh nor a watcher sees half of this change.
        let heartbeats = self.heartbeats.lock();
        let suspect = heartbeats.state(store, now, self.limits()) == StoreState::Suspect;
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

    /// Returns the changes after the first `seen` ones, for up to `most` stores. A watcher that has been told nothing
    /// gets all suspects.
    pub(crate) fn news(&self, seen: Option<u64>, most: usize) -> StoreEvents {
        // The list changes only under this lock, so it is the result of exactly these changes.
        let changes = self.changes.lock();
        let suspects = self.suspects();
        let Some(seen) = seen else {
            let stores = suspects.iter().map(|store| (*store, true)).collect();
            return StoreEvents { stores, seen: changes.count, more: false };
        };
        let mut since = changes.in_order.range(seen + 1..);
        let (mut stores, mut told) = (Vec::new(), seen);
        for (at, store) in since.by_ref().take(most) {
            stores.push((*store, suspects.binary_search(store).is_ok()));
            told = *at;
        }
        let more = since.next().is_some();
        StoreEvents { stores, seen: if more { told } else { changes.count }, more }
    }
}

/// How long a store counts as alive after it was last heard.
#[derive(Clone, Copy, Debug)]
struct SilenceLimits {
    /// For a store with an open stream.
    silence: Duration,
    /// For a store without a stream that is expected to open one: after a change of the leader, or to come back.
    coming: Duration,
}

impl Heartbeats {
    fn state(&self, store: StoreId, now: Duration, limits: SilenceLimits) -> StoreState {
        let believed = match self.heard.get(&store) {
            Some(heard) if heard.streams > 0 => now.saturating_sub(heard.at) < limits.silence,
            Some(heard) => heard.expected && now.saturating_sub(heard.at) < limits.coming,
            None => now.saturating_sub(self.since) < limits.coming,
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
        // One store has come and died since, so it is not waited for any more.
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
        assert_eq!(liveness.news(None, 64), StoreEvents { stores: vec![], seen: 0, more: false });
        liveness.closed(b);
        assert!(liveness.look_at(b, at(1)) && !liveness.look_at(b, at(1)));
        let first = liveness.news(None, 64);
        assert_eq!(first, StoreEvents { stores: vec![(b, true)], seen: 1, more: false });
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
        assert_eq!(rest, StoreEvents { stores: vec![(b, false)], seen: next.seen, more: false });

        // c was unmounted: it is no suspect any more, and clients that had heard of it are told so.
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

    /// Refreshes every 100 ms, like a leader that is never late. Returns whether the last refresh changed the list.
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
