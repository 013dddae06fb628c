//! Calls of one kind that wait for each other, so that a burst of them becomes a few messages.
//!
//! A bounded number of messages of a kind is under way. A call that finds them all taken waits, and the next message that is sent
//! takes along all that wait then, up to a limit. A call never joins a message that was sent before. The message keeps the
//! boundaries of its calls: the order of keys within one call says that they are a prefix, and its grants are for it alone.
//!
//! Who owns what, and what a dropped call cancels:
//! - A message is sent by a task of the client's runtime. If a call did that in its own future, a caller that stops polling it
//!   would keep a place for ever, and dropping it would cancel the others in its message.
//! - A call waits for its answer alone. If it is dropped while it waits to be sent, it is left out. Afterwards its message goes on
//!   for the others, and its part of the answer is dropped, which revokes the puts that it started ([`RevokeOnDrop`]).
//! - The deadline of a message is the latest of its calls. Each call has its own deadline besides.
//!
//! No place is lost, and no call waits while a place is free: both are counted under one lock, in which a place that is given
//! back is handed on. A place is given back by a drop, so also if the task panics or its runtime ends.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use mc_types::{Code, MAX_ITEMS, PutId};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::joined::Joined;
use super::revokes::{RevokeOnDrop, Revokes};
use super::{CallError, LeaderClient, LeaderReply, MAX_REQUEST_BYTES, Repeat};
use crate::Error;
use crate::mode::ClientMode;

/// Maximum number of calls of a message. More would make the first of them wait longer than they save.
const MOST_CALLS: usize = 512;
/// Maximum number of items of a message of several calls. Each call gets grants of its own, so an answer has a grant for every replica if
/// each is on another store than the others of its call. A message has [`mc_proto::MAX_FIELDS`] fields at most, one for each item and
/// each grant: room for 14 replicas of each item.
const MOST_ITEMS: usize = MAX_ITEMS / 4;
/// Number of items from which a call is a message of its own, and waits for no other. The caller encodes it, and reads its answer.
const LARGE: usize = 64;
/// Time that a call waits beyond its deadline for a message that ends at the same time, and knows why there is no answer.
const LAST_WORD: Duration = Duration::from_millis(50);

/// States of a call.
const WAITING: u8 = 0;
const SENT: u8 = 1;
const OVER: u8 = 2;

/// The calls of one kind.
#[derive(Debug)]
pub(crate) struct Lane<R: Joined>(Arc<Shared<R>>);

#[derive(Debug)]
struct Shared<R: Joined> {
    leader: Arc<LeaderClient>,
    revokes: Arc<Revokes>,
    /// Maximum number of messages under way.
    most: usize,
    /// Maximum number of calls of a message.
    together: usize,
    /// Whether the master that answered last tells the calls of a message apart.
    apart: AtomicBool,
    state: Mutex<LaneState<R>>,
}

#[derive(Debug)]
struct LaneState<R: Joined> {
    under_way: usize,
    /// Whether the runtime has ended, and with it every message.
    is_over: bool,
    waiting: VecDeque<WaitingCall<R>>,
}

/// A call that was not sent.
#[derive(Debug)]
struct WaitingCall<R: Joined> {
    request: R,
    deadline: Instant,
    /// Maximum time from when it is sent.
    limit: Duration,
    state: Arc<AtomicU8>,
    to: oneshot::Sender<Delivered<R::Reply>>,
}

/// An answer, and the puts that were started with it.
pub(crate) type Delivered<T> = (Result<LeaderReply<T>, CallError>, RevokeOnDrop);

impl<R: Joined> Lane<R> {
    /// A lane of at most `most` messages.
    pub(crate) fn new(leader: &Arc<LeaderClient>, revokes: &Arc<Revokes>, most: usize) -> Self {
        Self::with(leader, revokes, most, MOST_CALLS)
    }

    /// A lane of at most `most` messages of one call each.
    pub(crate) fn of_single_calls(leader: &Arc<LeaderClient>, revokes: &Arc<Revokes>, most: usize) -> Self {
        Self::with(leader, revokes, most, 1)
    }

    fn with(leader: &Arc<LeaderClient>, revokes: &Arc<Revokes>, most: usize, together: usize) -> Self {
        Self(Arc::new(Shared {
            leader: Arc::clone(leader),
            revokes: Arc::clone(revokes),
            most,
            together,
            apart: AtomicBool::new(false),
            state: Mutex::new(LaneState { under_way: 0, is_over: false, waiting: VecDeque::new() }),
        }))
    }

    /// Makes a call that may be repeated freely, and waits for its answer until `deadline`, or until `limit` has passed since it
    /// was sent. Dropping the puts that come with the answer revokes them.
    pub(crate) async fn call(&self, request: R, deadline: Instant, limit: Duration) -> Delivered<R::Reply> {
        let shared = &self.0;
        let waits = matches!(shared.leader.mode.get(), ClientMode::Leader(_) | ClientMode::Searching);
        if !waits || (!R::STARTS && request.size().0 >= LARGE) {
            // Nothing is sent, or a message that needs no others.
            let deadline = deadline.min(Instant::now() + limit);
            // A leader may be found just then, and start puts whose answer is lost or dropped with this future.
            let mut unended = RevokeOnDrop::new(&shared.revokes, request.started());
            let answer = shared.leader.call(&request, deadline, Repeat::Freely).await;
            if !may_have_started(&answer) {
                unended.disarm();
            }
            return (answer, unended);
        }
        let (to, mut answer) = oneshot::channel();
        let state = Arc::new(AtomicU8::new(WAITING));
        let waiting = WaitingCall { request, deadline, limit, state: Arc::clone(&state), to };
        let due = {
            let mut state = shared.state.lock();
            // Dropped here, it resolves the answer. In this future it would live until the deadline.
            if state.is_over {
                drop(waiting);
            } else {
                state.waiting.push_back(waiting);
            }
            shared.due(&mut state)
        };
        shared.send(due);
        let call = InQueue(&state);
        match timeout_at(deadline + LAST_WORD, &mut answer).await {
            Ok(Ok(delivered)) => delivered,
            Ok(Err(_)) => (Err(ended::<R>()), RevokeOnDrop::none()),
            Err(_) if call.leave() => {
                let why = "other calls of this client were before it, and it was not sent by its deadline";
                let error = Error::definite(R::NAME, Code::RpcTimeout, "this client", why);
                (Err(CallError::Failed(error)), RevokeOnDrop::none())
            }
            // The answer may have come between the two.
            Err(_) => answer.try_recv().unwrap_or_else(|_| {
                let error = Error::definite(R::NAME, Code::RpcTimeout, "the leader", "no answer in time");
                (Err(CallError::Failed(error.unknown())), RevokeOnDrop::none())
            }),
        }
    }
}

/// The error of a call whose message was dropped: that happens only when the client's runtime ends.
fn ended<R: Joined>() -> CallError {
    let error = Error::definite(R::NAME, Code::UnavailableInCurrentStatus, "this client", "it was closed");
    CallError::Failed(error.unknown())
}

/// A call that waits to be sent, or for its answer. Its drop leaves the queue.
struct InQueue<'a>(&'a AtomicU8);

impl InQueue<'_> {
    /// Ends the call; returns whether it was not sent, and now is not any more.
    fn leave(&self) -> bool {
        self.0.compare_exchange(WAITING, OVER, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

impl Drop for InQueue<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl<R: Joined> WaitingCall<R> {
    /// Takes the call for a message; returns `false` if it is over.
    fn take(&self) -> bool {
        self.state.compare_exchange(WAITING, SENT, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

impl<R: Joined> Shared<R> {
    /// Takes the calls of the messages that are to be sent now, and a place for each.
    fn due(self: &Arc<Self>, state: &mut LaneState<R>) -> Vec<Message<R>> {
        let mut due = Vec::new();
        while state.under_way < self.most {
            let calls = self.next(&mut state.waiting);
            if calls.is_empty() {
                break;
            }
            state.under_way += 1;
            due.push(Message { calls, begun: false, lane: Arc::clone(self) });
        }
        due
    }

    /// Takes the calls of the next message, in the order in which they came; none if none waits.
    fn next(&self, waiting: &mut VecDeque<WaitingCall<R>>) -> Vec<WaitingCall<R>> {
        let together = if self.apart.load(Ordering::Relaxed) { self.together } else { 1 };
        let mut calls: Vec<WaitingCall<R>> = Vec::new();
        let (mut items, mut bytes) = (0, 0);
        while calls.len() < together
            && let Some(call) = waiting.front()
        {
            let (more_items, more_bytes) = call.request.size();
            let fits = items + more_items <= MOST_ITEMS && bytes + more_bytes <= MAX_REQUEST_BYTES;
            if calls.first().is_some_and(|first| !fits || !first.request.goes_with(&call.request)) {
                break;
            }
            let Some(call) = waiting.pop_front() else { break };
            if call.take() {
                (items, bytes) = (items + more_items, bytes + more_bytes);
                calls.push(call);
            }
        }
        calls
    }

    /// Sends messages. Without the lock: if the runtime has ended, each is dropped at once, which takes the lock.
    fn send(&self, due: Vec<Message<R>>) {
        for message in due {
            self.leader.runtime.spawn(message.send());
        }
    }
}

/// A message under way; its drop gives its place to the next one.
struct Message<R: Joined> {
    calls: Vec<WaitingCall<R>>,
    begun: bool,
    lane: Arc<Shared<R>>,
}

impl<R: Joined> Message<R> {
    async fn send(mut self) {
        self.begun = true;
        let now = Instant::now();
        let mut calls = mem::take(&mut self.calls);
        let deadline = calls.iter().map(|call| call.deadline.min(now + call.limit)).max().unwrap_or(now);
        let (to, requests): (Vec<_>, Vec<R>) = calls.drain(..).map(|call| (call.to, call.request)).unzip();
        let started: Vec<Vec<PutId>> = requests.iter().map(Joined::started).collect();
        let (message, sizes) = R::join(requests);
        let lane = Arc::clone(&self.lane);
        let answer = lane.leader.call(&message, deadline, Repeat::Freely).await;
        if let Ok(answer) = &answer {
            lane.apart.store(R::tells_apart(&answer.reply), Ordering::Relaxed);
        }
        // Dropped first, so that the next message need not wait until the calls of this one have their answers.
        drop(self);
        for ((to, answer), started) in to.into_iter().zip(split::<R>(answer, &sizes)).zip(started) {
            let puts = if may_have_started(&answer) { started } else { Vec::new() };
            // If the call is gone, this drops the puts.
            drop(to.send((answer, RevokeOnDrop::new(&lane.revokes, puts))));
        }
    }
}

impl<R: Joined> Drop for Message<R> {
    fn drop(&mut self) {
        let (due, over) = {
            let mut state = self.lane.state.lock();
            state.under_way -= 1;
            // A message that never begins is one of a runtime that has ended.
            state.is_over |= !self.begun;
            let over = if state.is_over { mem::take(&mut state.waiting) } else { VecDeque::new() };
            (self.lane.due(&mut state), over)
        };
        // Outside of the lock: the calls are woken.
        drop(over);
        self.lane.send(due);
    }
}

/// Returns whether the leader may have started the puts of a call with this answer.
fn may_have_started<T>(answer: &Result<LeaderReply<T>, CallError>) -> bool {
    answer.as_ref().err().is_none_or(CallError::is_unknown)
}

/// Splits the answer to a message into those to its calls.
fn split<R: Joined>(
    answer: Result<LeaderReply<R::Reply>, CallError>,
    sizes: &[usize],
) -> Vec<Result<LeaderReply<R::Reply>, CallError>> {
    match answer {
        answer if sizes.len() == 1 => vec![answer],
        Ok(LeaderReply { reply, sent_at, repeated }) => match R::split(reply, sizes) {
            Some(replies) => {
                replies.into_iter().map(|reply| Ok(LeaderReply { reply, sent_at, repeated })).collect()
            }
            None => {
                let why = "its answer does not match the request";
                let error = Error::definite(R::NAME, Code::RpcFail, "the leader", why).unknown();
                sizes.iter().map(|_| Err(CallError::Failed(error.clone()))).collect()
            }
        },
        Err(error) => sizes.iter().map(|_| Err(error.clone())).collect(),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::FutureExt;
    use mc_proto::v1::{BatchExistRequest, BatchPutStartRequest, PutStartItem};
    use tokio::runtime::Handle;

    use super::*;
    use crate::call::tests::unmet;

    const LONG: Duration = Duration::from_secs(60);

    fn lane<R: Joined>() -> Lane<R> {
        Lane::new(&unmet(Handle::current()), &Arc::default(), 1)
    }

    fn exist(items: usize) -> BatchExistRequest {
        BatchExistRequest { keys: vec![Bytes::from_static(b"k"); items], ..BatchExistRequest::default() }
    }

    #[tokio::test]
    async fn a_call_after_the_end_of_the_runtime_fails_at_once() {
        let lane = lane();
        lane.0.state.lock().is_over = true;
        let (answer, _) = lane.call(exist(1), Instant::now() + LONG, LONG).await;
        let error = answer.unwrap_err().into_error("exist");
        assert_eq!(error.code, Code::UnavailableInCurrentStatus);
    }

    /// Each message that is dropped would hand its place to the next one, and drop that: too deep for a stack.
    #[test]
    fn any_number_of_waiting_calls_end_with_the_runtime() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let lane = Lane::new(&unmet(runtime.handle().clone()), &Arc::default(), 1);
        drop(runtime);
        let calls = (0..100_000).map(|_| {
            let (to, answer) = oneshot::channel();
            let deadline = Instant::now() + LONG;
            lane.0.state.lock().waiting.push_back(WaitingCall {
                request: exist(1),
                deadline,
                limit: LONG,
                state: Arc::default(),
                to,
            });
            answer
        });
        let mut calls: Vec<_> = calls.collect();
        let due = lane.0.due(&mut lane.0.state.lock());
        lane.0.send(due);
        assert!(calls.iter_mut().all(|call| call.try_recv().is_err()));
        let state = lane.0.state.lock();
        assert_eq!((state.under_way, state.waiting.len()), (0, 0));
    }

    #[tokio::test]
    async fn a_start_in_its_callers_future_is_revoked_if_that_is_dropped_and_not_if_nothing_was_sent() {
        let lane = lane();
        lane.0.leader.mode.close();
        let item = PutStartItem { put_id: vec![7; 16].into(), ..PutStartItem::default() };
        let start = BatchPutStartRequest { items: vec![item], ..BatchPutStartRequest::default() };
        let call = || Box::pin(lane.call(start.clone(), Instant::now() + LONG, LONG));
        let (answer, unended) = call().await;
        assert!(!answer.unwrap_err().is_unknown());
        drop(unended);
        assert_eq!(lane.0.revokes.take().len(), 0);
        assert!(call().now_or_never().is_none(), "it yields before it fails");
        assert_eq!(lane.0.revokes.take().len(), 1);
    }

    #[tokio::test]
    async fn a_message_of_several_calls_has_a_bounded_number_of_items_and_one_call_alone_any() {
        let lane = lane();
        lane.0.apart.store(true, Ordering::Relaxed);
        let waiting = |items| WaitingCall {
            request: exist(items),
            deadline: Instant::now() + LONG,
            limit: LONG,
            state: Arc::default(),
            to: oneshot::channel().0,
        };
        let mut queue: VecDeque<_> = [MAX_ITEMS, MOST_ITEMS - 1, 1, 1].into_iter().map(waiting).collect();
        let mut next = || lane.0.next(&mut queue).len();
        assert_eq!([next(), next(), next(), next()], [1, 2, 1, 0]);
    }
}
