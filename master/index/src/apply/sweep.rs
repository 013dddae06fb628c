//! Freeing what dropped stores held, and the objects that a `remove_all` has removed.

use mc_types::ClusterTime;

use super::EntryFacts;
use crate::key::{IndexKey, TenantName};
use crate::objects::Replica;
use crate::state::State;
use crate::tenants::RemovalMark;

/// Maximum number of objects that one sweep visits, whatever limit it was given.
pub(crate) const SWEEP_MAX: u32 = 16_384;
/// Bit of the position in the objects up to which cleared ones are freed: a further pass is needed from the start, because
/// of a `remove_all` during this one.
const ONCE_MORE: u64 = 1 << 63;
/// Maximum number of objects and parts of the index that one sweep of cleared objects visits. Most are passed over.
pub(crate) const VISITS_MAX: usize = 64 << 10;

impl State {
    /// Removes replicas in dropped segments from the index, and each object that has no other live replica; then
    /// objects that a `remove_all` has removed. Visits at most `limit` objects and returns whether some are left.
    pub(crate) fn sweep(&mut self, limit: u32) -> bool {
        let limit = limit.min(SWEEP_MAX);
        for swept in 0..limit {
            let Some((number, offset, shard)) = self.segments.next_to_sweep() else {
                self.sweep_removed(limit - swept);
                break;
            };
            if let Some((key, mut object)) = self.objects.find(shard, number, offset) {
                let (live, dropped): (Vec<Replica>, Vec<Replica>) =
                    object.replicas.iter().partition(|r| self.segments.live(r.segment).is_some());
                for replica in dropped {
                    self.segments.leave(replica.segment, replica.offset, shard);
                }
                self.discharge(&key, &object);
                if live.is_empty() {
                    self.objects.remove(&key);
                    self.leave_group(&key, &object);
                } else {
                    object.replicas = live.into();
                    self.charge(&key, &object);
                    self.objects.insert(&key, &object);
                }
            } else {
                // Unreachable: residents and replicas are kept in step. Going on beats sweeping the same place forever.
                self.segments.leave(number, offset, shard);
            }
        }
        self.needs_sweep()
    }

    pub(crate) fn remove_all(&mut self, entry: &EntryFacts<'_>, tenant: &str, reuse_at: ClusterTime) -> u64 {
        if tenant.len() > mc_types::MAX_TENANT_LEN {
            return 0;
        }
        let mark = RemovalMark { before: entry.order, reuse_at };
        let goes_on = self.cluster_version >= 2 && self.tenants.has_marks();
        let removed = self.tenants.mark_removed(TenantName::new(tenant.as_bytes()), mark);
        if removed > 0 {
            // A pass that is under way goes on, so that no tenant keeps the objects at its end from being freed.
            self.sweep_from = if goes_on { self.sweep_from | ONCE_MORE } else { 0 };
        }
        removed
    }

    /// Frees the bytes of at most `limit` objects that a `remove_all` has removed, and forgets the marks at the end.
    pub(crate) fn sweep_removed(&mut self, limit: u32) {
        if !self.tenants.has_marks() {
            return;
        }
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let (once_more, from) = (self.sweep_from & ONCE_MORE, self.sweep_from & !ONCE_MORE);
        let (mut doomed, mut visits, mut before, mut done) = (Vec::new(), 0, from, true);
        for (after, object) in self.objects.iter_from(from) {
            // Objects that share a position are in one slice.
            if after != before && (doomed.len() >= limit || visits >= VISITS_MAX) {
                done = false;
                break;
            }
            (visits, before) = (visits + 1, after);
            let Some(object) = object else { continue };
            if let Some(mark) = self.removal_mark(object) {
                doomed.extend(IndexKey::from_bytes(object.key).map(|key| (key, mark.reuse_at)));
            }
        }
        for (key, reuse_at) in doomed {
            if let Some(object) = self.objects.remove(&key) {
                self.retire(&key, &object, reuse_at);
            }
        }
        self.sweep_from = if done { 0 } else { before | once_more };
        if done && once_more == 0 {
            self.tenants.forget_marks();
        }
    }
}
