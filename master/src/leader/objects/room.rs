//! Room in the pool and in the quotas of tenants: the wait of puts for it, and of reads for the outcome of evictions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mc_eviction::{EvictionBlocked, Excess, Scope};
use mc_index::{Fit, State, Usage};
use mc_raft::SharedIndex;
use mc_types::StoreId;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

use super::Objects;
use super::queue::{PutQueue, RoomNeed, Ticket, WaitReason, WakeReason, Wakes};
use crate::leader::term::Leading;
use crate::metrics::PutWait;

/// Longest wait of a read for the outcome of an eviction. An entry is decided within milliseconds, unless the leader is
/// losing its majority.
const OUTCOME_WAIT: Duration = Duration::from_secs(1);

type Waker = oneshot::Sender<WakeReason>;

/// Room in the pool and in the quotas of tenants.
#[derive(Debug)]
pub(crate) struct Room {
    /// Taken before the lock of the index, never while that is held.
    queue: Mutex<PutQueue<Waker>>,
    /// Number of calls in the queue, so that calls need not lock it while it is empty.
    waiting: AtomicUsize,
    /// A call waits for room.
    pub(super) asked: Notify,
    /// Notified when the outcome of evictions is known.
    decided: watch::Sender<()>,
}

/// Outcome of a wait for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitOutcome {
    /// There should be room: try again.
    Room,
    /// Nothing can be evicted.
    Blocked(EvictionBlocked),
    /// Nothing, or not enough, was freed in time.
    Late,
}

impl Room {
    pub(crate) fn new() -> Self {
        Self {
            queue: Mutex::new(PutQueue::new()),
            waiting: AtomicUsize::new(0),
            asked: Notify::new(),
            decided: watch::Sender::default(),
        }
    }

    /// Changes the queue, or looks at it.
    pub(super) fn queue<R>(&self, change: impl FnOnce(&mut PutQueue<Waker>) -> R) -> R {
        let mut queue = self.queue.lock();
        let result = change(&mut queue);
        self.waiting.store(queue.len(), Ordering::Release);
        result
    }

    /// Changes the queue, and tells the waiters that are to know.
    pub(super) fn tell(&self, change: impl FnOnce(&mut PutQueue<Waker>) -> Wakes<Waker>) {
        for (waker, reason) in self.queue(change) {
            // A call that has just been dropped leaves the queue by itself.
            let _ = waker.send(reason);
        }
    }

    /// Whether no call is in the queue.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.load(Ordering::Acquire) == 0
    }

    /// Whether calls are in the queue of a scope, behind which others queue.
    fn is_waited(&self, scope: Scope) -> bool {
        !self.is_idle() && self.queue(|queue| queue.is_waited(scope))
    }

    /// Lets those waiters try for which there is room now.
    pub(crate) fn let_in(&self, index: &SharedIndex, suspects: &[StoreId]) {
        if self.is_idle() {
            return;
        }
        self.tell(|queue| {
            let scopes: Vec<Scope> = queue.scopes().collect();
            index.read(|applied| {
                let state = &applied.state;
                let let_in = |scope| {
                    let without = outside(scope, state, suspects);
                    let fits = |size| state.fit_of(size, &without) == Fit::Fits;
                    queue.let_in(scope, free_in(scope, state, &without), fits)
                };
                scopes.into_iter().flat_map(let_in).collect()
            })
        });
    }

    /// Calls `read` until it finds no version that is being evicted, or until such a version was undecided for too long.
    ///
    /// `read` returns its result and whether it met one. A version is decided when its entry is applied, or is known
    /// never to be.
    pub(super) async fn read_settled<R>(&self, mut read: impl FnMut() -> (R, bool)) -> R {
        let (result, undecided) = read();
        if !undecided {
            return result;
        }
        let deadline = Instant::now() + OUTCOME_WAIT;
        loop {
            // Subscribed before reading: a decision after the read wakes this task.
            let mut decided = self.decided.subscribe();
            let (result, undecided) = read();
            if !undecided || tokio::time::timeout_at(deadline, decided.changed()).await.is_err() {
                return result;
            }
        }
    }

    /// Wakes reads that wait for the outcome of an eviction.
    pub(super) fn decided(&self) {
        self.decided.send_modify(|()| {});
    }
}

/// Lists the stores that do not count in a scope, sorted. Bytes on suspect stores count in a quota.
pub(super) fn outside(scope: Scope, state: &State, suspects: &[StoreId]) -> Vec<StoreId> {
    match scope {
        Scope::Memory(memory) => state.stores_outside(memory, suspects),
        Scope::Quota(_) => Vec::new(),
    }
}

/// Returns what is free in a scope, in which the stores in `without` do not count. In a memory, held bytes count as free: a put
/// may take them back.
pub(super) fn free_in(scope: Scope, state: &State, without: &[StoreId]) -> Excess {
    let below = |limit: u64, used: u64| if limit == 0 { u64::MAX } else { limit.saturating_sub(used) };
    if let Scope::Quota(tenant) = scope {
        let (quota, all) = (state.quota(&tenant), state.tenant_usage(&tenant).all());
        return Excess { bytes: below(quota.bytes, all.bytes), objects: below(quota.objects, all.count) };
    }
    let Usage { capacity, live, .. } = state.usage(without);
    let count = state.objects() + state.puts_in_flight();
    let objects = if state.is_at_cap() { 0 } else { below(state.settings().max_objects, count) };
    Excess { bytes: capacity.saturating_sub(live), objects }
}

/// The place of a call in the queue, which it leaves when this is dropped.
pub(super) struct QueuedCall<'a> {
    objects: &'a Objects,
    leading: &'a Leading,
    ticket: Option<Ticket>,
    scope: Option<Scope>,
    measured: Option<PutWait<'a>>,
}

impl<'a> QueuedCall<'a> {
    /// A call that does not wait yet.
    pub(super) fn new(objects: &'a Objects, leading: &'a Leading) -> Self {
        Self { objects, leading, ticket: None, scope: None, measured: None }
    }

    /// Stores that get no puts now, sorted.
    pub(super) fn suspects(&self) -> Arc<Vec<StoreId>> {
        self.leading.liveness.suspects()
    }

    /// Whether others wait in a scope, so that this call has to wait behind them.
    pub(super) fn has_to_queue(&self, scope: Scope) -> bool {
        self.objects.room.is_waited(scope)
    }

    /// Waits for room in a scope until it is the call's turn to try.
    ///
    /// The call keeps its place in the queue of that scope until it waits in another one, or is dropped.
    pub(super) async fn wait(
        &mut self,
        scope: Scope,
        need: RoomNeed,
        after: WaitReason,
        deadline: Instant,
    ) -> WaitOutcome {
        let Self { objects, leading, .. } = *self;
        if self.scope.is_some_and(|before| before != scope) {
            self.leave();
        }
        let suspects = leading.liveness.suspects();
        let (waker, mut told) = oneshot::channel();
        let room = &objects.room;
        let ticket = room.queue(|queue| {
            let ticket = self.ticket.unwrap_or_else(|| queue.ticket());
            let free = objects.index.read(|applied| {
                let state = &applied.state;
                free_in(scope, state, &outside(scope, state, &suspects))
            });
            queue.wait(ticket, scope, need, free.bytes, after, waker);
            ticket
        });
        (self.ticket, self.scope) = (Some(ticket), Some(scope));
        room.let_in(&objects.index, &suspects);
        if let Ok(reason) = told.try_recv() {
            return WaitOutcome::of(reason);
        }
        room.asked.notify_one();
        self.measured.get_or_insert_with(|| objects.metrics.puts.wait());
        match tokio::time::timeout_at(deadline, told).await {
            Ok(Ok(reason)) => WaitOutcome::of(reason),
            _ => WaitOutcome::Late,
        }
    }

    /// Ends a wait that was too long. Returns why nothing could be evicted for the call, and whether some of what it needs
    /// was freed, so that a last try may help.
    pub(super) fn end(&self) -> (Option<EvictionBlocked>, bool) {
        let (Some(ticket), Some(scope)) = (self.ticket, self.scope) else { return (None, false) };
        self.objects.room.queue(|queue| queue.end_wait(ticket, scope))
    }

    fn leave(&mut self) {
        if let (Some(ticket), Some(scope)) = (self.ticket, self.scope.take()) {
            self.objects.room.tell(|queue| queue.leave(ticket, scope));
        }
    }
}

impl Drop for QueuedCall<'_> {
    /// Also of a call that is dropped while it waits or tries: nothing is evicted for it from now on, and its room is for
    /// those behind it.
    fn drop(&mut self) {
        if self.scope.is_some() {
            self.leave();
            self.objects.let_in(self.leading);
        }
    }
}

impl WaitOutcome {
    fn of(reason: WakeReason) -> Self {
        match reason {
            WakeReason::Try => Self::Room,
            WakeReason::Blocked(why) => Self::Blocked(why),
        }
    }
}
