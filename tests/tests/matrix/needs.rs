//! Whether evictions were needed: by the pool, or by the tenant whose object went.

use std::collections::HashMap;

use mc_index::{Quota, State, TenantName, Usage};
use mc_types::ClusterTime;

use crate::replay::Evicted;

/// Time for which a need of room counts after the last entry that shows it: the leader decides before its entry is applied.
const DECIDED_WITHIN_MS: u64 = 2_000;

/// Who needed room when, by a log that is applied entry by entry, and the evictions that it holds.
#[derive(Default)]
pub(crate) struct Needs {
    /// When the pool (`None`) and each tenant had more than the low watermark allows last, by the clock of the log.
    in_need: HashMap<Option<TenantName>, ClusterTime>,
    /// Evictions for the pool, of tenants that were not at their quotas.
    pub(crate) for_pool: usize,
    /// Evictions of tenants' objects for their quotas, while the pool had room.
    pub(crate) for_quotas: usize,
    /// Evictions of objects of tenants that were at their quotas, while the pool had no room either.
    pub(crate) for_both: usize,
    /// Evictions that nobody needed, in words.
    pub(crate) needless: Vec<String>,
}

impl Needs {
    /// Takes the evictions of the next entry, after which the index is in this state.
    pub(crate) fn applied(&mut self, evicted: &[Evicted], state: &State) {
        for it in evicted {
            self.judge(it, state);
        }
        self.note_needs(state);
    }

    /// An object goes because the pool has no room, or because its own tenant is at its quota. It does not go for another tenant's.
    fn judge(&mut self, it: &Evicted, state: &State) {
        let name = TenantName::new(it.tenant.as_bytes());
        let is_in_need =
            |who| self.in_need.get(&who).is_some_and(|since| state.time().0 <= since.0 + DECIDED_WITHIN_MS);
        match (is_in_need(None), is_in_need(Some(name))) {
            (true, false) => self.for_pool += 1,
            (true, true) => self.for_both += 1,
            (false, true) => self.for_quotas += 1,
            (false, false) => {
                let why = format!("{:?} went, and neither {:?} nor the pool needed room", it.key, it.tenant);
                self.needless.push(why);
            }
        }
    }

    fn note_needs(&mut self, state: &State) {
        let low = state.settings().eviction_low_watermark;
        let is_above = |used, limit| limit > 0 && used > low.of(limit);
        let Usage { capacity, live, .. } = state.usage(&[]);
        if is_above(live, capacity) {
            self.in_need.insert(None, state.time());
        }
        for tenant in state.tenants() {
            let (Quota { bytes, objects }, all) = (state.quota(&tenant.name), tenant.usage.all());
            if is_above(all.bytes, bytes) || is_above(all.count, objects) {
                self.in_need.insert(Some(tenant.name), state.time());
            }
        }
    }
}
