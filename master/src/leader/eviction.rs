//! Eviction: a task that makes room in a full pool, and the wait of puts for that room.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mc_eviction::{
    Blocked, Chosen, Evictor, Excess, NOTE_INTERVAL, NOTES_PER_ENTRY, OBJECTS_PER_ENTRY, Want, excess,
    tenants_in_excess,
};
use mc_index::{EvictItem, Fit, Request, TenantName};
use mc_types::{Code, StoreId};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::ages::Ages;
use super::duties::pause;
use super::{Coordinator, Leading, Refusal};
use crate::metrics::EvictedFor;

/// Interval at which the pool's use is compared with the watermarks, if no put asks for room before.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// Longest wait of a read for the outcome of an eviction. An entry is decided within milliseconds, unless the leader is
/// losing its majority.
const OUTCOME_WAIT: Duration = Duration::from_secs(1);

/// Where room is made: in the quota of a tenant, or in the pool.
pub(super) type Scope = Option<TenantName>;

/// Maximum number of choices in one scope before others have their turn, those included that find nothing to evict yet.
const CHOICES_PER_TURN: usize = 16;
/// Maximum number of entries that evict in one scope before others have their turn.
const ENTRIES_PER_TURN: usize = 4;
/// Interval at which tenants are compared with their quotas, if no put asks before.
const TENANTS_INTERVAL: Duration = Duration::from_millis(100);
/// Number of scopes whose outcomes are kept while no put waits.
const SCOPES_MAX: usize = 1024;

/// Room in the pool and in the quotas of tenants: what puts ask for, and what evictions have achieved.
#[derive(Debug)]
pub(crate) struct Room {
    /// Room that waiting puts have asked for since the last round.
    wanted: Mutex<BTreeMap<Scope, Asked>>,
    asked: Notify,
    rounds: watch::Sender<Rounds>,
}

/// Room that puts have asked for in one scope.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    excess: Excess,
    /// Bytes of the largest object among those that need it.
    largest: u64,
}

/// Outcomes of evictions.
#[derive(Debug, Default)]
struct Rounds {
    /// The last outcome of each scope that a put has asked for.
    last: BTreeMap<Scope, Round>,
    /// Number of the last outcome. It never starts again, so that no waiting put takes an old outcome for a new one.
    number: u64,
}

/// Outcome of the last round of eviction in a scope.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    number: u64,
    /// Why it freed nothing; `None` if it freed something.
    blocked: Option<Blocked>,
}

/// Result of asking for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    /// An eviction freed bytes: try again.
    Freed,
    /// Nothing can be evicted.
    Blocked(Blocked),
    /// Nothing was freed in time.
    Late,
}

impl Room {
    pub(super) fn new() -> Self {
        Self { wanted: Mutex::default(), asked: Notify::new(), rounds: watch::Sender::default() }
    }

    /// Asks for room, for objects of at most `largest` bytes, and waits until an eviction has freed some, or has found that
    /// it cannot.
    pub(super) async fn make(&self, scope: Scope, wanted: Excess, largest: u64, deadline: Instant) -> Made {
        // Subscribed before asking: the round that answers cannot be missed. An earlier round that ends in between is
        // taken for the answer. The caller then tries once more than necessary.
        let mut rounds = self.rounds.subscribe();
        let number = |rounds: &Rounds| rounds.last.get(&scope).map_or(0, |round| round.number);
        let before = number(&rounds.borrow());
        self.ask(scope, Asked { excess: wanted, largest });
        let answered = rounds.wait_for(|rounds| number(rounds) != before);
        match tokio::time::timeout_at(deadline, answered).await {
            Ok(Ok(rounds)) => match rounds.last.get(&scope).and_then(|round| round.blocked) {
                None => Made::Freed,
                Some(why) => Made::Blocked(why),
            },
            _ => Made::Late,
        }
    }

    fn ask(&self, scope: Scope, more: Asked) {
        let mut all = self.wanted.lock();
        let Asked { excess, largest } = all.entry(scope).or_default();
        excess.bytes = excess.bytes.saturating_add(more.excess.bytes);
        excess.objects = excess.objects.saturating_add(more.excess.objects);
        *largest = more.largest.max(*largest);
        self.asked.notify_one();
    }

    /// Calls `read` until it finds no version that is being evicted, or until such a version was undecided for too long.
    ///
    /// `read` returns its result and whether it met one. A version is decided when its entry is applied, or is known
    /// never to be.
    pub(super) async fn read_settled<R>(&self, mut read: impl FnMut() -> (R, bool)) -> R {
        let (result, undecided) = read();
        if !undecided {
            return result;
        }
        let deadline = Instant::now() + OUTCOME_WAIT;
        loop {
            // Subscribed before reading: a round that ends after the read wakes this task.
            let mut rounds = self.rounds.subscribe();
            let (result, undecided) = read();
            if !undecided || tokio::time::timeout_at(deadline, rounds.changed()).await.is_err() {
                return result;
            }
        }
    }

    /// Lets puts that wait for room in the pool try again, because a sweep has freed bytes.
    pub(super) fn swept(&self) {
        self.ended(None, None);
    }

    /// Wakes reads that wait for the outcome of an eviction.
    fn decided(&self) {
        self.rounds.send_modify(|_| {});
    }

    fn ended(&self, scope: Scope, blocked: Option<Blocked>) {
        self.rounds.send_modify(|rounds| {
            rounds.number += 1;
            rounds.last.insert(scope, Round { number: rounds.number, blocked });
        });
    }

    /// Takes all requests for room. Scopes that nobody has asked for lately are forgotten.
    fn take_wanted(&self) -> BTreeMap<Scope, Asked> {
        let wanted = std::mem::take(&mut *self.wanted.lock());
        if self.rounds.borrow().last.len() > SCOPES_MAX && self.rounds.receiver_count() == 0 {
            self.rounds.send_modify(|rounds| rounds.last.clear());
        }
        wanted
    }
}

/// Why a put found no room, for its caller.
pub(super) fn explain(scope: Scope, made: Made) -> &'static str {
    match made {
        Made::Blocked(Blocked::Leased) if scope.is_some() => {
            "the tenant is at its quota, and its objects are leased by readers: try again later, or raise the quota \
             (mcctl tenants set)"
        }
        Made::Blocked(Blocked::Pinned) if scope.is_some() => {
            "the tenant is at its quota, and the objects that it has left are hard-pinned: remove some, or raise the \
             quota (mcctl tenants set)"
        }
        Made::Blocked(Blocked::Empty) if scope.is_some() => {
            "the tenant is at its quota, and has no object left to evict: its puts in flight take up the quota"
        }
        Made::Blocked(Blocked::Leased) => {
            "the objects that could be evicted are leased by readers: try again later"
        }
        Made::Blocked(Blocked::Pinned) => {
            "the objects that are left are hard-pinned: remove some, or add stores"
        }
        Made::Blocked(Blocked::Empty) => {
            "no object is left to evict: the pool is full of puts in flight, or its free space is in pieces"
        }
        Made::Freed | Made::Late => "eviction did not free enough in time: try again",
    }
}

/// Evicts objects until this master stops; does nothing while it does not lead.
pub(crate) async fn keep_room(coordinator: Arc<Coordinator>) {
    let mut term: Option<Term> = None;
    while wait_for_work(&coordinator).await {
        match coordinator.on_duty() {
            Some(leading) => {
                let mut now = match term.take().filter(|term| Arc::ptr_eq(&term.leading, &leading)) {
                    Some(same) => same,
                    None => Term::begin(&coordinator, leading).await,
                };
                now.round(&coordinator).await;
                term = Some(now);
            }
            // Being unsure for a moment is not the end of a term.
            None if coordinator.raft.view().role != "leader" && term.take().is_some() => {
                coordinator.index.unfollow();
                // The puts that asked for this room have failed by now: a later term must not evict for them.
                coordinator.room.take_wanted();
            }
            None => {}
        }
    }
}

/// Orders the objects of the index, apart from the tasks of the runtime: a large index takes seconds.
async fn ordered(coordinator: &Coordinator) -> Evictor {
    let state = coordinator.index.follow();
    mc_durable::blocking(move || Evictor::of(&state)).await.unwrap_or_default()
}

/// Waits until a put asks for room or the interval is over. Returns false if this master stops.
async fn wait_for_work(coordinator: &Coordinator) -> bool {
    tokio::select! {
        () = coordinator.room.asked.notified() => !coordinator.stop.is_cancelled(),
        goes_on = pause(coordinator, LOOK_INTERVAL) => goes_on,
    }
}

/// Eviction in one term.
struct Term {
    leading: Arc<Leading>,
    evictor: Evictor,
    /// Marked versions whose entry may or may not have been committed.
    undecided: Vec<EvictItem>,
    /// Reason of the last round's evictions, and so of the undecided ones.
    reason: EvictedFor,
    noted_at: Instant,
    ages: Ages,
    /// When tenants were compared with their quotas last.
    looked_at: Instant,
    /// Whether tenants with a quota had no order of their own a second ago.
    outdated: bool,
}

/// Whether an entry with the same items may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Try {
    First,
    Again,
}

/// Outcome of an entry that evicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Applied,
    /// It was refused, or its outcome is unknown: no further one is proposed in this round.
    Failed,
}

/// What an unsuccessful proposal leaves of the marks of its versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marks {
    /// The entry will never be applied: readers may have the versions again.
    Lifted,
    /// The entry, or an earlier one with the same items, may be applied yet.
    Kept,
}

impl Marks {
    /// Every refusal but an unknown outcome is definite. That includes `NotLeader`: a leader whose lease has expired
    /// refuses, and may go on in the same term, with the same leases. An earlier entry with the same items stays
    /// undecided, whatever became of its repetition.
    fn after(refusal: &Refusal, attempt: Try) -> Self {
        match (refusal, attempt) {
            (Refusal::Unknown(_), _) | (_, Try::Again) => Self::Kept,
            (_, Try::First) => Self::Lifted,
        }
    }
}

impl Term {
    async fn begin(coordinator: &Coordinator, leading: Arc<Leading>) -> Self {
        let evictor = ordered(coordinator).await;
        let mut ages = Ages::new();
        ages.note(leading.term, coordinator.raft.view().committed, leading.now());
        Self {
            evictor,
            ages,
            leading,
            undecided: Vec::new(),
            reason: EvictedFor::Watermark,
            noted_at: Instant::now(),
            looked_at: Instant::now(),
            outdated: false,
        }
    }

    /// Brings the order up to date, and evicts down to the low watermark if the pool or a tenant is above the high one, or
    /// as much as puts have asked for. Where free bytes are in pieces that are too small for a put, objects that lie side
    /// by side are evicted first.
    async fn round(&mut self, coordinator: &Coordinator) {
        self.follow(coordinator).await;
        self.note(coordinator).await;
        if !self.undecided.is_empty() {
            let items = std::mem::take(&mut self.undecided);
            if self.evict(coordinator, items, Try::Again).await == Entry::Failed {
                return;
            }
        }
        let mut wanted = coordinator.room.take_wanted();
        let suspects = self.leading.liveness.suspects();
        let Asked { excess: mut asked, largest } = wanted.remove(&None).unwrap_or_default();
        let mut entry = Entry::Applied;
        if asked.bytes > 0 && self.is_in_pieces(coordinator, largest, &suspects) {
            self.reason = EvictedFor::Put;
            match self.clear(coordinator, asked.bytes, largest).await {
                Some(cleared) => asked.bytes = asked.bytes.saturating_sub(cleared),
                None => entry = Entry::Failed,
            }
        }
        if self.looked_at.elapsed() >= TENANTS_INTERVAL {
            self.looked_at = Instant::now();
            for (tenant, excess) in coordinator.index.read(|applied| tenants_in_excess(&applied.state)) {
                let of_tenant = &mut wanted.entry(Some(tenant)).or_default().excess;
                *of_tenant = of_tenant.max(excess);
            }
        }
        self.reason = EvictedFor::Quota;
        for (scope, asked) in wanted {
            entry = self.make_room_unless(entry, coordinator, scope, asked.excess).await;
        }
        // Tenants first: what they gave up is room in the pool, too. What is about to be swept will be.
        let excess = coordinator.index.read(|applied| match applied.state.needs_sweep() {
            true => Excess::default(),
            false => excess(&applied.state, &suspects),
        });
        let for_puts = asked.bytes > excess.bytes || asked.objects > excess.objects;
        self.reason = if for_puts { EvictedFor::Put } else { EvictedFor::Watermark };
        self.make_room_unless(entry, coordinator, None, asked.max(excess)).await;
    }

    /// Evicts in a scope, unless an entry of this round has failed.
    async fn make_room_unless(
        &mut self,
        before: Entry,
        coordinator: &Coordinator,
        scope: Scope,
        wanted: Excess,
    ) -> Entry {
        let entry = match before {
            Entry::Applied => self.make_room(coordinator, scope, wanted).await,
            Entry::Failed => Entry::Failed,
        };
        if entry == Entry::Failed {
            // Puts that wait here try again, and ask again.
            coordinator.room.ended(scope, None);
        }
        entry
    }

    /// Whether an object of `size` bytes finds no room although as many bytes are free.
    fn is_in_pieces(&self, coordinator: &Coordinator, size: u64, suspects: &[StoreId]) -> bool {
        size > 0 && coordinator.index.read(|applied| applied.state.fit_of(size, suspects)) == Fit::InPieces
    }

    /// Evicts objects that lie side by side until `bytes` of objects of `size` fit where they were, or no more such
    /// objects are found. Returns the bytes for which there is room; `None` if an entry failed.
    async fn clear(&mut self, coordinator: &Coordinator, bytes: u64, size: u64) -> Option<u64> {
        let mut cleared = 0;
        while cleared < bytes {
            let suspects = self.leading.liveness.suspects();
            let Self { leading, evictor, .. } = self;
            let found = coordinator.index.read(|applied| {
                evictor.choose_clearing(size, &applied.state, &leading.leases, leading.now(), &suspects)
            });
            self.wake_readers(coordinator);
            let Some((Chosen { items, put_orders, bytes: freed, .. }, room)) = found else { break };
            if self.evict(coordinator, items, Try::First).await == Entry::Failed {
                return None;
            }
            self.count(coordinator, &put_orders, freed);
            coordinator.room.ended(None, None);
            cleared += room - room % size;
            self.follow(coordinator).await;
        }
        Some(cleared)
    }

    /// Evicts as much as is wanted in a scope, or as can be, within a few entries: other scopes have their turn then. The
    /// next round goes on with what is above a watermark, and puts that wait ask again.
    async fn make_room(&mut self, coordinator: &Coordinator, scope: Scope, wanted: Excess) -> Entry {
        if let Some(tenant) = scope
            && !self.evictor.has_order(&tenant)
            && coordinator.index.read(|applied| applied.state.tenant_usage(&tenant).objects.count > 0)
        {
            // It has its quota since a moment ago.
            self.evictor = ordered(coordinator).await;
        }
        let (mut left, mut entries) = (wanted, 0);
        for _ in 0..CHOICES_PER_TURN {
            if left.is_none() || entries == ENTRIES_PER_TURN {
                return Entry::Applied;
            }
            let Chosen { items, put_orders, bytes, blocked } = self.choose(coordinator, scope, left);
            let objects = items.len() as u64;
            if !items.is_empty() {
                if self.evict(coordinator, items, Try::First).await == Entry::Failed {
                    return Entry::Failed;
                }
                self.count(coordinator, &put_orders, bytes);
                coordinator.room.ended(scope, None);
                entries += 1;
            }
            if let Some(blocked) = blocked {
                // A sweep makes room in the pool, too, and wakes the puts that wait.
                let sweeping =
                    scope.is_none() && coordinator.index.read(|applied| applied.state.needs_sweep());
                if objects == 0 && !sweeping {
                    coordinator.room.ended(scope, Some(blocked));
                }
                return Entry::Applied;
            }
            left = left.less(bytes, objects);
            self.follow(coordinator).await;
        }
        if entries == 0 {
            // Nothing but units whose objects are gone: the puts go on waiting, and the next round goes on looking.
            coordinator.room.ask(scope, Asked { excess: left, largest: 0 });
        }
        Entry::Applied
    }

    /// Counts the bytes and ages of what was evicted.
    fn count(&self, coordinator: &Coordinator, put_orders: &[u64], bytes: u64) {
        coordinator.metrics.evicted_bytes(self.reason, bytes);
        let now = self.leading.now();
        for order in put_orders {
            coordinator.metrics.evicted_age(self.reason, self.ages.age(*order, now));
        }
    }

    async fn follow(&mut self, coordinator: &Coordinator) {
        match coordinator.index.take_changes() {
            Ok(changes) => {
                for change in &changes {
                    coordinator.index.read(|applied| self.evictor.follow(change, &applied.state));
                }
            }
            Err(_) => {
                tracing::warn!("the order of eviction lost track of the index and begins again by age");
                self.evictor = ordered(coordinator).await;
            }
        }
        self.leading.hits.drain(|call| self.evictor.hit(call));
        coordinator.index.read(|applied| self.evictor.prune(&applied.state));
    }

    /// Notes in the index, at intervals, which objects were reused, so that the next leader knows.
    async fn note(&mut self, coordinator: &Coordinator) {
        if self.noted_at.elapsed() < NOTE_INTERVAL {
            return;
        }
        self.noted_at = Instant::now();
        self.ages.note(self.leading.term, coordinator.raft.view().committed, self.leading.now());
        // A tenant that came just now may not have been followed yet: it is one only if it still is a second later.
        let was_outdated = std::mem::replace(
            &mut self.outdated,
            coordinator.index.read(|applied| self.evictor.is_outdated(&applied.state)),
        );
        if was_outdated && self.outdated {
            tracing::info!("tenants have other quotas: the order of eviction begins again by age");
            self.evictor = ordered(coordinator).await;
        }
        self.evictor.set_time(self.leading.now());
        let notes =
            coordinator.index.read(|applied| self.evictor.take_notes(NOTES_PER_ENTRY, &applied.state));
        if let Some((keys, epoch, once_share)) = notes {
            let noted = coordinator.propose(&self.leading, Request::note_reuse(keys, epoch, once_share));
            if let Err(why) = noted.await {
                tracing::debug!(%why, "reused objects were not noted");
            }
        }
    }

    fn choose(&mut self, coordinator: &Coordinator, tenant: Scope, wanted: Excess) -> Chosen {
        let suspects = match tenant {
            None => self.leading.liveness.suspects(),
            // Bytes on suspect stores count in a quota.
            Some(_) => Default::default(),
        };
        let Excess { bytes, objects } = wanted;
        let want = Want { tenant, bytes, objects, max: OBJECTS_PER_ENTRY };
        let Self { leading, evictor, .. } = self;
        let chosen = coordinator
            .index
            .read(|applied| evictor.choose(want, &applied.state, &leading.leases, leading.now(), &suspects));
        self.wake_readers(coordinator);
        chosen
    }

    /// Wakes reads that met a mark which a choice took back: no entry is going to decide it.
    fn wake_readers(&self, coordinator: &Coordinator) {
        if self.leading.leases.marks_taken_back() {
            coordinator.room.decided();
        }
    }

    /// Proposes the eviction of marked versions, and removes the marks once each is decided. Versions of unknown outcome
    /// become `undecided`, which is empty before.
    ///
    /// The leader's log is in the order of its proposals. So when a later entry of this term is applied, an earlier one
    /// of unknown outcome has been applied before it or never will be: repeating the items decides them.
    async fn evict(&mut self, coordinator: &Coordinator, items: Vec<EvictItem>, attempt: Try) -> Entry {
        let reuse_at = self.leading.evicted_until();
        let request = Request::evict(items.clone(), reuse_at);
        let refusal = match coordinator.propose(&self.leading, request).await {
            Ok(codes) => {
                let evicted = codes.iter().filter(|code| **code == Code::Ok).count();
                coordinator.metrics.evicted_objects(self.reason, evicted as u64);
                self.unmark(&items);
                // A group that has changed since it was chosen stays.
                let stays =
                    |(item, code): (&EvictItem, &Code)| (*code == Code::VersionChanged).then_some(*item);
                let stay: Vec<_> = items.iter().zip(&codes).filter_map(stays).collect();
                coordinator.index.read(|applied| self.evictor.keep(&stay, &applied.state));
                coordinator.room.decided();
                return Entry::Applied;
            }
            Err(refusal) => refusal,
        };
        // Losing the leadership is logged elsewhere.
        if !matches!(refusal, Refusal::NotLeader { .. }) {
            tracing::warn!(%refusal, objects = items.len(), "an eviction was not committed; it is tried again");
        }
        match Marks::after(&refusal, attempt) {
            Marks::Kept => self.undecided = items,
            Marks::Lifted => {
                self.unmark(&items);
                coordinator.index.read(|applied| self.evictor.keep(&items, &applied.state));
                coordinator.room.decided();
            }
        }
        Entry::Failed
    }

    fn unmark(&self, items: &[EvictItem]) {
        for item in items {
            self.leading.leases.unmark(item.version);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_entry_that_may_be_applied_yet_keeps_its_marks() {
        let not_leader = Refusal::NotLeader { leader: None, term: 7 };
        let unknown = Refusal::Unknown("no answer".into());
        let invalid = Refusal::Invalid("too large".into());
        assert_eq!(Marks::after(&unknown, Try::First), Marks::Kept);
        // The term may go on with the same leases: a mark that stayed would hide its object until the term ends.
        for definite in [&not_leader, &invalid] {
            assert_eq!(Marks::after(definite, Try::First), Marks::Lifted);
            assert_eq!(
                Marks::after(definite, Try::Again),
                Marks::Kept,
                "the first try is as undecided as before"
            );
        }
    }
}
