//! Eviction: a task that makes room in a full pool, for the watermarks and for the puts that wait.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mc_eviction::{
    ClearingStep, EvictionBlocked, EvictionGoal, Evictor, Excess, NOTE_INTERVAL, NOTES_PER_ENTRY,
    OBJECTS_PER_ENTRY, OBJECTS_PER_ENTRY_FOR_PUTS, Scope, Victims, excess, tenants_in_excess,
};
use mc_index::{EvictItem, Fit, Memory, Request, State, TenantName, Usage, bound};
use mc_raft::Applied;
use mc_types::{Code, SegmentEpoch, StoreId};
use tokio::time::Instant;

use super::Objects;
use super::ages::Ages;
use super::queue::{PutQueue, RoomNeed, Ticket};
use super::room::{WaitOutcome, free_in, outside};
use crate::leader::term::{Leading, Refusal};
use crate::metrics::EvictedFor;

/// Interval at which the pool's use is compared with the watermarks, if no put asks for room before.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum number of choices in one scope before others have their turn, those included that find nothing to evict yet.
const CHOICES_PER_TURN: usize = 16;
/// Maximum number of entries that evict in one scope before others have their turn.
const ENTRIES_PER_TURN: usize = 4;
/// Maximum number of tenants in whose own stores room is made before the common stores have their turn again.
const OWNERS_PER_TURN: usize = 4;
/// Maximum number of tenants that are compared at a time.
const TENANTS_PER_LOOK: usize = 4096;
/// Maximum number of places that can't be cleared to the end, of those that are tried for one put.
const SPOILED_MAX: usize = 3;
/// Interval at which tenants are compared with their quotas, if no put asks before.
const TENANTS_INTERVAL: Duration = Duration::from_millis(100);
/// Whether objects may be evicted in a memory while puts in flight take so many of its bytes: at most half of the capacity.
///
/// A put in flight takes its bytes until its deadline, also if its writer never ends it. Without a bound, one client that
/// starts puts and ends none would evict all objects of all others.
fn may_evict_for(in_flight: u64, capacity: u64) -> bool {
    in_flight <= capacity / 2
}

/// Returns what is above the watermark of a memory. A tenant's own stores have nothing above theirs while all stores that are open
/// to the tenant are below it: its next puts go to common stores then.
fn above_watermark(state: &State, memory: Memory, suspects: &[StoreId]) -> Excess {
    match memory {
        Memory::OwnedBy(tenant)
            if excess(state, memory, &state.stores_closed_to(&tenant, suspects)).is_none() =>
        {
            Excess::default()
        }
        _ => excess(state, memory, &state.stores_outside(memory, suspects)),
    }
}

/// Why a put found no room, for its caller.
pub(super) fn explain(scope: Scope, made: WaitOutcome) -> &'static str {
    let is_quota = matches!(scope, Scope::Quota(_));
    match made {
        WaitOutcome::Blocked(EvictionBlocked::Leased) if is_quota => {
            "the tenant is at its quota, and its objects are leased by readers: try again later, or raise the quota \
             (mcctl tenants set)"
        }
        WaitOutcome::Blocked(EvictionBlocked::Pinned) if is_quota => {
            "the tenant is at its quota, and the objects that it has left are hard-pinned: remove some, or raise the \
             quota (mcctl tenants set)"
        }
        WaitOutcome::Blocked(EvictionBlocked::Empty) if is_quota => {
            "the tenant is at its quota, and has no object left to evict: its puts in flight take up the quota"
        }
        WaitOutcome::Blocked(EvictionBlocked::Leased) => {
            "the objects that could be evicted are leased by readers: try again later"
        }
        WaitOutcome::Blocked(EvictionBlocked::Pinned) => {
            "the objects that are left are hard-pinned: remove some, or add stores"
        }
        WaitOutcome::Blocked(EvictionBlocked::Empty) => {
            "no object is left to evict: the pool is full of puts in flight, or its free space is in pieces"
        }
        WaitOutcome::Blocked(EvictionBlocked::InFlight) => {
            "puts in flight take more than half of the pool, so no objects are evicted for further ones: end or revoke them, \
             or try again later"
        }
        WaitOutcome::Room | WaitOutcome::Late => "eviction did not free enough in time: try again",
    }
}

/// Evicts objects until this master stops; does nothing while it does not lead.
pub(crate) async fn keep_room(objects: Arc<Objects>) {
    let mut term: Option<TermEviction> = None;
    while wait_for_work(&objects).await {
        match objects.coordinator.on_duty() {
            Some(leading) => {
                let mut now = match term.take().filter(|term| Arc::ptr_eq(&term.leading, &leading)) {
                    Some(same) => same,
                    None => TermEviction::begin(&objects, leading).await,
                };
                now.round(&objects).await;
                term = Some(now);
            }
            // Being unsure for a moment is not the end of a term.
            None if !objects.coordinator.is_leader() => {
                if term.take().is_some() {
                    objects.index.unfollow();
                }
                // Their next try says who leads. A later term must not evict for them.
                if !objects.room.is_idle() {
                    objects.room.tell(PutQueue::end_term);
                }
            }
            None => {}
        }
    }
}

/// Orders the objects of the index, apart from the tasks of the runtime: a large index takes seconds.
async fn ordered(objects: &Objects) -> Evictor {
    let state = objects.index.follow();
    mc_durable::blocking(move || Evictor::of(&state)).await.unwrap_or_default()
}

/// Waits until a put asks for room or the interval is over. Returns false if this master stops.
async fn wait_for_work(objects: &Objects) -> bool {
    tokio::select! {
        () = objects.room.asked.notified() => !objects.coordinator.is_stopping(),
        goes_on = objects.coordinator.pause(LOOK_INTERVAL) => goes_on,
    }
}

/// Eviction in one term.
struct TermEviction {
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
    /// Tenants above the high watermark of their quota then, and what each has left above the low one.
    above: BTreeMap<TenantName, Excess>,
    /// Tenants with stores of their own then, but for those found below the high watermark since.
    full: BTreeSet<TenantName>,
    /// Tenant whose turn it is next.
    next_tenant: TenantName,
    /// Tenant whose own stores have their turn next.
    next_owner: TenantName,
    /// Common stores a second ago, as long as there are stores of tenants.
    common: Vec<(StoreId, SegmentEpoch)>,
    /// Whether tenants with a quota had no order of their own a second ago.
    outdated: bool,
}

/// Objects of several tenants that one entry evicts.
#[derive(Default)]
struct Batch {
    chosen: Victims,
    /// Bytes and objects freed in the quota of each tenant.
    freed: Vec<(Scope, Excess)>,
}

/// Whether an entry with the same items may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    First,
    Again,
}

/// Outcome of an entry that evicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryOutcome {
    Applied,
    /// It was refused, or its outcome is unknown: no further one is proposed in this round.
    Failed,
}

/// Marks that remain on its versions after an unsuccessful proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marks {
    /// The entry will never be applied: readers may have the versions again.
    Lifted,
    /// The entry, or an earlier one with the same items, may still be applied.
    Kept,
}

impl Marks {
    /// Every refusal but an unknown outcome is definite. That includes `NotLeader`: a leader whose lease has expired
    /// refuses, and may go on in the same term, with the same leases. An earlier entry with the same items stays
    /// undecided, whatever became of its repetition.
    fn after(refusal: &Refusal, attempt: Attempt) -> Self {
        match (refusal, attempt) {
            (Refusal::Unknown(_), _) | (_, Attempt::Again) => Self::Kept,
            (_, Attempt::First) => Self::Lifted,
        }
    }
}

impl TermEviction {
    async fn begin(objects: &Objects, leading: Arc<Leading>) -> Self {
        let evictor = {
            let mut ordered = std::pin::pin!(ordered(objects));
            loop {
                // Ordering a large index takes seconds, in which puts may find room without an eviction.
                tokio::select! {
                    evictor = &mut ordered => break evictor,
                    () = tokio::time::sleep(LOOK_INTERVAL) => {
                        objects.let_in(&leading);
                    }
                }
            }
        };
        let mut ages = Ages::new();
        ages.note(leading.term, objects.coordinator.committed(), leading.now());
        Self {
            evictor,
            ages,
            leading,
            undecided: Vec::new(),
            reason: EvictedFor::Watermark,
            noted_at: Instant::now(),
            looked_at: Instant::now(),
            above: BTreeMap::new(),
            full: BTreeSet::new(),
            next_tenant: TenantName::new(b""),
            next_owner: TenantName::new(b""),
            common: Vec::new(),
            outdated: false,
        }
    }

    /// Brings the order up to date, and evicts down to the low watermark if the pool or a tenant is above the high one, or
    /// as much as waiting puts need. Where free bytes are in pieces that are too small for a put, objects that lie side by
    /// side are evicted first.
    async fn round(&mut self, objects: &Objects) {
        self.follow(objects).await;
        self.note(objects).await;
        if !self.undecided.is_empty() {
            let items = std::mem::take(&mut self.undecided);
            if self.evict(objects, items, Attempt::Again).await == EntryOutcome::Failed {
                return;
            }
        }
        if self.looked_at.elapsed() >= TENANTS_INTERVAL {
            self.looked_at = Instant::now();
            let mut tenants = self.evictor.take_touched(TENANTS_PER_LOOK);
            tenants.extend(self.above.keys());
            let above = objects.index.read(|applied| tenants_in_excess(&applied.state, tenants));
            self.above = above.into_iter().collect();
            self.full = objects.index.read(|applied| applied.state.owners());
        }
        objects.let_in(&self.leading);
        // Tenants first: what they give up is room in the pool, too. The pool has its turn after a few entries.
        if self.make_room_in_quotas(objects).await == EntryOutcome::Failed {
            return;
        }
        if self.make_room_in(objects, Memory::Common).await == EntryOutcome::Failed {
            return;
        }
        let mut owners = self.full.clone();
        owners.extend(objects.room.queue(|queue| {
            let owner = |scope| match scope {
                Scope::Memory(Memory::OwnedBy(tenant)) => Some(tenant),
                _ => None,
            };
            queue.scopes().filter_map(owner).collect::<Vec<_>>()
        }));
        let in_turn = owners.range(self.next_owner..).chain(owners.range(..self.next_owner)).copied();
        let mut in_turn = in_turn.collect::<Vec<_>>().into_iter();
        for tenant in in_turn.by_ref().take(OWNERS_PER_TURN) {
            if self.make_room_in(objects, Memory::OwnedBy(tenant)).await == EntryOutcome::Failed {
                return;
            }
        }
        // The others have their turn in the next round.
        if let Some(next) = in_turn.next() {
            self.next_owner = next;
        }
    }

    /// Evicts in a memory what exceeds its watermark or what its waiters need.
    async fn make_room_in(&mut self, objects: &Objects, memory: Memory) -> EntryOutcome {
        let scope = Scope::Memory(memory);
        let suspects = self.leading.liveness.suspects();
        let (above, may_evict) = objects.index.read(|applied| {
            let state = &applied.state;
            let Usage { capacity, in_flight, .. } = state.usage(&state.stores_outside(memory, &suspects));
            (above_watermark(state, memory, &suspects), may_evict_for(in_flight, capacity))
        });
        if let (Memory::OwnedBy(tenant), true) = (memory, above.is_none()) {
            self.full.remove(&tenant);
        }
        if !may_evict {
            objects.room.tell(|queue| queue.block(scope, EvictionBlocked::InFlight, true));
            return EntryOutcome::Applied;
        }
        if self.clear(objects, scope).await == EntryOutcome::Failed {
            return EntryOutcome::Failed;
        }
        self.evict_in(objects, scope, above).await
    }

    /// Evicts objects of tenants that are above a watermark of their quota, or whose puts wait: in turn, and those of
    /// several tenants in one entry, so that many tenants don't keep each other or the pool waiting.
    async fn make_room_in_quotas(&mut self, objects: &Objects) -> EntryOutcome {
        self.reason = EvictedFor::Quota;
        let mut tenants: BTreeSet<TenantName> = self.above.keys().copied().collect();
        tenants.extend(objects.room.queue(|queue| {
            let tenant = |scope| if let Scope::Quota(tenant) = scope { Some(tenant) } else { None };
            queue.scopes().filter_map(tenant).collect::<Vec<_>>()
        }));
        if tenants.is_empty() {
            return EntryOutcome::Applied;
        }
        let before = tenants.range(..self.next_tenant);
        let in_turn: Vec<TenantName> = tenants.range(self.next_tenant..).chain(before).copied().collect();
        let mut entries = 0;
        let mut batch = Batch::default();
        for tenant in in_turn {
            if entries == ENTRIES_PER_TURN {
                self.next_tenant = tenant;
                objects.room.asked.notify_one();
                return EntryOutcome::Applied;
            }
            if self.choose_in_quota(objects, tenant, &mut batch).await == EntryOutcome::Failed {
                return EntryOutcome::Failed;
            }
            if batch.chosen.items.len() >= bound(OBJECTS_PER_ENTRY, 3) {
                entries += 1;
                if self.evict_in_quotas(objects, std::mem::take(&mut batch)).await == EntryOutcome::Failed {
                    return EntryOutcome::Failed;
                }
            }
        }
        self.evict_in_quotas(objects, batch).await
    }

    /// Adds objects of a tenant to those that the next entry evicts.
    async fn choose_in_quota(
        &mut self,
        objects: &Objects,
        tenant: TenantName,
        batch: &mut Batch,
    ) -> EntryOutcome {
        let scope = Scope::Quota(tenant);
        let above = self.above.get(&tenant).copied().unwrap_or_default();
        let wanted = above.max(self.needed(objects, scope));
        if wanted.is_none() {
            self.above.remove(&tenant);
            return EntryOutcome::Applied;
        }
        if !self.evictor.has_order(&tenant)
            && objects.index.read(|applied| self.evictor.is_outdated(&applied.state))
        {
            // It has its quota since a moment ago. The new order knows nothing of the batch, and would choose it again.
            if self.evict_in_quotas(objects, std::mem::take(batch)).await == EntryOutcome::Failed {
                return EntryOutcome::Failed;
            }
            self.evictor = ordered(objects).await;
        }
        let max = bound(OBJECTS_PER_ENTRY, 3).saturating_sub(batch.chosen.items.len()).max(1);
        let chosen = self.choose(objects, scope, wanted, max);
        let freed = Excess { bytes: chosen.bytes, objects: chosen.items.len() as u64 };
        match chosen.blocked {
            Some(why) if chosen.items.is_empty() => {
                self.look_again(tenant);
                self.block(objects, scope, why);
            }
            Some(_) => self.look_again(tenant),
            None => {
                if chosen.items.is_empty() && objects.room.queue(|queue| queue.is_waited(scope)) {
                    // Other objects may be evictable: try again in the next round.
                    objects.room.asked.notify_one();
                }
                self.above.entry(tenant).and_modify(|above| *above = above.less(freed.bytes, freed.objects));
            }
        }
        batch.chosen.items.extend(chosen.items);
        batch.chosen.put_orders.extend(chosen.put_orders);
        batch.chosen.bytes += chosen.bytes;
        batch.freed.push((scope, freed));
        EntryOutcome::Applied
    }

    /// Leaves a tenant alone until tenants are compared with their quotas again.
    fn look_again(&mut self, tenant: TenantName) {
        if self.above.remove(&tenant).is_some() {
            self.evictor.touch_tenant(tenant);
        }
    }

    async fn evict_in_quotas(&mut self, objects: &Objects, batch: Batch) -> EntryOutcome {
        let Batch { chosen: Victims { items, put_orders, bytes, .. }, freed } = batch;
        if items.is_empty() {
            return EntryOutcome::Applied;
        }
        if self.evict(objects, items, Attempt::First).await == EntryOutcome::Failed {
            return EntryOutcome::Failed;
        }
        self.count(objects, &put_orders, bytes);
        for (scope, freed) in freed {
            objects.room.tell(|queue| queue.pay(scope, freed));
        }
        if objects.room.queue(|queue| queue.scopes().any(|scope| !queue.needed(scope).is_none())) {
            objects.room.asked.notify_one();
        }
        objects.let_in(&self.leading);
        self.follow(objects).await;
        EntryOutcome::Applied
    }

    /// Evicts objects that lie side by side, until the first waiter fits where they were whose object fits nowhere. No
    /// other waiter tries meanwhile, so that none takes what was freed for that one.
    async fn clear(&mut self, objects: &Objects, scope: Scope) -> EntryOutcome {
        let suspects = self.leading.liveness.suspects();
        let room = &objects.room;
        if room.is_idle() {
            return EntryOutcome::Applied;
        }
        let unfit = room.queue(|queue| {
            objects.index.read(|applied| {
                let without = outside(scope, &applied.state, &suspects);
                let fit = |size| applied.state.fit_of(size, &without);
                let (ticket, need, again) = queue.first_unfit(scope, |size| fit(size) == Fit::Fits)?;
                (again || fit(need.largest) == Fit::InPieces).then_some((ticket, need))
            })
        });
        let Some((ticket, need)) = unfit else { return EntryOutcome::Applied };
        room.queue(|queue| queue.close_for(ticket, scope));
        match self.clear_for(objects, scope, ticket, need).await {
            (entry, 0) => {
                room.queue(|queue| queue.open(ticket, scope));
                entry
            }
            (entry, _) => {
                room.tell(|queue| queue.cleared(ticket, scope));
                entry
            }
        }
    }

    /// Clears places for a waiter until it has what it needs, waits no more, or no further place is found. Returns the
    /// bytes for which there is room.
    ///
    /// A place takes several entries. Its bytes are free after each, and held for the waiter by the queue alone: no other
    /// call tries to start puts. Puts that were proposed before the queue was closed may be placed there; another place is
    /// chosen then.
    async fn clear_for(
        &mut self,
        objects: &Objects,
        scope: Scope,
        ticket: Ticket,
        need: RoomNeed,
    ) -> (EntryOutcome, u64) {
        self.reason = EvictedFor::Put;
        let RoomNeed { excess: Excess { bytes, .. }, largest: size } = need;
        let (mut cleared, mut spoiled) = (0, 0);
        while cleared < bytes && spoiled < SPOILED_MAX {
            let suspects = self.leading.liveness.suspects();
            let Self { leading, evictor, .. } = self;
            let found = objects.index.read(|applied| {
                let without = outside(scope, &applied.state, &suspects);
                evictor.choose_clearing(size, &applied.state, &leading.leases, leading.now(), &without)
            });
            let Some(stretch) = found else { break };
            loop {
                if !objects.room.queue(|queue| queue.waits(ticket, scope)) {
                    return (EntryOutcome::Applied, cleared);
                }
                let Self { leading, evictor, .. } = self;
                let slice = objects.index.read(|applied| {
                    let (state, now) = (&applied.state, leading.now());
                    let without = outside(scope, state, &suspects);
                    evictor.next_slice(&stretch, state, &leading.leases, now, &without)
                });
                self.wake_readers(objects);
                match slice {
                    ClearingStep::Chosen(Victims { items, put_orders, bytes: freed, .. }) => {
                        if self.evict(objects, items, Attempt::First).await == EntryOutcome::Failed {
                            return (EntryOutcome::Failed, cleared);
                        }
                        self.count(objects, &put_orders, freed);
                        self.follow(objects).await;
                    }
                    ClearingStep::Cleared => {
                        cleared += stretch.bytes() - stretch.bytes() % size;
                        break;
                    }
                    ClearingStep::Spoiled => {
                        spoiled += 1;
                        break;
                    }
                }
            }
        }
        (EntryOutcome::Applied, cleared)
    }

    /// Evicts, as far as it can, what exceeds a watermark of a memory or what its waiters need. It proposes only a few
    /// entries; the next round continues.
    async fn evict_in(&mut self, objects: &Objects, scope: Scope, above: Excess) -> EntryOutcome {
        let (mut above, mut entries) = (above, 0);
        for _ in 0..CHOICES_PER_TURN {
            let needed = self.needed(objects, scope);
            let wanted = above.max(needed);
            if wanted.is_none() || entries == ENTRIES_PER_TURN {
                break;
            }
            let for_puts = needed.bytes > above.bytes || needed.objects > above.objects;
            self.reason = if for_puts { EvictedFor::Put } else { EvictedFor::Watermark };
            let Victims { items, put_orders, bytes, blocked } = self.choose(
                objects,
                scope,
                wanted,
                bound(if for_puts { OBJECTS_PER_ENTRY_FOR_PUTS } else { OBJECTS_PER_ENTRY }, 3),
            );
            let count = items.len() as u64;
            if !items.is_empty() {
                if self.evict(objects, items, Attempt::First).await == EntryOutcome::Failed {
                    return EntryOutcome::Failed;
                }
                self.count(objects, &put_orders, bytes);
                objects.room.tell(|queue| queue.pay(scope, Excess { bytes, objects: count }));
                entries += 1;
            }
            if let Some(blocked) = blocked {
                if count == 0 {
                    self.block(objects, scope, blocked);
                }
                return EntryOutcome::Applied;
            }
            above = above.less(bytes, count);
            self.follow(objects).await;
        }
        if !self.needed(objects, scope).is_none() {
            objects.room.asked.notify_one();
        }
        EntryOutcome::Applied
    }

    /// Returns what must be evicted in a scope for its waiters.
    fn needed(&self, objects: &Objects, scope: Scope) -> Excess {
        if objects.room.is_idle() {
            return Excess::default();
        }
        match scope {
            Scope::Memory(_) => objects.room.queue(|queue| queue.wanted(scope)),
            Scope::Quota(_) => {
                let needed = objects.room.queue(|queue| queue.needed(scope));
                let free = objects.index.read(|applied| free_in(scope, &applied.state, &[]));
                needed.less(free.bytes, free.objects)
            }
        }
    }

    /// Refuses the waiters of a scope in which nothing can be evicted. Puts in flight are objects soon, or leave their
    /// bytes, and a sweep makes room in the pool: waiters wait for those until their time is over.
    fn block(&self, objects: &Objects, scope: Scope, why: EvictionBlocked) {
        let has_more =
            |tenant: TenantName, applied: &Applied| applied.state.tenant_usage(&tenant).objects.count > 0;
        if why == EvictionBlocked::Empty
            && let Scope::Quota(tenant) = scope
            && objects.index.read(|applied| has_more(tenant, applied))
        {
            // They were put just now, and the order knows them in the next round.
            return;
        }
        let patience = objects.index.read(|applied| {
            let state = &applied.state;
            let in_flight = match scope {
                Scope::Memory(Memory::Common) => state.puts_in_flight(),
                Scope::Memory(Memory::OwnedBy(tenant)) | Scope::Quota(tenant) => {
                    state.tenant_usage(&tenant).puts.count
                }
            };
            let is_memory = matches!(scope, Scope::Memory(_));
            why == EvictionBlocked::Empty && in_flight > 0 || is_memory && state.needs_sweep()
        });
        objects.room.tell(|queue| queue.block(scope, why, patience));
    }

    /// Counts the bytes and ages of what was evicted.
    fn count(&self, objects: &Objects, put_orders: &[u64], bytes: u64) {
        objects.metrics.evictions.bytes(self.reason, bytes);
        let now = self.leading.now();
        for order in put_orders {
            objects.metrics.evictions.age(self.reason, self.ages.age(*order, now));
        }
    }

    async fn follow(&mut self, objects: &Objects) {
        match objects.index.take_changes() {
            Ok(changes) => {
                for change in &changes {
                    objects.index.read(|applied| self.evictor.follow(change, &applied.state));
                }
            }
            Err(_) => {
                tracing::warn!("the order of eviction lost track of the index and begins again by age");
                self.evictor = ordered(objects).await;
            }
        }
        self.leading.hits.drain(|call| self.evictor.hit(call));
        objects.index.read(|applied| self.evictor.prune(&applied.state));
    }

    /// Notes in the index, at intervals, which objects were reused, so that the next leader knows.
    async fn note(&mut self, objects: &Objects) {
        if self.noted_at.elapsed() < NOTE_INTERVAL {
            return;
        }
        self.noted_at = Instant::now();
        self.ages.note(self.leading.term, objects.coordinator.committed(), self.leading.now());
        // No change of the index tells of objects that lost a replica with a common store. Those that have the others on stores of
        // their tenant belong to the own order now.
        let common = objects.index.read(|applied| applied.state.common_stores());
        let before = std::mem::replace(&mut self.common, common);
        if before.iter().any(|store| self.common.binary_search(store).is_err()) {
            tracing::info!("a store was dropped: rebuilding the order of eviction by age of the objects");
            self.evictor = ordered(objects).await;
        }
        // A tenant that came just now may not have been followed yet: it is one only if it still is a second later.
        let was_outdated = std::mem::replace(
            &mut self.outdated,
            objects.index.read(|applied| self.evictor.is_outdated(&applied.state)),
        );
        if was_outdated && self.outdated {
            tracing::info!(
                "quotas of tenants changed: rebuilding the order of eviction by age of the objects"
            );
            self.evictor = ordered(objects).await;
        }
        self.evictor.set_time(self.leading.now());
        let notes = objects.index.read(|applied| self.evictor.take_notes(NOTES_PER_ENTRY, &applied.state));
        if let Some((keys, epoch, once_share)) = notes {
            let note = Request::note_reuse(keys, epoch, once_share);
            if let Err(why) = objects.coordinator.propose(&self.leading, &note).await {
                tracing::debug!(%why, "cannot record in the index which objects were reused");
            }
        }
    }

    fn choose(&mut self, objects: &Objects, scope: Scope, wanted: Excess, max: usize) -> Victims {
        let suspects = self.leading.liveness.suspects();
        let want = EvictionGoal { scope, bytes: wanted.bytes, objects: wanted.objects, max };
        let Self { leading, evictor, .. } = self;
        let chosen = objects.index.read(|applied| {
            let without = outside(scope, &applied.state, &suspects);
            evictor.choose(want, &applied.state, &leading.leases, leading.now(), &without)
        });
        self.wake_readers(objects);
        chosen
    }

    /// Wakes reads that met a mark which a choice took back: no entry is going to decide it.
    fn wake_readers(&self, objects: &Objects) {
        if self.leading.leases.marks_taken_back() {
            objects.room.decided();
        }
    }

    /// Proposes the eviction of marked versions, and removes the marks once each is decided. Versions of unknown outcome
    /// become `undecided`, which is empty before.
    ///
    /// The leader's log is in the order of its proposals. So when a later entry of this term is applied, an earlier one
    /// of unknown outcome has been applied before it or never will be: repeating the items decides them.
    async fn evict(&mut self, objects: &Objects, items: Vec<EvictItem>, attempt: Attempt) -> EntryOutcome {
        let reuse_at = self.leading.evicted_until();
        let request = Request::evict(items.clone(), reuse_at);
        let refusal = match objects.coordinator.propose(&self.leading, &request).await {
            Ok(codes) => {
                let evicted = codes.iter().filter(|code| **code == Code::Ok).count();
                objects.metrics.evictions.objects(self.reason, evicted as u64);
                self.unmark(&items);
                // A group that has changed since it was chosen stays.
                let stays =
                    |(item, code): (&EvictItem, &Code)| (*code == Code::VersionChanged).then_some(*item);
                let stay: Vec<_> = items.iter().zip(&codes).filter_map(stays).collect();
                objects.index.read(|applied| self.evictor.keep(&stay, &applied.state));
                objects.room.decided();
                return EntryOutcome::Applied;
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
                objects.index.read(|applied| self.evictor.keep(&items, &applied.state));
                objects.room.decided();
            }
        }
        EntryOutcome::Failed
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
        assert_eq!(Marks::after(&unknown, Attempt::First), Marks::Kept);
        // The term may go on with the same leases: a mark that stayed would hide its object until the term ends.
        for definite in [&not_leader, &invalid] {
            assert_eq!(Marks::after(definite, Attempt::First), Marks::Lifted);
            assert_eq!(
                Marks::after(definite, Attempt::Again),
                Marks::Kept,
                "the first try is as undecided as before"
            );
        }
    }

    #[test]
    fn puts_in_flight_may_evict_half_of_the_pool() {
        assert!(may_evict_for(0, 0) && may_evict_for(50, 100) && !may_evict_for(51, 100));
    }
}
