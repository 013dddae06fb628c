//! Puts of a call that were refused for want of room, and what would make room for them.

use mc_eviction::Excess;
use mc_index::{PinAction, PutStartItem, Quota, Replication, State, TenantName};
use mc_types::{ALLOCATION_ALIGN, Code, StoreId};

use super::eviction::Scope;

/// Why a put found no space where eviction would not help.
const NO_STORE: &str = "no store can take the put: each is silent, has just failed the caller, or has no segment that is large enough";
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
pub(super) struct Shortage {
    /// Positions of the puts in the call.
    pub(super) places: Vec<usize>,
    /// Why the others can't be placed whatever is evicted; empty if there are none.
    pub(super) why: &'static str,
    /// Whether there seems to be room for all of them as it is.
    pub(super) has_room: bool,
    /// The tenant, and what it must give up.
    of_tenant: Option<(TenantName, Excess)>,
    of_pool: Excess,
}

impl Shortage {
    /// Looks at the answers to the puts of a call.
    pub(super) fn of<'a>(
        state: &State,
        suspects: &[StoreId],
        tenant: &str,
        answers: impl Iterator<Item = (&'a PutStartItem, Code)>,
    ) -> Self {
        let name = TenantName::new(tenant.as_bytes());
        let quota = state.quota(&name);
        let mut short = Self { has_room: true, ..Self::default() };
        let mut over = Excess::default();
        // Made when the first item needs it: most calls have none.
        let mut stores = None;
        for (at, (item, code)) in answers.enumerate() {
            let refused = match code {
                Code::TenantQuotaExceeded if quota.bytes > 0 && bytes_of(item) > quota.bytes => {
                    QUOTA_TOO_SMALL
                }
                Code::TenantQuotaExceeded => {
                    over = add(over, item);
                    short.has_room = false;
                    ""
                }
                Code::NoAvailableHandle if is_over_pin_limit(state, tenant, item) => PIN_LIMIT,
                Code::NoAvailableHandle => {
                    let stores = stores.get_or_insert_with(|| Takers::of(state, suspects));
                    match stores.count(item) {
                        0 => NO_STORE,
                        count if count < needed(item) => TOO_FEW_STORES,
                        _ if state.is_at_cap() => {
                            short.of_pool.objects += 1;
                            short.has_room = false;
                            ""
                        }
                        _ => {
                            short.of_pool.bytes = short.of_pool.bytes.saturating_add(bytes_of(item));
                            short.has_room &= stores.have_room(item);
                            ""
                        }
                    }
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
            short.of_tenant = Some((name, beyond(quota, state, &name, over)));
        }
        short
    }

    /// Lists where room is wanted, and how much.
    pub(super) fn wants(&self) -> Vec<(Scope, Excess)> {
        let tenant = self.of_tenant.map(|(name, excess)| (Some(name), excess));
        let pool = (!self.of_pool.is_none()).then_some((None, self.of_pool));
        tenant.into_iter().chain(pool).collect()
    }
}

/// Number of stores without which the put is refused.
fn needed(item: &PutStartItem) -> usize {
    match item.replication {
        Replication::BestEffort => 1,
        Replication::Strict => item.replicas.into(),
    }
}

fn bytes_of(item: &PutStartItem) -> u64 {
    let each = item.size.checked_next_multiple_of(ALLOCATION_ALIGN).unwrap_or(u64::MAX);
    each.saturating_mul(item.replicas.into())
}

fn add(sum: Excess, item: &PutStartItem) -> Excess {
    Excess { bytes: sum.bytes.saturating_add(bytes_of(item)), objects: sum.objects + 1 }
}

/// Returns what a tenant has too much, once these puts are added. At least one object, because they were refused.
fn beyond(quota: Quota, state: &State, name: &TenantName, puts: Excess) -> Excess {
    let all = state.tenant_usage(name).all();
    let over = |limit: u64, used: u64| if limit == 0 { 0 } else { used.saturating_sub(limit) };
    let bytes = over(quota.bytes, all.bytes.saturating_add(puts.bytes));
    let objects = over(quota.objects, all.count.saturating_add(puts.objects));
    Excess { bytes, objects: objects.max(u64::from(bytes == 0)) }
}

/// Stores that may take puts, summed up once for a call: thousands of items are held against thousands of stores while
/// the index is locked.
struct Takers {
    /// Each store that is not suspect, by its id.
    stores: Vec<(StoreId, Space)>,
    /// Bytes of each one's largest segment, ascending.
    largest: Vec<u64>,
    /// Bytes of the largest object for which each one seems to have room as it is, ascending.
    room: Vec<u64>,
}

#[derive(Clone, Copy)]
struct Space {
    largest: u64,
    room: u64,
}

impl Takers {
    fn of(state: &State, suspects: &[StoreId]) -> Self {
        let usable = state.stores().filter(|store| suspects.binary_search(&store.store).is_err());
        let stores: Vec<_> = usable
            .map(|store| {
                let largest = store.segments.iter().copied().max().unwrap_or_default();
                let room = store.capacity.saturating_sub(store.used).min(largest);
                (store.store, Space { largest, room })
            })
            .collect();
        let sorted = |bytes: fn(&Space) -> u64| {
            let mut all: Vec<u64> = stores.iter().map(|(_, space)| bytes(space)).collect();
            all.sort_unstable();
            all
        };
        let (largest, room) = (sorted(|space| space.largest), sorted(|space| space.room));
        Self { stores, largest, room }
    }

    /// Number of stores that may take the put, once they have room.
    fn count(&self, item: &PutStartItem) -> usize {
        self.at_least(item, &self.largest, |space| space.largest)
    }

    /// Whether a store seems to have room for the put as it is.
    fn have_room(&self, item: &PutStartItem) -> bool {
        self.at_least(item, &self.room, |space| space.room) > 0
    }

    /// Number of the stores with as many bytes as the item has, without those that it avoids.
    fn at_least(&self, item: &PutStartItem, sorted: &[u64], bytes: fn(&Space) -> u64) -> usize {
        let all = sorted.len() - sorted.partition_point(|bytes| *bytes < item.size);
        let mut avoid = item.avoid.clone();
        avoid.sort_unstable();
        avoid.dedup();
        let space = |id: &StoreId| {
            let at = self.stores.binary_search_by_key(id, |(store, _)| *store).ok()?;
            Some(bytes(&self.stores[at].1))
        };
        all - avoid.iter().filter_map(space).filter(|bytes| *bytes >= item.size).count()
    }
}

/// Whether the object of a put would be hard-pinned beyond the limit.
fn is_over_pin_limit(state: &State, tenant: &str, item: &PutStartItem) -> bool {
    let hard = match item.pin {
        PinAction::Hard => true,
        PinAction::Preserve => state.get(tenant, &item.key).is_some_and(|object| object.pin.is_hard()),
        PinAction::Disable | PinAction::Soft { .. } => false,
    };
    hard && !state.may_pin(tenant, bytes_of(item))
}

#[cfg(test)]
mod tests {
    use mc_index::{Command, MountStore, Op, Settings, Stamp};
    use mc_types::{ClusterTime, GrantKey, PutId, SegmentEpoch};

    use super::*;

    /// Stores 1, 2, ... with these segments each.
    fn pool(stores: &[&[u64]]) -> State {
        let mut state = State::new(Settings::default());
        for (id, segments) in (1..).zip(stores) {
            let mount = MountStore {
                store: StoreId(id),
                epoch: SegmentEpoch(id),
                name: format!("store-{id}"),
                grant_key: GrantKey([0; 32]),
                endpoints: Vec::new(),
                segments: segments.to_vec(),
                http: String::new(),
            };
            apply(&mut state, id, Op::MountStore(mount));
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
        let takers = Takers::of(&state, &[StoreId(3)]);
        let count = |size, avoid: &[u64]| takers.count(&item(size, avoid));
        assert_eq!((count(64, &[]), count(65, &[]), count(4096, &[]), count(4097, &[])), (3, 2, 1, 0));
        assert_eq!(count(65, &[1, 1, 3, 99]), 1, "named twice, suspect, unknown");
        assert_eq!(count(65, &[4]), 2, "too small anyway");
    }

    #[test]
    fn a_store_has_room_for_what_is_free_and_fits_a_segment() {
        let mut state = pool(&[&[4096, 4096], &[2048]]);
        let put = PutStartItem { preferred: [StoreId(1)][..].into(), ..item(4096, &[]) };
        apply(&mut state, 9, Op::PutStart { tenant: String::new(), items: vec![put] });
        let takers = Takers::of(&state, &[]);
        let room = |size, avoid: &[u64]| takers.have_room(&item(size, avoid));
        assert!(room(4096, &[]) && !room(4097, &[]));
        assert!(room(2048, &[1]) && !room(2049, &[1]) && !room(64, &[1, 2]));
    }
}
