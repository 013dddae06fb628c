use mc_types::{ClusterTime, Code, MAX_ITEMS, PutId};
use triomphe::Arc;

use super::command::{Command, Op, PutEnded, PutStarted, Response, Stamp};
use super::groups::Groups;
use super::key_values::KeyValues;
use super::objects::Objects;
use super::puts::{PutState, Puts};
use super::segments::Segments;
use super::settings::Settings;
use super::stores::Stores;
use super::tenants::Tenants;

/// Number of due puts, and of held ranges, that an entry may end, in addition to twice its own number of items.
pub(super) const EXPIRE_MIN: usize = 1024;

/// The index. A clone is cheap and immutable, so it can be encoded on another thread while entries are applied.
#[derive(Clone)]
pub struct State {
    pub(super) time: ClusterTime,
    pub(super) cluster_version: u32,
    pub(super) settings: Settings,
    pub(super) stores: Stores,
    pub(super) segments: Segments,
    pub(super) objects: Objects,
    pub(super) puts: Puts,
    pub(super) tenants: Tenants,
    pub(super) groups: Groups,
    pub(super) key_values: KeyValues,
    /// Position in the objects from which those are to be freed that a `remove_all` has removed.
    pub(super) clear_from: u64,
    /// Share of the once-seen queue that a leader noted last, of 2^32; 0 if none did.
    pub(super) once_share: u32,
    /// Number of changes of settings and quotas that were applied since this copy of the index began. No part of the index:
    /// `apply` decides nothing by it.
    pub(super) limits_changed: u64,
}

/// Facts about the entry that carries an operation.
pub(super) struct Entry<'a> {
    /// Order number of the allocations that the entry makes (see [`allocation_order`]).
    pub(super) order: u64,
    /// The leader's stamp.
    pub(super) stamp: &'a Stamp,
    /// Cluster time now.
    pub(super) now: ClusterTime,
}

impl State {
    /// An empty index.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            time: ClusterTime(0),
            cluster_version: 0,
            settings,
            stores: Stores::new(),
            segments: Segments::new(),
            objects: Objects::new(),
            puts: Puts::new(),
            tenants: Tenants::new(),
            groups: Groups::new(),
            key_values: KeyValues::new(),
            clear_from: 0,
            once_share: 0,
            limits_changed: 0,
        }
    }

    /// Applies the log entry `index` of `term`. Never panics; bad input is a code in the answer.
    pub fn apply(&mut self, index: u64, term: u64, command: &Command) -> Response {
        let Command { stamp, op } = command;
        if is_bound_to_term(op) && stamp.term != term {
            return Response::WrongTerm;
        }
        self.time = self.time.max(stamp.now);
        // More than this entry can itself leave behind, so that a backlog never grows.
        self.expire(EXPIRE_MIN + 2 * items(op));
        self.puts.forget_due(index, self.time);
        let entry = Entry { order: allocation_order(term, index), stamp, now: self.time };
        match op {
            Op::Tick => Response::Done,
            Op::PutStart { tenant, items } => {
                if items.len() > MAX_ITEMS {
                    return Response::PutStarted(vec![PutStarted::refused(Code::InvalidParams); items.len()]);
                }
                Response::PutStarted(self.put_start(&entry, tenant, items))
            }
            Op::PutEnd { items } => {
                if items.len() > MAX_ITEMS {
                    return Response::PutEnded(vec![PutEnded::refused(Code::InvalidParams); items.len()]);
                }
                Response::PutEnded(self.put_end(&entry, items))
            }
            Op::PutRevoke { puts } => {
                if puts.len() > MAX_ITEMS {
                    return Response::Codes(vec![Code::InvalidParams; puts.len()]);
                }
                Response::Codes(puts.iter().map(|&put| self.put_revoke(put)).collect())
            }
            Op::Remove { tenant, items } => {
                if items.len() > MAX_ITEMS {
                    return Response::Codes(vec![Code::InvalidParams; items.len()]);
                }
                Response::Codes(items.iter().map(|item| self.remove(tenant, item)).collect())
            }
            Op::Evict { items, reuse_at } => {
                if items.len() > MAX_ITEMS {
                    return Response::Codes(vec![Code::InvalidParams; items.len()]);
                }
                Response::Codes(self.evict(items, *reuse_at))
            }
            Op::RemoveAll { tenant, reuse_at } => {
                Response::Removed(self.remove_all(&entry, tenant, *reuse_at))
            }
            Op::DropReplicas { tenant, store, items } => {
                if items.len() > MAX_ITEMS {
                    return Response::Codes(vec![Code::InvalidParams; items.len()]);
                }
                Response::Codes(items.iter().map(|item| self.drop_replica(tenant, *store, item)).collect())
            }
            Op::NoteReuse { keys, epoch, once_share } => {
                self.once_share = *once_share;
                keys.iter().take(MAX_ITEMS).for_each(|&key| self.objects.note_reuse(key, *epoch));
                Response::Done
            }
            Op::MountStore(mount) => Response::Codes(vec![self.mount_store(index, mount)]),
            Op::DropStore { store, epoch } => {
                self.drop_store(index, *store, *epoch);
                Response::Codes(vec![Code::Ok])
            }
            Op::Sweep { limit } => Response::Swept { more: self.sweep(*limit) },
            Op::SetTenant { tenant, quota } => {
                self.limits_changed += 1;
                Response::Codes(vec![self.set_tenant(tenant, *quota)])
            }
            Op::SetKeyValue { key, value } => {
                Response::Codes(vec![self.key_values.set(key, value.as_ref().map(|value| &value[..]))])
            }
            Op::SetSettings(settings) => {
                self.limits_changed += 1;
                self.settings = settings.clone();
                Response::Done
            }
            Op::SetClusterVersion(version) => {
                self.cluster_version = self.cluster_version.max(*version);
                Response::Done
            }
        }
    }

    /// Ends puts past their deadline and frees held bytes that are due, at most `limit` of each.
    fn expire(&mut self, limit: usize) {
        for put in self.puts.due(self.time, limit) {
            self.give_up(put);
        }
        self.segments.release_due(self.time, limit);
    }

    /// Forgets a put and frees its bytes at once. A writer that is still running does no harm: the store refuses it,
    /// because it sees a higher log index for these bytes before any client reads them.
    pub(super) fn give_up(&mut self, put: PutId) {
        if let Some(put) = self.puts.forget(put) {
            self.leave_put(&put);
            for replica in &put.replicas {
                self.segments.free(replica.segment, replica.placed.offset, put.size);
                self.segments.unpin(replica.segment, put.size, put.pin);
            }
        }
    }

    /// Returns a put that is in flight, or ended and remembered. A put past its deadline counts as gone even if no
    /// entry has expired it yet, so that answers do not depend on the length of the backlog.
    pub(super) fn known_put(&mut self, now: ClusterTime, id: PutId) -> Option<PutState> {
        if let Some(put) = self.puts.in_flight(id) {
            if put.deadline > now {
                return Some(PutState::InFlight(Arc::clone(put)));
            }
            self.give_up(id);
            return None;
        }
        let ended = *self.puts.ended(id)?;
        if ended.deadline > now {
            return Some(PutState::Ended(ended));
        }
        // A later put with that id must not find this record.
        self.puts.forget_due_beside(id, now);
        None
    }

    fn put_revoke(&mut self, put: PutId) -> Code {
        match self.known_put(self.time, put) {
            None => Code::Ok,
            Some(PutState::Ended(_)) => Code::InvalidWrite,
            Some(PutState::InFlight(_)) => {
                self.give_up(put);
                Code::Ok
            }
        }
    }
}

/// Number of log entries a cluster may lose without a later allocation getting a lower order; see [`allocation_order`].
pub(super) const LOST_ENTRIES_MAX: u64 = 1 << 32;

/// Returns the order of an allocation by the log entry `index` of `term`, for a store's fence: of two allocations of
/// the same bytes, the later one has the higher order.
///
/// The index alone would be enough if no entry were ever lost. With `--log-sync none`, a majority of the masters can lose
/// the end of their logs in a power failure while the stores live on. The next leader then issues those indexes again, in
/// a later term. No term has two leaders, because votes are synced whatever `--log-sync` says. A term therefore counts
/// more than as many entries as a log can plausibly lose. A log that lost more than its last seconds ends before its mark
/// of what was durable, and its master refuses to start.
#[must_use]
pub fn allocation_order(term: u64, index: u64) -> u64 {
    term.saturating_mul(LOST_ENTRIES_MAX).saturating_add(index)
}

/// Entries that the log of a rescued cluster skips after the survivor's last one. Stores may have seen later entries of the
/// lost masters, and a store refuses an allocation of a lower order than it has seen for the same bytes. A term counts
/// for 2^32 entries in that order. So this gap covers 65,535 elections that the survivor missed, and leaves room for as
/// many rescues.
pub const RESCUE_GAP: u64 = 1 << 48;

/// Returns the order from which on an index whose last entry has the order `latest` knows every allocation. The place of
/// an older one may have been given to another object by entries that were lost in a rescue.
///
/// A rescue adds [`RESCUE_GAP`] to the order, so a multiple of the gap lies between the allocations before it and those
/// after it. Without a rescue the order reaches a multiple after 65,536 terms. Then older objects are doubted without
/// need, which costs time and nothing else.
#[must_use]
pub fn known_from(latest: u64) -> u64 {
    latest - latest % RESCUE_GAP
}

/// Whether the leader decides the operation from soft state, so that it is valid in one term only.
fn is_bound_to_term(op: &Op) -> bool {
    !matches!(
        op,
        Op::Tick
            | Op::SetSettings(_)
            | Op::SetClusterVersion(_)
            | Op::SetTenant { .. }
            | Op::SetKeyValue { .. }
    )
}

fn items(op: &Op) -> usize {
    match op {
        Op::PutStart { items, .. } => items.len(),
        Op::PutEnd { items } => items.len(),
        Op::PutRevoke { puts } => puts.len(),
        Op::Remove { items, .. } | Op::DropReplicas { items, .. } => items.len(),
        Op::Evict { items, .. } => items.len(),
        Op::NoteReuse { keys, .. } => keys.len(),
        Op::Tick
        | Op::MountStore(_)
        | Op::DropStore { .. }
        | Op::Sweep { .. }
        | Op::RemoveAll { .. }
        | Op::SetTenant { .. }
        | Op::SetKeyValue { .. }
        | Op::SetSettings(_)
        | Op::SetClusterVersion(_) => 0,
    }
}

impl std::fmt::Debug for State {
    /// Leaves out the objects: there may be millions.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("time", &self.time)
            .field("objects", &self.objects())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_allocated_before_a_rescue_is_doubtful_and_nothing_else_is() {
        for (term, index) in [(1, 1), (6, 177), (900, 1 << 33), (65_000, 1 << 40)] {
            let before = allocation_order(term, index);
            assert_eq!(known_from(before), 0, "no rescue");
            let mut oldest = before;
            for rescue in 1..5 {
                let rescued = allocation_order(term, index + rescue * RESCUE_GAP);
                assert!(oldest < known_from(rescued), "known before rescue {rescue}");
                let next = allocation_order(term + 1, index + rescue * RESCUE_GAP + 1);
                assert!(known_from(next) <= rescued, "allocations of the new cluster");
                oldest = next;
            }
        }
    }
}
