//! Puts of a call that were refused for want of room, and what would make room for them.

use mc_eviction::{Excess, Scope};
use mc_index::{Fit, Memory, PutStartItem, Quota, State, TenantName, Usage};
use mc_types::{ALLOCATION_ALIGN, Code, PinAction, PutMode, Replication, StoreId};

use super::queue::RoomNeed;

/// Why a put found no space where eviction would not help.
const NO_STORE: &str = "no store can take the put: each is silent, has just failed the caller, or has no segment that is large enough";
/// Why a put found no space that only stores of its tenant's own can take.
const OWN_STORES_FULL: &str = "only stores of the tenant's own can take the put, and too little was evicted there in time: objects there are leased by readers or \
     hard-pinned, or puts in flight take up the memory";
/// Why a put that needs all of its replicas found no space.
const TOO_FEW_STORES: &str = "fewer stores can take the put than it has replicas, and it must have all: add stores, or ask for fewer replicas";
/// Why a put of a hard-pinned object found no space.
const PIN_LIMIT: &str =
    "as many bytes as hard-pin-limit allows are hard-pinned: remove hard-pinned objects or raise the limit";
/// Why a put is beyond a quota where eviction would not help.
const QUOTA_TOO_SMALL: &str =
    "the tenant's quota is smaller than the object: raise it (mcctl tenants set), or put smaller objects";

/// Puts of a call that may be tried again once there is room.
#[derive(Debug, Default)]
pub(super) struct PutShortage {
    /// Positions of the puts in the call.
    pub(super) places: Vec<usize>,
    /// Why the others can't be placed whatever is evicted; empty if there are none.
    pub(super) why: &'static str,
    /// Scope in which they need room, and how much. The tenant's quota comes first, then stores of its own.
    pub(super) need: Option<(Scope, RoomNeed)>,
}

/// Whether a put with this answer was refused for want of room.
pub(super) fn is_short(code: Code) -> bool {
    matches!(code, Code::NoAvailableHandle | Code::TenantQuotaExceeded)
}

impl PutShortage {
    /// Looks at the answers to the puts of a call, which does not wait for room on stores of the tenant's own unless `own` says so.
    pub(super) fn of<'a>(
        state: &State,
        suspects: &[StoreId],
        tenant: &str,
        own: bool,
        answers: impl Iterator<Item = (&'a PutStartItem, Code)>,
    ) -> Self {
        let name = TenantName::new(tenant.as_bytes());
        let quota = state.quota(&name);
        let mut short = Self::default();
        let mut over = Excess::default();
        // Made when the first item needs it: most calls have none.
        let mut pool = None;
        for (at, (item, code)) in answers.enumerate() {
            let refused = match code {
                Code::TenantQuotaExceeded if quota.bytes > 0 && bytes_of(item) > quota.bytes => {
                    QUOTA_TOO_SMALL
                }
                Code::TenantQuotaExceeded => {
                    over = add(over, item);
                    ""
                }
                Code::NoAvailableHandle if is_over_pin_limit(state, tenant, item) => PIN_LIMIT,
                Code::NoAvailableHandle => {
                    let pool = pool.get_or_insert_with(|| PoolShortage::of(state, suspects, name, own));
                    pool.add(item).err().unwrap_or_default()
                }
                _ => continue,
            };
            if refused.is_empty() {
                short.places.push(at);
            } else {
                short.why = refused;
            }
        }
        if over.objects > 0 {
            short.need = Some((Scope::Quota(name), RoomNeed { excess: within(quota, over), largest: 0 }));
        } else if let Some(pool) = pool.filter(|_| !short.places.is_empty()) {
            let (memory, need) = pool.need();
            short.need = Some((Scope::Memory(memory), need));
        }
        short
    }
}

/// Room that puts need of which none was tried.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UntriedNeed {
    /// In the tenant's quota.
    pub(super) of_tenant: Excess,
    /// Memory that is to give room, and how much.
    pub(super) memory: Memory,
    pub(super) of_memory: RoomNeed,
    /// Whether the largest of them fits there as it is.
    pub(super) fits: bool,
}

/// Returns what puts need of which none was tried; `None` if they need nothing. Those whose key is there don't, nor those that
/// too few stores can take: their first try refuses them.
pub(super) fn untried(
    state: &State,
    suspects: &[StoreId],
    tenant: &str,
    items: &[PutStartItem],
) -> Option<UntriedNeed> {
    let needs_room =
        |item: &&PutStartItem| item.mode == PutMode::Upsert || state.get(tenant, &item.key).is_none();
    let name = TenantName::new(tenant.as_bytes());
    let mut pool = PoolShortage::of(state, suspects, name, true);
    let mut sum = Excess::default();
    for item in items.iter().filter(needs_room) {
        if pool.add(item).is_ok() {
            sum = add(sum, item);
        }
    }
    if sum.objects == 0 {
        return None;
    }
    let (memory, of_memory) = pool.need();
    let fits = state.fit_of(of_memory.largest, &state.stores_outside(memory, suspects)) == Fit::Fits;
    Some(UntriedNeed { of_tenant: within(state.quota(&name), sum), memory, of_memory, fits })
}

/// Number of stores without which the put is refused.
fn needed(item: &PutStartItem) -> usize {
    match item.replication {
        Replication::BestEffort => 1,
        Replication::Strict => item.replicas.into(),
    }
}

fn bytes_of(item: &PutStartItem) -> u64 {
    bytes_on(item, item.replicas.into())
}

/// Bytes of this number of replicas.
fn bytes_on(item: &PutStartItem, replicas: u64) -> u64 {
    let each = item.size.checked_next_multiple_of(ALLOCATION_ALIGN).unwrap_or(u64::MAX);
    each.saturating_mul(replicas)
}

fn add(sum: Excess, item: &PutStartItem) -> Excess {
    Excess { bytes: sum.bytes.saturating_add(bytes_of(item)), objects: sum.objects + 1 }
}

/// Room that the puts of one call need in the pool: on stores of the tenant's own if those can take them, else on common ones.
struct PoolShortage<'a> {
    state: &'a State,
    suspects: &'a [StoreId],
    is_at_cap: bool,
    common: UsableStores,
    own: Option<OwnStores>,
    of_own: MemoryNeed,
    of_common: MemoryNeed,
}

/// Usable stores of one tenant.
struct OwnStores {
    tenant: TenantName,
    /// Stores outside of them, sorted.
    without: Vec<StoreId>,
    usable: UsableStores,
    /// Whether room on them is waited for.
    is_waited_for: bool,
}

impl<'a> PoolShortage<'a> {
    fn of(state: &'a State, suspects: &'a [StoreId], tenant: TenantName, own: bool) -> Self {
        let own = state.has_own_stores(&tenant).then(|| {
            let without = state.stores_outside(Memory::OwnedBy(tenant), suspects);
            let usable = UsableStores::of(state, &without);
            OwnStores { tenant, without, usable, is_waited_for: own }
        });
        Self {
            state,
            suspects,
            is_at_cap: state.is_at_cap(),
            common: UsableStores::of(state, &state.stores_outside(Memory::Common, suspects)),
            own,
            of_own: MemoryNeed::default(),
            of_common: MemoryNeed::default(),
        }
    }

    /// Adds a put; returns why it can't be placed whatever is evicted.
    fn add(&mut self, item: &PutStartItem) -> Result<(), &'static str> {
        let common = self.common.count(item);
        let own = self.own.as_ref().map_or(0, |own| own.usable.count(item));
        if common + own == 0 {
            return Err(NO_STORE);
        }
        if common + own < needed(item) {
            return Err(TOO_FEW_STORES);
        }
        if self.is_at_cap {
            self.of_common.objects += 1;
            return Ok(());
        }
        let waits_for_own = self.own.as_ref().filter(|it| it.is_waited_for && own > 0).is_some_and(|it| {
            let fits = || self.state.fit_of(item.size, &it.without) == Fit::Fits;
            // One that needs replicas of both kinds needs room where there is none.
            own >= needed(item) || common < needed(item) && !fits()
        });
        if waits_for_own {
            self.of_own.add(item, own);
        } else if common > 0 {
            self.of_common.add(item, common);
        } else {
            return Err(OWN_STORES_FULL);
        }
        Ok(())
    }

    /// Returns the memory in which room is to be made, and how much.
    fn need(&self) -> (Memory, RoomNeed) {
        let (memory, need) = match &self.own {
            Some(own) if self.of_own.bytes > 0 => (Memory::OwnedBy(own.tenant), &self.of_own),
            _ => (Memory::Common, &self.of_common),
        };
        let Usage { capacity, .. } = self.state.usage(&self.state.stores_outside(memory, self.suspects));
        (memory, need.within(capacity))
    }
}

/// Room that the puts of one call need in a memory.
#[derive(Debug, Default)]
struct MemoryNeed {
    /// Bytes of all of them.
    bytes: u64,
    /// Objects where their number is what is short.
    objects: u64,
    /// Bytes of all replicas of the item that has most.
    item: u64,
    /// Bytes of the largest object.
    largest: u64,
}

impl MemoryNeed {
    /// Adds a put that this number of stores can take. Each takes one replica at most.
    fn add(&mut self, item: &PutStartItem, stores: usize) {
        let bytes = bytes_on(item, u64::from(item.replicas).min(stores as u64));
        self.bytes = self.bytes.saturating_add(bytes);
        self.item = self.item.max(bytes);
        self.largest = self.largest.max(item.size);
    }

    /// Returns what is evicted for the call at a time: half of the capacity at most, or its largest item. With that, some of the
    /// puts start, and the others wait again. A call whose puts are larger than the pool would hold up all behind it.
    fn within(&self, capacity: u64) -> RoomNeed {
        let bytes = self.bytes.min(self.item.max(capacity / 2));
        RoomNeed { excess: Excess { bytes, objects: self.objects }, largest: self.largest }
    }
}

/// Cuts what puts need to the whole quota: with all of it, some of them start.
fn within(quota: Quota, puts: Excess) -> Excess {
    let at_most = |limit: u64, need: u64| if limit == 0 { 0 } else { need.min(limit) };
    Excess { bytes: at_most(quota.bytes, puts.bytes), objects: at_most(quota.objects, puts.objects) }
}

/// Stores that may take puts, summed up once for a call: thousands of items are held against thousands of stores while
/// the index is locked.
struct UsableStores {
    /// Bytes of the largest segment of each of them, by its id.
    stores: Vec<(StoreId, u64)>,
    /// The same bytes, ascending.
    largest: Vec<u64>,
}

impl UsableStores {
    /// Sums up the stores that are not in `without`, which is sorted.
    fn of(state: &State, without: &[StoreId]) -> Self {
        let usable = state.stores().filter(|store| without.binary_search(&store.store).is_err());
        let largest = |segments: &[u64]| segments.iter().copied().max().unwrap_or_default();
        let stores: Vec<_> = usable.map(|store| (store.store, largest(store.segments))).collect();
        let mut largest: Vec<u64> = stores.iter().map(|(_, bytes)| *bytes).collect();
        largest.sort_unstable();
        Self { stores, largest }
    }

    /// Number of stores that may take the put, once they have room.
    fn count(&self, item: &PutStartItem) -> usize {
        let all = self.largest.len() - self.largest.partition_point(|bytes| *bytes < item.size);
        let mut avoid = item.avoid.clone();
        avoid.sort_unstable();
        avoid.dedup();
        let bytes = |id: &StoreId| {
            let at = self.stores.binary_search_by_key(id, |(store, _)| *store).ok()?;
            Some(self.stores[at].1)
        };
        all - avoid.iter().filter_map(bytes).filter(|bytes| *bytes >= item.size).count()
    }
}

/// Whether the object of a put would be hard-pinned beyond the limit.
fn is_over_pin_limit(state: &State, tenant: &str, item: &PutStartItem) -> bool {
    let hard = match item.pin {
        PinAction::Hard => true,
        PinAction::Preserve => state.get(tenant, &item.key).is_some_and(|object| object.pin.is_hard()),
        PinAction::Disable | PinAction::Soft(_) => false,
    };
    hard && !state.may_pin(tenant, bytes_of(item))
}

#[cfg(test)]
mod tests {
    use mc_index::{Command, OWN_STORES_SINCE, Op, Settings, Stamp};
    use mc_types::{ClusterTime, PutId, STORE_TENANT};

    use super::*;
    use crate::leader::tests::mount;

    /// Stores 1, 2, ... with these segments each.
    fn pool(stores: &[&[u64]]) -> State {
        let mut state = State::new(Settings::default());
        for (id, segments) in (1..).zip(stores) {
            apply(&mut state, id, Op::MountStore(mount(id, &[], segments)));
        }
        state
    }

    fn apply(state: &mut State, index: u64, op: Op) {
        state.apply(index, 1, &Command { stamp: Stamp { term: 1, ..Stamp::default() }, op });
    }

    fn item(size: u64, avoid: &[u64]) -> PutStartItem {
        let avoid = avoid.iter().copied().map(StoreId).collect();
        PutStartItem { avoid, ..PutStartItem::new(PutId(1), b"k", size, ClusterTime(1_000)) }
    }

    #[test]
    fn stores_take_what_their_largest_segment_holds_unless_they_are_avoided() {
        let state = pool(&[&[1024, 4096], &[2048], &[8192], &[64]]);
        let takers = UsableStores::of(&state, &[StoreId(3)]);
        let count = |size, avoid: &[u64]| takers.count(&item(size, avoid));
        assert_eq!((count(64, &[]), count(65, &[]), count(4096, &[]), count(4097, &[])), (3, 2, 1, 0));
        assert_eq!(count(65, &[1, 1, 3, 99]), 1, "named twice, suspect, unknown");
        assert_eq!(count(65, &[4]), 2, "too small anyway");
    }

    #[test]
    fn puts_that_were_not_tried_need_room_unless_their_key_is_there() {
        let mut state = pool(&[&[4096]]);
        let there = || vec![item(64, &[])];
        apply(&mut state, 8, Op::PutStart { tenant: String::new(), items: there() });
        let end = mc_index::PutEndItem::new(PutId(1), mc_index::KeyHash::of("", b"k"), 0);
        apply(&mut state, 9, Op::PutEnd { items: vec![end] });
        assert_eq!(untried(&state, &[], "", &there()), None);
        let upsert = PutStartItem { mode: PutMode::Upsert, ..item(65, &[]) };
        let absent = PutStartItem { key: b"l"[..].into(), replicas: 2, ..item(1000, &[]) };
        let UntriedNeed { of_memory: need, .. } =
            untried(&state, &[], "", &[there().remove(0), upsert, absent]).unwrap();
        assert_eq!(
            (need.excess, need.largest),
            (Excess { bytes: 128 + 1024, objects: 0 }, 1000),
            "one store"
        );
    }

    #[test]
    fn puts_that_can_never_start_need_no_room_and_do_not_wait() {
        let state = pool(&[&[1 << 20], &[1 << 16]]);
        let strict =
            |replicas| PutStartItem { replication: Replication::Strict, replicas, ..item(1 << 17, &[]) };
        let never = [item(1 << 21, &[]), strict(2), item(1 << 17, &[1])];
        assert_eq!(
            untried(&state, &[], "", &never),
            None,
            "too large, too few stores, the only store avoided"
        );
        assert_eq!(untried(&state, &[StoreId(1)], "", &[strict(1)]), None, "the only store is suspect");
        let UntriedNeed { of_tenant: quota, of_memory: need, .. } =
            untried(&state, &[], "", &[never[0].clone(), strict(1)]).unwrap();
        assert_eq!((quota, need.largest), (Excess::default(), 1 << 17));
        assert_eq!(need.excess, Excess { bytes: 1 << 17, objects: 0 }, "the others count");
    }

    #[test]
    fn only_answers_for_want_of_room_are_looked_at() {
        let (state, item) = (pool(&[&[4096]]), item(64, &[]));
        for code in Code::ALL {
            let short = PutShortage::of(&state, &[], "", true, [(&item, *code)].into_iter());
            assert_eq!(!short.places.is_empty() || !short.why.is_empty(), is_short(*code), "{code}");
        }
    }

    #[test]
    fn a_call_needs_half_of_the_pool_at_a_time_or_its_largest_item() {
        let state = pool(&[&[1 << 20], &[1 << 20]]);
        let half = 1 << 20;
        let refused = |items: &[PutStartItem]| {
            let answers = items.iter().map(|item| (item, Code::NoAvailableHandle));
            let short = PutShortage::of(&state, &[], "", true, answers);
            assert_eq!(short.places.len(), items.len());
            let (scope, need) = short.need.unwrap();
            assert_eq!(untried(&state, &[], "", items).unwrap().of_memory, need);
            assert_eq!(scope, Scope::Memory(Memory::Common));
            need
        };
        let copies = |replicas, size| PutStartItem { replicas, ..item(size, &[]) };
        assert_eq!(refused(&[copies(255, 4096)]).excess.bytes, 2 * 4096, "one replica on each store");
        let many = vec![copies(1, 1 << 16); 4096];
        assert_eq!((refused(&many).excess.bytes, refused(&many).largest), (half, 1 << 16));
        let whole = copies(2, 1 << 20);
        assert_eq!(refused(&[copies(1, 1 << 16), whole]).excess.bytes, 2 * half, "all of its replicas");
    }

    #[test]
    fn a_tenant_waits_for_room_on_stores_of_its_own_if_they_can_take_the_put() {
        // Given a common store, and a smaller one of tenant a.
        let mut state = pool(&[&[1 << 20]]);
        apply(&mut state, 2, Op::SetClusterVersion(OWN_STORES_SINCE));
        let mut own = mount(2, &["tcp"], &[1 << 16]);
        own.endpoints[0].attributes.push((STORE_TENANT.to_owned(), "a".to_owned()));
        apply(&mut state, 3, Op::MountStore(own));
        let a = Memory::OwnedBy(TenantName::new(b"a"));

        let of = |tenant: &str, own: bool, items: &[PutStartItem]| {
            let answers = items.iter().map(|item| (item, Code::NoAvailableHandle));
            let short = PutShortage::of(&state, &[], tenant, own, answers);
            (short.need.map(|(scope, need)| (scope, need.excess.bytes)), short.why)
        };
        let (small, large) = (item(4096, &[]), item(1 << 17, &[]));
        let need = |memory, bytes| Some((Scope::Memory(memory), bytes));
        let (small, only_own) = (std::slice::from_ref(&small), item(4096, &[1]));
        assert_eq!(of("a", true, small), (need(a, 4096), ""));
        assert_eq!(of("a", true, std::slice::from_ref(&only_own)), (need(a, 4096), ""));
        assert_eq!(of("a", false, small), (need(Memory::Common, 4096), ""));
        assert_eq!(
            of("a", false, std::slice::from_ref(&only_own)),
            (None, OWN_STORES_FULL),
            "no common store can take it"
        );
        assert_eq!(
            of("a", false, &[only_own.clone(), large.clone()]),
            (need(Memory::Common, 1 << 17), OWN_STORES_FULL),
            "the others wait"
        );
        assert_eq!(of("a", true, std::slice::from_ref(&large)).0, need(Memory::Common, 1 << 17), "too large");
        assert_eq!(of("a", true, &[large, small[0].clone()]).0, need(a, 4096), "its own stores first");
        // On both kinds: one replica each, and the store of its own has room.
        let both = |replication| PutStartItem { replicas: 2, replication, ..item(4096, &[]) };
        assert_eq!(of("a", true, &[both(Replication::Strict)]).0, need(Memory::Common, 4096));
        assert_eq!(of("a", false, &[both(Replication::BestEffort)]).0, need(Memory::Common, 4096));
        assert_eq!(of("b", true, small), (need(Memory::Common, 4096), ""));
        assert_eq!(of("b", true, &[only_own]), (None, NO_STORE), "the only store that is open to it");
        assert_eq!(untried(&state, &[], "a", small).unwrap().memory, a);
    }
}
