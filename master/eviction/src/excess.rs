//! Excess of memories and of tenants: once the use passes the high watermark, the part above the low one is evicted.

use mc_index::{Memory, Quota, Share, State, TenantName, Usage};
use mc_types::StoreId;

/// Bytes and objects to evict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Excess {
    /// Bytes of replicas to evict.
    pub bytes: u64,
    /// Number of objects to evict.
    pub objects: u64,
}

impl Excess {
    /// Whether there is nothing to evict.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }

    /// Returns the larger of both, bytes and objects apart.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { bytes: self.bytes.max(other.bytes), objects: self.objects.max(other.objects) }
    }

    /// Takes off what was evicted.
    #[must_use]
    pub fn less(self, bytes: u64, objects: u64) -> Self {
        Self { bytes: self.bytes.saturating_sub(bytes), objects: self.objects.saturating_sub(objects) }
    }
}

/// Returns what a memory holds above the low watermark of its bytes, once the high one is passed. For [`Memory::Common`] that
/// includes the pool's objects and the index's memory, on whatever stores. `without` is what [`State::stores_outside`]
/// returns for the memory and the suspect stores, whose bytes do not count. Objects that a `remove_all` has removed do not
/// count: the sweep is about to free them.
pub fn excess(state: &State, memory: Memory, without: &[StoreId]) -> Excess {
    let Usage { capacity, live, .. } = state.usage(without);
    let Share { count: objects, bytes, .. } = state.total_usage().all();
    // Known in all only. Those of other memories are subtracted, too, until they are swept: the excess is the least that it
    // can be.
    let removed = state.usage(&[]).live.saturating_sub(bytes);
    let bytes = above(state, live.saturating_sub(removed), capacity);
    let objects = if memory == Memory::Common { objects_in_excess(state, objects) } else { 0 };
    Excess { bytes, objects }
}

/// Returns how many objects the pool and the index's memory have above their low watermarks, of `objects` and puts in flight
/// that were not removed.
fn objects_in_excess(state: &State, objects: u64) -> u64 {
    let settings = state.settings();
    let with_removed = state.objects() + state.puts_in_flight();
    let by_count = above(state, objects, settings.max_objects);
    let each = state.index_bytes() / with_removed.max(1);
    let removed = each.saturating_mul(with_removed.saturating_sub(objects));
    let memory = above(state, state.index_bytes().saturating_sub(removed), settings.max_index_bytes);
    let by_memory = if each == 0 { 0 } else { memory.div_ceil(each) };
    by_count.max(by_memory)
}

/// Lists those of some tenants that are above the high watermark of their quota, and what each has above the low one.
pub fn tenants_in_excess(
    state: &State,
    tenants: impl IntoIterator<Item = TenantName>,
) -> Vec<(TenantName, Excess)> {
    let excess = |quota: Quota, count: u64, bytes: u64| Excess {
        bytes: above(state, bytes, quota.bytes),
        objects: above(state, count, quota.objects),
    };
    let tenants = tenants.into_iter().map(|tenant| {
        let all = state.tenant_usage(&tenant).all();
        (tenant, excess(state.quota(&tenant), all.count, all.bytes))
    });
    tenants.filter(|(_, excess)| !excess.is_none()).collect()
}

/// Returns what a use has above the low watermark, once it has passed the high one; 0 without a limit.
fn above(state: &State, used: u64, limit: u64) -> u64 {
    let settings = state.settings();
    if limit == 0 || used <= settings.eviction_high_watermark.of(limit) {
        return 0;
    }
    used.saturating_sub(settings.eviction_low_watermark.of(limit))
}
