//! Application of log entries. Each operation has its file; `put` uses `place`, and all use [`EntryFacts`].

mod mount;
pub(crate) mod order;
pub(crate) mod place;
mod put;
mod removal;
mod rescue;
pub(crate) mod sweep;
mod tenant;

use mc_types::{ClusterTime, Code, MAX_ITEMS, PutId};
use triomphe::Arc;

use crate::bounds::bound;
use crate::command::{Command, Op, PutEnded, PutStarted, Response, Stamp};
use crate::puts::PutState;
use crate::state::State;

pub use order::{RESCUE_GAP, allocation_order, known_from};

/// Number of due puts, and of held ranges, that an entry may end, in addition to twice its own number of items.
pub(crate) const EXPIRE_MIN: usize = 1024;

/// Facts about the entry that carries an operation.
pub(crate) struct EntryFacts<'a> {
    /// Order number of the allocations that the entry makes (see [`allocation_order`]).
    pub(crate) order: u64,
    /// The leader's stamp.
    pub(crate) stamp: &'a Stamp,
    /// Cluster time now.
    pub(crate) now: ClusterTime,
}

impl State {
    /// Applies the log entry `index` of `term`. Never panics; bad input is a code in the answer.
    pub fn apply(&mut self, index: u64, term: u64, command: &Command) -> Response {
        let Command { stamp, op } = command;
        if is_bound_to_term(op) && stamp.term != term {
            return Response::WrongTerm;
        }
        self.time = self.time.max(stamp.now);
        // More than this entry can itself leave behind, so that a backlog never grows.
        self.expire(bound(EXPIRE_MIN, 1) + 2 * items(op));
        self.puts.forget_due(index, self.time);
        let entry = EntryFacts { order: allocation_order(term, index), stamp, now: self.time };
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
                Response::PutEnded(self.put_end(&entry, items, |item| (item, None)))
            }
            Op::PutEndProven { items } => {
                if items.len() > MAX_ITEMS {
                    return Response::PutEnded(vec![PutEnded::refused(Code::InvalidParams); items.len()]);
                }
                Response::PutEnded(self.put_end(&entry, items, |item| (&item.end, Some(item.index))))
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
            Op::SetSecurity(change) => Response::Codes(vec![self.security.change(index, self.time, change)]),
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
    pub(crate) fn give_up(&mut self, put: PutId) {
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
    pub(crate) fn known_put(&mut self, now: ClusterTime, id: PutId) -> Option<PutState> {
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

/// Whether the leader decides the operation from soft state, so that it is valid in one term only.
fn is_bound_to_term(op: &Op) -> bool {
    !matches!(
        op,
        Op::Tick
            | Op::SetSettings(_)
            | Op::SetClusterVersion(_)
            | Op::SetTenant { .. }
            | Op::SetKeyValue { .. }
            | Op::SetSecurity(_)
    )
}

fn items(op: &Op) -> usize {
    match op {
        Op::PutStart { items, .. } => items.len(),
        Op::PutEnd { items } => items.len(),
        Op::PutEndProven { items } => items.len(),
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
        | Op::SetSecurity(_)
        | Op::SetSettings(_)
        | Op::SetClusterVersion(_) => 0,
    }
}
