//! Puts of a call that were refused for want of room, and what would make room for them.

use mc_eviction::Excess;
use mc_index::{PinAction, PutStartItem, Quota, Replication, State, StoreView, TenantName};
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
                Code::NoAvailableHandle if takers(state, suspects, item).next().is_none() => NO_STORE,
                Code::NoAvailableHandle if takers(state, suspects, item).count() < needed(item) => {
                    TOO_FEW_STORES
                }
                Code::NoAvailableHandle if state.is_at_cap() => {
                    short.of_pool.objects += 1;
                    short.has_room = false;
                    ""
                }
                Code::NoAvailableHandle => {
                    short.of_pool.bytes = short.of_pool.bytes.saturating_add(bytes_of(item));
                    short.has_room &= has_room(state, suspects, item);
                    ""
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

/// Lists the stores that may take the put, once they have room.
fn takers<'a>(
    state: &'a State,
    suspects: &'a [StoreId],
    item: &'a PutStartItem,
) -> impl Iterator<Item = StoreView<'a>> {
    state.stores().filter(|store| {
        suspects.binary_search(&store.store).is_err()
            && !item.avoid.contains(&store.store)
            && store.segments.iter().any(|bytes| *bytes >= item.size)
    })
}

/// Whether a store seems to have room for the put as it is.
fn has_room(state: &State, suspects: &[StoreId], item: &PutStartItem) -> bool {
    takers(state, suspects, item).any(|store| store.capacity.saturating_sub(store.used) >= item.size)
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
