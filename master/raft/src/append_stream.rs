//! Replication: appends sent without waiting for the answers to those before, which come in the same order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::future::poll_fn;
use futures::{Stream, StreamExt, stream};
use mc_log::{LogId, TypeConfig};
use mc_proto::v1::{self, raft_client::RaftClient};
use openraft::errors::RPCError;
use openraft::network::RPCTypes;
use openraft::raft::{AppendEntriesRequest, StreamAppendResult};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::time::{Instant, timeout};
use tonic::Streaming;
use tonic::transport::Channel;

use super::acks::Acks;
use super::convert::{Sent, append_reply_from_wire, append_to_wire};
use super::hush::Hush;
use super::leadership::Heard;
use super::peer::Whom;

/// openraft sends an append without entries where the log has not the one that it wants to send, every 10 ms, and never
/// looks whether that one was purged. After so many of the same the stream is ended: openraft then begins again from what
/// the follower has, with a snapshot if need be. Found by a simulated schedule (docs/simulation.md).
const IN_VAIN: u32 = 20;

/// Bytes a second that get to a follower at least: an append that is larger gets more time. With less of it than its bytes
/// take, it would be sent again and again, and never arrive.
const SLOWEST: f64 = (64 << 10) as f64;

type Reply = Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>;

/// openraft's requests of one leadership.
///
/// openraft may go on to read the log for a stream that it has given up: it ends the stream's input where that waits for
/// something to send, and a stream that still waited for its connection reads the log first. By then this node may have
/// been voted out and have cut the end of its log off, and the range to read begins behind its own end, which a debug
/// assertion of openraft doesn't stand. The end of a log is only ever cut because of a message of a newer leader, and each
/// of those is noted before openraft sees it. So openraft is asked for no more requests as soon as one is noted. One of a
/// leader that went before this one, and hasn't been heard until now, ends the stream, too: openraft, which makes sure that
/// it still leads before it opens a stream, opens the next.
pub(crate) struct Requests<S> {
    input: S,
    heard: Heard,
    /// The newest term of another leader that had been heard when the stream was opened.
    heard_before: u64,
}

/// The next step.
enum Next {
    Send(AppendEntriesRequest<TypeConfig>),
    /// openraft has no more requests.
    End,
    /// Another leader was heard.
    Over,
}

impl<S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Unpin> Requests<S> {
    pub(crate) fn new(input: S, heard: Heard) -> Self {
        let heard_before = heard.term();
        Self { input, heard, heard_before }
    }

    async fn next(&mut self) -> Next {
        poll_fn(|cx| {
            if self.heard.term() > self.heard_before {
                return Poll::Ready(Next::Over);
            }
            let request = self.input.poll_next_unpin(cx);
            request.map(|request| request.map_or(Next::End, Next::Send))
        })
        .await
    }
}

/// Messages that were sent and not yet answered.
#[derive(Debug, Default)]
struct Pipeline {
    unanswered: VecDeque<Unanswered>,
    last_answer: Option<Instant>,
    /// openraft has no more requests for this stream.
    input_ended: bool,
    /// Where appends without entries end though more is committed, and how many there were in a row.
    in_vain: (Option<LogId>, u32),
}

/// A request on its way.
#[derive(Clone, Copy, Debug)]
struct Unanswered {
    sent: Sent,
    /// The leader's term.
    term: u64,
    /// As it travels.
    bytes: usize,
    /// Right before it was sent.
    at: Instant,
}

impl Pipeline {
    /// Whether openraft keeps sending nothing to a follower that lacks something.
    fn is_in_vain(&mut self, request: &AppendEntriesRequest<TypeConfig>) -> bool {
        let prev = request.prev_log_id;
        let lacks = request.entries.is_empty() && request.leader_commit > prev;
        self.in_vain = match self.in_vain {
            _ if !lacks => (None, 0),
            (at, count) if at == prev => (prev, count + 1),
            _ => (prev, 1),
        };
        self.in_vain.1 >= IN_VAIN
    }

    /// How much longer than its bytes may take the oldest request has waited, without any answer coming in; `bytes` says
    /// whether they count.
    fn waiting(&self, bytes: bool) -> Duration {
        self.unanswered.front().map_or(Duration::ZERO, |oldest| {
            let waited = self.last_answer.map_or(oldest.at, |answered| answered.max(oldest.at)).elapsed();
            let under_way = if bytes { oldest.bytes as f64 / SLOWEST } else { 0.0 };
            waited.saturating_sub(Duration::from_secs_f64(under_way))
        })
    }
}

/// Opens the stream. Its answers end with an error when the connection breaks or stalls, and without one when openraft
/// has ended `input` and everything is answered.
///
/// It stalls when nothing is answered for `stall`, one maximum election timeout: an answer waits for the follower's disk,
/// and with less a slow disk would be sent everything twice. Where heartbeats are answered, the link may be narrow: then
/// the time that the oldest request's bytes may take does not count.
pub(crate) async fn open(
    whom: Whom,
    mut client: RaftClient<Channel>,
    envelope: v1::Envelope,
    input: Requests<impl Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + Unpin + 'static>,
    stall: Duration,
    acks: Arc<Acks>,
    hush: Arc<Hush>,
) -> Result<impl Stream<Item = Reply> + Send + 'static, RPCError<TypeConfig>> {
    let target = whom.target;
    let pipeline = Arc::new(Mutex::new(Pipeline::default()));
    let sending = (input, pipeline.clone(), hush.clone(), envelope);
    let requests = stream::unfold(sending, move |(mut input, pipeline, hush, envelope)| async move {
        let request = match input.next().await {
            Next::Send(request) => request,
            Next::End => {
                pipeline.lock().input_ended = true;
                return None;
            }
            // The answers will end with an error, as below.
            Next::Over => return None,
        };
        let sends_on = {
            let mut pipeline = pipeline.lock();
            // One that is left alone must not be kept from standing by entries either. Where the answers here come in, it
            // was only slow to answer heartbeats.
            let silent = !pipeline.unanswered.is_empty() && hush.check(target).is_err();
            !pipeline.is_in_vain(&request) && !silent
        };
        if !sends_on {
            // Not the end of openraft's input: the answers will end with an error.
            return None;
        }
        let (sent, term) = (Sent::of(&request), request.vote.leader_id.term);
        let wire = append_to_wire(&request, envelope.clone());
        let bytes = wire.encoded_len();
        pipeline.lock().unanswered.push_back(Unanswered { sent, term, bytes, at: Instant::now() });
        Some((wire, (input, pipeline, hush, envelope)))
    });

    let inbound = match timeout(stall, client.append_stream(requests)).await {
        Err(_) => {
            hush.no_answer(whom.target);
            return Err(whom.timeout(RPCTypes::AppendEntries, stall).into());
        }
        Ok(Err(status)) => return Err(whom.failed(&status)),
        Ok(Ok(reply)) => reply.into_inner(),
    };
    let answers = Answers { whom, stall, pipeline, inbound, acks, hush };
    Ok(stream::unfold(Some(answers), |answers| async move {
        let mut answers = answers?;
        let reply = answers.next().await?;
        let goes_on = matches!(reply, (Ok(Ok(_)), Complete::Yes));
        Some((reply.0, goes_on.then_some(answers)))
    }))
}

/// Whether an answer covers all of its request; openraft starts again where one does not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Complete {
    Yes,
    No,
}

struct Answers {
    whom: Whom,
    stall: Duration,
    pipeline: Arc<Mutex<Pipeline>>,
    inbound: Streaming<v1::AppendReply>,
    acks: Arc<Acks>,
    hush: Arc<Hush>,
}

impl Answers {
    /// The answer to the oldest request may still come.
    fn is_under_way(&self) -> bool {
        let hears = self.hush.check(self.whom.target).is_ok();
        self.pipeline.lock().waiting(hears) < self.stall
    }

    async fn next(&mut self) -> Option<(Reply, Complete)> {
        let failed = |err| Some((Err(err), Complete::No));
        let reply = loop {
            // Requests are added while this waits, so the clock of the oldest one is looked at every now and then.
            match timeout(self.stall / 4, self.inbound.message()).await {
                Ok(message) => break message,
                Err(_) if self.is_under_way() => {}
                Err(_) => {
                    self.hush.no_answer(self.whom.target);
                    return failed(self.whom.timeout(RPCTypes::AppendEntries, self.stall).into());
                }
            }
        };
        let reply = match reply {
            Ok(Some(reply)) => reply,
            Ok(None) => {
                let pipeline = self.pipeline.lock();
                if pipeline.input_ended && pipeline.unanswered.is_empty() {
                    return None;
                }
                return failed(self.whom.broken("ended the stream of appends"));
            }
            Err(status) => return failed(self.whom.failed(&status)),
        };
        let answered = {
            let mut pipeline = self.pipeline.lock();
            pipeline.last_answer = Some(Instant::now());
            pipeline.unanswered.pop_front()
        };
        let Some(Unanswered { sent, term, at, .. }) = answered else {
            return failed(self.whom.broken("answered an append that was not sent"));
        };
        match append_reply_from_wire(&reply, sent) {
            Err(err) => failed(self.whom.nonsense(&err)),
            Ok(result) => {
                self.acks.answered(self.whom.target, term, at, &result);
                self.hush.answered(self.whom.target);
                let complete = if matches!(&result, Ok(matching) if *matching != sent.last) {
                    Complete::No
                } else {
                    Complete::Yes
                };
                Some((Ok(result), complete))
            }
        }
    }
}
