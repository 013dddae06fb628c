//! Puts that wait for room: in which order they are tried again, and how much is evicted for them.

use std::collections::BTreeMap;

use mc_eviction::{EvictionBlocked, Excess, Scope};

/// Number of refused tries after which nothing more is evicted for a waiter: where free space is in pieces that are too
/// small for a put, further ones would evict many times its bytes. It then waits for room that others leave.
const PAID_MAX: u32 = 4;
/// Number of sizes that one pass looks for room for, because a size that fits nowhere costs a look at all segments.
const SIZES_PER_PASS: usize = 4;

/// Number of a waiter: the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

/// Room that a call to start puts needs in one scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RoomNeed {
    /// Bytes of all replicas, and objects where their number is what is short.
    pub(super) excess: Excess,
    /// Bytes of the largest object; 0 if bytes are not short.
    pub(super) largest: u64,
}

/// Why a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitReason {
    /// Others wait: it has not tried yet.
    Coming,
    /// Its first try in this scope was refused, or one that started some of its puts.
    Progress,
    /// A further try was refused.
    Refusal,
}

/// Why a waiter is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WakeReason {
    /// There should be room: try again.
    Try,
    /// Nothing can be evicted.
    Blocked(EvictionBlocked),
}

/// Waiters to tell, each by its waker.
pub(super) type Wakes<W> = Vec<(W, WakeReason)>;

/// Calls that wait for room, by scope and in the order of arrival.
///
/// A waiter is told to try again once as many bytes were evicted as it needs (evicted bytes are *paid* to the waiters in
/// their order), or once there is room for it beyond what all before it need. It stays in the queue, without a waker, while
/// it tries, so that its room is not promised twice; then it leaves, or waits again in its old place.
///
/// No wake-up is lost: every decision is made from what the queue holds at that moment, under the lock of its owner, and is
/// made again at each change and at intervals. A waker leaves the queue only with its reason.
#[derive(Debug)]
pub(super) struct PutQueue<W> {
    next: u64,
    /// A line for each scope that calls wait in.
    lines: BTreeMap<Scope, Line<W>>,
}

/// Calls that wait for room in one scope.
#[derive(Debug)]
struct Line<W> {
    waiters: BTreeMap<Ticket, Waiter<W>>,
    /// The only waiter that may try, because a range is being cleared for it, or was cleared and it tries.
    sole: Option<Ticket>,
    /// Whether waiters may be paid in full that were not woken, because of the sole one.
    owing: bool,
}

#[derive(Debug)]
struct Waiter<W> {
    need: RoomNeed,
    /// Evicted for it since its last try, at most its need.
    paid: Excess,
    /// Number of tries that were refused.
    refused: u32,
    /// Free bytes when it was refused last.
    seen: u64,
    /// Whether it was refused although there seemed to be room.
    misjudged: bool,
    /// Whether it was woken because there seems to be room.
    judged: bool,
    /// Waker of the call; `None` while the call tries again.
    waker: Option<W>,
    /// Why nothing could be evicted for it last.
    blocked: Option<EvictionBlocked>,
}

impl<W> Waiter<W> {
    fn missing(&self) -> Excess {
        self.need.excess.less(self.paid.bytes, self.paid.objects)
    }

    fn waits(&self) -> bool {
        self.waker.is_some()
    }

    /// Whether more is evicted for it.
    fn is_paid_for(&self) -> bool {
        self.waits() && self.refused <= PAID_MAX
    }

    fn wake(&mut self, wakes: &mut Wakes<W>) {
        wakes.extend(self.waker.take().map(|waker| (waker, WakeReason::Try)));
    }
}

impl<W> Line<W> {
    fn new() -> Self {
        Self { waiters: BTreeMap::new(), sole: None, owing: false }
    }

    /// Lets the others try again, once `ticket` needs its range no more.
    fn open(&mut self, ticket: Ticket) {
        self.sole = self.sole.filter(|sole| *sole != ticket);
    }
}

impl<W> PutQueue<W> {
    pub(super) fn new() -> Self {
        Self { next: 0, lines: BTreeMap::new() }
    }

    /// Number of calls in the queue.
    pub(super) fn len(&self) -> usize {
        self.lines.values().map(|line| line.waiters.len()).sum()
    }

    /// Whether a call is in the queue of a scope.
    pub(super) fn is_waited(&self, scope: Scope) -> bool {
        self.lines.contains_key(&scope)
    }

    /// Lists the scopes that have waiters.
    pub(super) fn scopes(&self) -> impl Iterator<Item = Scope> + '_ {
        self.lines.keys().copied()
    }

    fn waiters(&self, scope: Scope) -> impl Iterator<Item = (Ticket, &Waiter<W>)> {
        let waiters = self.lines.get(&scope).map(|line| &line.waiters);
        waiters.into_iter().flatten().map(|(ticket, waiter)| (*ticket, waiter))
    }

    fn waiter(&mut self, ticket: Ticket, scope: Scope) -> Option<&mut Waiter<W>> {
        self.lines.get_mut(&scope)?.waiters.get_mut(&ticket)
    }

    /// Draws the next place in the line.
    pub(super) fn ticket(&mut self) -> Ticket {
        self.next += 1;
        Ticket(self.next)
    }

    /// Lets a call wait in a scope, in its old place if it is in the queue. `free` is the number of free bytes there.
    pub(super) fn wait(
        &mut self,
        ticket: Ticket,
        scope: Scope,
        need: RoomNeed,
        free: u64,
        after: WaitReason,
        waker: W,
    ) {
        let line = self.lines.entry(scope).or_insert_with(Line::new);
        let before = line.waiters.remove(&ticket);
        let (tries, judged) = before.map_or((0, false), |before| (before.refused, before.judged));
        let refused = match after {
            WaitReason::Coming => 0,
            WaitReason::Progress => 1,
            WaitReason::Refusal => tries + 1,
        };
        let waiter = Waiter {
            need,
            paid: Excess::default(),
            refused,
            seen: free,
            misjudged: after == WaitReason::Refusal && judged,
            judged: false,
            waker: Some(waker),
            blocked: None,
        };
        line.waiters.insert(ticket, waiter);
        line.open(ticket);
    }

    /// Takes a call out of a scope's queue. Bytes that were paid to it and not used are paid to those behind it.
    pub(super) fn leave(&mut self, ticket: Ticket, scope: Scope) -> Wakes<W> {
        let Some(line) = self.lines.get_mut(&scope) else { return Vec::new() };
        let left = line.waiters.remove(&ticket);
        line.open(ticket);
        if line.waiters.is_empty() {
            self.lines.remove(&scope);
        }
        match left.filter(Waiter::waits) {
            Some(left) => self.pay(scope, left.paid),
            None => Vec::new(),
        }
    }

    /// Ends the wait of a call whose time is over, which keeps its place for a last try. Returns why nothing could be evicted
    /// for it, and whether some of what it needs was freed.
    pub(super) fn end_wait(&mut self, ticket: Ticket, scope: Scope) -> (Option<EvictionBlocked>, bool) {
        self.waiter(ticket, scope).map_or((None, false), |waiter| {
            let was_told = waiter.waker.take().is_none();
            (waiter.blocked, was_told || !waiter.paid.is_none())
        })
    }

    /// Pays what an eviction has freed to the waiters of a scope, in their order.
    pub(super) fn pay(&mut self, scope: Scope, mut freed: Excess) -> Wakes<W> {
        let mut wakes = Vec::new();
        let Some(Line { waiters, sole, owing }) = self.lines.get_mut(&scope) else { return wakes };
        for (ticket, waiter) in waiters {
            if freed.is_none() {
                break;
            }
            if !waiter.is_paid_for() {
                continue;
            }
            let missing = waiter.missing();
            let paid =
                Excess { bytes: missing.bytes.min(freed.bytes), objects: missing.objects.min(freed.objects) };
            freed = freed.less(paid.bytes, paid.objects);
            waiter.paid = add(waiter.paid, paid);
            waiter.misjudged = false;
            if !waiter.missing().is_none() {
                continue;
            }
            if sole.is_none_or(|sole| sole == *ticket) {
                waiter.wake(&mut wakes);
            } else {
                *owing = true;
            }
        }
        wakes
    }

    /// Wakes the waiters of a scope for which there is room now, in their order: as much as is `free` beyond the needs of
    /// those before them, and `fits` for their largest object. A waiter that was refused although its object seems to fit
    /// is tried again once it is paid, or once as many bytes more are free as it needs.
    pub(super) fn let_in(
        &mut self,
        scope: Scope,
        free: Excess,
        mut fits: impl FnMut(u64) -> bool,
    ) -> Wakes<W> {
        let (mut wakes, mut needed, mut sizes) = (Vec::new(), Excess::default(), Vec::<(u64, bool)>::new());
        let Some(Line { waiters, sole, owing }) = self.lines.get_mut(&scope) else { return wakes };
        let all = sole.is_some() || std::mem::take(owing);
        for (ticket, waiter) in waiters {
            needed = add(needed, waiter.need.excess);
            let is_next = sole.is_none_or(|sole| sole == *ticket) && waiter.waits();
            if is_next && waiter.missing().is_none() {
                waiter.wake(&mut wakes);
            }
            if needed.bytes > free.bytes || needed.objects > free.objects {
                if all {
                    continue;
                }
                // Calls further back are woken when they are paid.
                break;
            }
            if !is_next || !waiter.waits() {
                continue;
            }
            let size = waiter.need.largest;
            let known = sizes.iter().find(|(known, _)| *known == size).map(|(_, fits)| *fits);
            let fits = size == 0
                || known.unwrap_or_else(|| {
                    let fits = sizes.len() < SIZES_PER_PASS && fits(size);
                    sizes.push((size, fits));
                    fits
                });
            let has_grown = free.bytes >= waiter.seen.saturating_add(waiter.need.excess.bytes.max(1));
            if fits && !waiter.misjudged || has_grown {
                waiter.judged = true;
                waiter.wake(&mut wakes);
            }
        }
        wakes
    }

    /// Returns what is to be evicted in a memory for its waiters.
    pub(super) fn wanted(&self, scope: Scope) -> Excess {
        let paid_for = self.waiters(scope).filter(|(_, waiter)| waiter.is_paid_for());
        paid_for.map(|(_, waiter)| waiter.missing()).fold(Excess::default(), add)
    }

    /// Returns what all calls in the queue of a scope need, those included that try just now; nothing if none waits.
    pub(super) fn needed(&self, scope: Scope) -> Excess {
        if !self.waiters(scope).any(|(_, waiter)| waiter.waits()) {
            return Excess::default();
        }
        self.waiters(scope).map(|(_, waiter)| waiter.need.excess).fold(Excess::default(), add)
    }

    /// Returns the first waiter of a scope whose largest object does not fit, what it needs, and whether it was refused since its
    /// bytes were freed.
    pub(super) fn first_unfit(
        &self,
        scope: Scope,
        mut fits: impl FnMut(u64) -> bool,
    ) -> Option<(Ticket, RoomNeed, bool)> {
        let (mut fitting, mut looks) = (0, 0);
        let mut is_unfit = |size: u64| {
            if size <= fitting || looks == SIZES_PER_PASS {
                return false;
            }
            looks += 1;
            let fits = fits(size);
            fitting = if fits { size } else { fitting };
            !fits
        };
        let paid_for = self.waiters(scope).filter(|(_, it)| it.is_paid_for() && !it.missing().is_none());
        let (ticket, waiter) = paid_for.into_iter().find(|(_, waiter)| is_unfit(waiter.need.largest))?;
        Some((ticket, waiter.need, waiter.refused > 1))
    }

    /// Lets no other call try in a scope until this one has tried, left, or [`Self::open`] is called: what is freed meanwhile is
    /// for it.
    pub(super) fn close_for(&mut self, ticket: Ticket, scope: Scope) {
        if let Some(line) = self.lines.get_mut(&scope) {
            line.sole = Some(ticket);
        }
    }

    /// Tells the call for which a range was cleared to try.
    pub(super) fn cleared(&mut self, ticket: Ticket, scope: Scope) -> Wakes<W> {
        let mut wakes = Vec::new();
        if let Some(waiter) = self.waiter(ticket, scope) {
            waiter.paid = waiter.need.excess;
            waiter.wake(&mut wakes);
        }
        wakes
    }

    /// Whether a call waits in a scope.
    pub(super) fn waits(&self, ticket: Ticket, scope: Scope) -> bool {
        self.waiters(scope).any(|(it, waiter)| it == ticket && waiter.waits())
    }

    /// Lets the others try again, once `ticket` needs its range no more.
    pub(super) fn open(&mut self, ticket: Ticket, scope: Scope) {
        if let Some(line) = self.lines.get_mut(&scope) {
            line.open(ticket);
        }
    }

    /// Refuses the waiters of a scope, because nothing can be evicted. Those for which something was evicted since their
    /// last try are tried first. With `patience`, the others go on waiting: puts in flight are about to end.
    pub(super) fn block(&mut self, scope: Scope, why: EvictionBlocked, patience: bool) -> Wakes<W> {
        let mut wakes = Vec::new();
        for waiter in self.lines.get_mut(&scope).into_iter().flat_map(|line| line.waiters.values_mut()) {
            waiter.blocked = Some(why);
            if !waiter.paid.is_none() {
                waiter.wake(&mut wakes);
            } else if !patience {
                wakes.extend(waiter.waker.take().map(|waker| (waker, WakeReason::Blocked(why))));
            }
        }
        wakes
    }

    /// Tells all waiters to try, because this master leads no more.
    pub(super) fn end_term(&mut self) -> Wakes<W> {
        let mut wakes = Vec::new();
        for line in self.lines.values_mut() {
            line.sole = None;
            line.waiters.values_mut().for_each(|waiter| waiter.wake(&mut wakes));
        }
        wakes
    }
}

fn add(a: Excess, b: Excess) -> Excess {
    Excess { bytes: a.bytes.saturating_add(b.bytes), objects: a.objects.saturating_add(b.objects) }
}

#[cfg(test)]
mod tests {
    use mc_index::{Memory, TenantName};

    use super::*;

    const POOL: Scope = Scope::Memory(Memory::Common);
    const NOTHING: Excess = Excess { bytes: 0, objects: 0 };

    fn bytes(bytes: u64) -> Excess {
        Excess { bytes, objects: 0 }
    }

    fn need(n: u64) -> RoomNeed {
        RoomNeed { excess: bytes(n), largest: n }
    }

    fn free(bytes: u64) -> Excess {
        Excess { bytes, objects: u64::MAX }
    }

    /// A queue in which calls of these sizes wait that were refused once while all was free, but in pieces. Their wakers are their
    /// positions.
    fn queue(sizes: &[u64]) -> (PutQueue<usize>, Vec<Ticket>) {
        let mut queue = PutQueue::new();
        let tickets = (0..sizes.len()).map(|_| queue.ticket()).collect::<Vec<_>>();
        for (at, (size, ticket)) in sizes.iter().zip(&tickets).enumerate() {
            queue.wait(*ticket, POOL, need(*size), 1_000_000, WaitReason::Progress, at);
        }
        (queue, tickets)
    }

    fn woken(wakes: Wakes<usize>) -> Vec<usize> {
        assert!(wakes.iter().all(|(_, reason)| *reason == WakeReason::Try), "{wakes:?}");
        wakes.into_iter().map(|(waker, _)| waker).collect()
    }

    #[test]
    fn freed_bytes_wake_as_many_as_they_satisfy_in_order() {
        let (mut queue, _) = queue(&[100, 100, 50, 10]);
        assert_eq!(queue.wanted(POOL), bytes(260));
        assert_eq!(
            woken(queue.pay(POOL, bytes(90))),
            [] as [usize; 0],
            "not enough for the first, none for the others"
        );
        assert_eq!(woken(queue.pay(POOL, bytes(120))), [0, 1]);
        assert_eq!(queue.wanted(POOL), bytes(50), "what was freed beyond that is the next one's");
        assert_eq!(woken(queue.pay(POOL, bytes(1_000))), [2, 3]);
        assert_eq!(queue.wanted(POOL), NOTHING, "nothing is evicted for those that try");
    }

    #[test]
    fn a_request_ends_with_its_waiter_and_what_was_freed_for_it_is_for_those_behind() {
        let (mut queue, tickets) = queue(&[100, 80, 70]);
        assert!(queue.pay(POOL, bytes(90)).is_empty());
        assert_eq!(woken(queue.leave(tickets[0], POOL)), [1], "ninety bytes were freed");
        assert_eq!(queue.wanted(POOL), bytes(60));
        assert!(queue.leave(tickets[2], POOL).is_empty());
        assert_eq!((queue.wanted(POOL), queue.len()), (NOTHING, 1));
        assert!(queue.leave(tickets[1], POOL).is_empty());
        assert!(queue.leave(tickets[1], POOL).is_empty(), "once more");
        assert_eq!((queue.len(), queue.is_waited(POOL)), (0, false));
    }

    #[test]
    fn newcomers_queue_behind_those_that_wait_and_pass_only_if_there_is_room_for_all() {
        let (mut queue, tickets) = queue(&[100]);
        let newcomer = queue.ticket();
        queue.wait(newcomer, POOL, need(10), 60, WaitReason::Coming, 7);
        // A large object does not fit, though the bytes are free; a small one would.
        let small = |size| size <= 50;
        assert!(queue.let_in(POOL, free(60), small).is_empty(), "sixty bytes are the first one's");
        assert!(queue.let_in(POOL, free(109), small).is_empty());
        assert_eq!(woken(queue.let_in(POOL, free(110), small)), [7]);
        queue.leave(newcomer, POOL);
        assert_eq!(woken(queue.let_in(POOL, free(100), |_| true)), [0]);
        let second = queue.ticket();
        queue.wait(second, POOL, need(10), 100, WaitReason::Coming, 8);
        assert!(
            queue.let_in(POOL, free(100), |_| true).is_empty(),
            "the first one is about to take all of it"
        );
        queue.leave(tickets[0], POOL);
        assert_eq!(woken(queue.let_in(POOL, free(100), |_| true)), [8]);
    }

    #[test]
    fn a_waiter_that_is_refused_again_keeps_its_place_and_is_not_told_to_try_again_for_the_same_room() {
        let (mut queue, tickets) = queue(&[100, 100]);
        assert_eq!(woken(queue.let_in(POOL, free(100), |_| true)), [0]);
        queue.wait(tickets[0], POOL, need(100), 100, WaitReason::Refusal, 0);
        assert!(queue.let_in(POOL, free(100), |_| true).is_empty(), "that was wrong");
        assert!(queue.let_in(POOL, free(199), |_| true).is_empty());
        assert_eq!(
            woken(queue.let_in(POOL, free(200), |_| true)),
            [0, 1],
            "others have left as much as it needs"
        );
        queue.wait(tickets[0], POOL, need(100), 200, WaitReason::Refusal, 0);
        assert_eq!(woken(queue.pay(POOL, bytes(100))), [0], "it is paid before others");
    }

    #[test]
    fn a_waiter_that_never_fits_is_paid_a_bounded_number_of_times_and_goes_on_waiting() {
        let (mut queue, tickets) = queue(&[100]);
        let mut evicted = 0;
        while !queue.wanted(POOL).is_none() {
            evicted += queue.wanted(POOL).bytes;
            assert_eq!(woken(queue.pay(POOL, queue.wanted(POOL))), [0]);
            queue.wait(tickets[0], POOL, need(100), 0, WaitReason::Refusal, 0);
        }
        assert_eq!(evicted, 400);
        assert!(queue.pay(POOL, bytes(1_000)).is_empty());
        assert_eq!(woken(queue.let_in(POOL, free(100), |_| true)), [0], "once it fits");
        queue.wait(tickets[0], POOL, need(60), 0, WaitReason::Progress, 0);
        assert_eq!(queue.wanted(POOL), bytes(60), "a call that gets on is evicted for");
    }

    #[test]
    fn what_is_cleared_for_one_is_taken_by_no_other() {
        let (mut queue, tickets) = queue(&[100, 10, 20]);
        let fits = |size| size <= 50;
        assert_eq!(queue.first_unfit(POOL, fits), Some((tickets[0], need(100), false)));
        queue.close_for(tickets[0], POOL);
        assert!(queue.let_in(POOL, free(1_000), fits).is_empty());
        assert_eq!(woken(queue.pay(POOL, bytes(115))), [0], "the second one is paid, too, and waits");
        queue.wait(tickets[0], POOL, need(100), 0, WaitReason::Refusal, 0);
        assert_eq!(woken(queue.let_in(POOL, free(0), fits)), [1], "the first one has tried");
        queue.close_for(tickets[0], POOL);
        assert_eq!(woken(queue.cleared(tickets[0], POOL)), [0]);
        assert!(queue.let_in(POOL, free(1_000), fits).is_empty(), "it has not tried yet");
        queue.leave(tickets[0], POOL);
        assert_eq!(woken(queue.let_in(POOL, free(30), fits)), [2]);
    }

    #[test]
    fn a_tenants_line_leaves_what_the_pool_owes() {
        let a = Scope::Quota(TenantName::new(b"a"));
        let (mut queue, tickets) = queue(&[100, 10]);
        queue.close_for(tickets[0], POOL);
        assert_eq!(woken(queue.pay(POOL, bytes(110))), [0], "the second one is paid, too, and waits");
        queue.wait(tickets[0], POOL, need(100), 0, WaitReason::Refusal, 0);
        assert!(queue.let_in(a, free(0), |_| true).is_empty());
        assert_eq!(woken(queue.let_in(POOL, free(0), |_| true)), [1]);
    }

    #[test]
    fn a_waiter_that_leaves_while_a_place_is_cleared_for_it_opens_the_line() {
        let (mut queue, tickets) = queue(&[100, 10]);
        queue.close_for(tickets[0], POOL);
        assert!(queue.waits(tickets[0], POOL));
        queue.leave(tickets[0], POOL);
        assert!(!queue.waits(tickets[0], POOL) && queue.cleared(tickets[0], POOL).is_empty());
        assert_eq!(woken(queue.let_in(POOL, free(10), |_| true)), [1]);
    }

    #[test]
    fn blocked_waiters_are_refused_but_for_those_that_something_was_freed_for() {
        let (mut queue, tickets) = queue(&[100, 100]);
        assert!(queue.pay(POOL, bytes(40)).is_empty());
        let told = queue.block(POOL, EvictionBlocked::Leased, false);
        assert_eq!(told, [(0, WakeReason::Try), (1, WakeReason::Blocked(EvictionBlocked::Leased))]);
        queue.leave(tickets[1], POOL);
        queue.wait(tickets[0], POOL, need(60), 0, WaitReason::Refusal, 0);
        assert!(
            queue.block(POOL, EvictionBlocked::Empty, true).is_empty(),
            "puts in flight are about to end"
        );
        assert_eq!(queue.end_wait(tickets[0], POOL), (Some(EvictionBlocked::Empty), false));
        assert_eq!(queue.wanted(POOL), NOTHING, "its time is over");
    }

    #[test]
    fn tenants_wait_in_lines_of_their_own_within_their_quotas() {
        let a = Scope::Quota(TenantName::new(b"a"));
        let (mut queue, _) = queue(&[100]);
        let (first, second) = (queue.ticket(), queue.ticket());
        let objects = |objects| RoomNeed { excess: Excess { bytes: 0, objects }, largest: 0 };
        queue.wait(first, a, objects(3), 0, WaitReason::Progress, 1);
        queue.wait(second, a, objects(1), 0, WaitReason::Coming, 2);
        assert_eq!(queue.needed(a), Excess { bytes: 0, objects: 4 });
        let left = |objects| Excess { bytes: u64::MAX, objects };
        assert!(queue.let_in(a, left(2), |_| true).is_empty(), "the second one does not overtake the first");
        assert_eq!(woken(queue.let_in(a, left(3), |_| true)), [1]);
        assert_eq!(queue.needed(a), Excess { bytes: 0, objects: 4 }, "the first one takes three of them");
        assert_eq!(woken(queue.let_in(a, left(4), |_| true)), [2]);
        assert_eq!(queue.needed(a), NOTHING);
        assert_eq!(woken(queue.end_term()), [0], "a leader that steps down keeps none waiting");
    }

    #[test]
    fn no_wakeup_is_lost_whatever_the_order_of_events() {
        // Waiters come, go and try in any order. In the end enough is free for all: each has left or was woken.
        for seed in 0..2_000u64 {
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut draw = |n: u64| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) % n
            };
            let mut queue = PutQueue::new();
            let mut waiting: BTreeMap<Ticket, u64> = BTreeMap::new();
            let mut trying: BTreeMap<Ticket, u64> = BTreeMap::new();
            for _ in 0..60 {
                let wakes = match draw(8) {
                    0 | 1 => {
                        let (ticket, size) = (queue.ticket(), 1 + draw(100));
                        queue.wait(ticket, POOL, need(size), draw(50), WaitReason::Coming, ticket);
                        waiting.insert(ticket, size);
                        Vec::new()
                    }
                    2 => queue.pay(POOL, bytes(draw(150))),
                    3 => queue.let_in(POOL, free(draw(200)), |size| size < 60),
                    4 => match trying.pop_first() {
                        Some((ticket, size)) => {
                            queue.wait(ticket, POOL, need(size), draw(50), WaitReason::Refusal, ticket);
                            waiting.insert(ticket, size);
                            Vec::new()
                        }
                        None => Vec::new(),
                    },
                    5 => trying.pop_last().map_or(Vec::new(), |(ticket, _)| queue.leave(ticket, POOL)),
                    6 => waiting.pop_last().map_or(Vec::new(), |(ticket, _)| queue.leave(ticket, POOL)),
                    _ => {
                        if let Some((ticket, ..)) = queue.first_unfit(POOL, |size| size < 60) {
                            queue.close_for(ticket, POOL);
                        }
                        Vec::new()
                    }
                };
                for (ticket, _) in wakes {
                    let size = waiting.remove(&ticket).expect("a waiter is woken once");
                    trying.insert(ticket, size);
                }
            }
            // A clearing ends with its waiter's turn, and those that try leave.
            if let Some(sole) = queue.lines.get(&POOL).and_then(|line| line.sole) {
                queue.open(sole, POOL);
            }
            for ticket in trying.into_keys() {
                for (woken, _) in queue.leave(ticket, POOL) {
                    waiting.remove(&woken);
                }
            }
            for (woken, _) in queue.let_in(POOL, free(u64::MAX), |_| true) {
                waiting.remove(&woken);
            }
            assert!(waiting.is_empty(), "seed {seed}: {waiting:?}");
        }
    }
}
