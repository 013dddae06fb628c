//! Freeing what dropped stores held, and the objects that a `remove_all` has removed.

use mc_types::ClusterTime;

use super::EntryFacts;
use crate::bounds::bound;
use crate::key::{IndexKey, TenantName};
use crate::objects::{ObjectRef, Objects, Replica};
use crate::state::State;
use crate::tenants::RemovalMark;

/// Maximum number of objects that one sweep visits, whatever limit it was given.
pub(crate) const SWEEP_MAX: u32 = 16_384;
/// Bit of the position in the objects up to which cleared ones are freed: a further pass is needed from the start, because
/// of a `remove_all` during this one.
const ONCE_MORE: u64 = 1 << 63;
/// Maximum number of objects, and of parts of the index, that one sweep of cleared objects visits. Most are passed over.
pub(crate) const VISITS_MAX: usize = 64 << 10;

impl State {
    /// Removes replicas in dropped segments from the index, and each object that has no other live replica; then
    /// objects that a `remove_all` has removed. Visits at most `limit` objects and returns whether some are left.
    pub(crate) fn sweep(&mut self, limit: u32) -> bool {
        let limit = limit.min(bound(SWEEP_MAX, 2));
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
        let (doomed, next) = match self.cluster_version {
            ..2 => self.removed_by_visits(from, limit),
            _ => self.removed_by_place(from, limit),
        };
        for (key, reuse_at) in doomed {
            if let Some(object) = self.objects.remove(&key) {
                self.retire(&key, &object, reuse_at);
            }
        }
        self.sweep_from = next.map_or(0, |next| next | once_more);
        if next.is_none() && once_more == 0 {
            self.tenants.forget_marks();
        }
    }

    /// Lists removed objects from a position on, at most `limit` and those that share the position of the last one, and returns
    /// the position to go on from. It goes through a fixed share of the parts of the index.
    ///
    /// The end must follow from the objects alone. Which parts without objects are there does not: a part that was emptied
    /// is there until the master restarts from a snapshot.
    fn removed_by_place(&self, from: u64, limit: usize) -> (Vec<Doomed>, Option<u64>) {
        let end = Objects::part_after(from, VISITS_MAX);
        let (mut doomed, mut visits, mut before) = (Vec::new(), 0, from);
        for (after, object) in self.objects.iter_from(from) {
            if end.is_some_and(|end| after > end) {
                break;
            }
            let Some(object) = object else { continue };
            // Objects that share a position are in one slice.
            if after != before && (doomed.len() >= limit || visits >= bound(VISITS_MAX, 4)) {
                return (doomed, Some(before));
            }
            (visits, before) = (visits + 1, after);
            doomed.extend(self.doomed(object));
        }
        (doomed, end)
    }

    /// [`Self::removed_by_place`] as of cluster version 1: the parts that are there count as visits, so masters that restart
    /// end up with another index than others once a pass takes more than one entry.
    fn removed_by_visits(&self, from: u64, limit: usize) -> (Vec<Doomed>, Option<u64>) {
        let (mut doomed, mut visits, mut before) = (Vec::new(), 0, from);
        for (after, object) in self.objects.iter_from(from) {
            if after != before && (doomed.len() >= limit || visits >= VISITS_MAX) {
                return (doomed, Some(before));
            }
            (visits, before) = (visits + 1, after);
            doomed.extend(object.and_then(|object| self.doomed(object)));
        }
        (doomed, None)
    }

    fn doomed(&self, object: ObjectRef<'_>) -> Option<Doomed> {
        let mark = self.removal_mark(object)?;
        Some((IndexKey::from_bytes(object.key)?, mark.reuse_at))
    }
}

/// Key of an object that a `remove_all` has removed, and the time from which its bytes may be reused.
type Doomed = (IndexKey, ClusterTime);
