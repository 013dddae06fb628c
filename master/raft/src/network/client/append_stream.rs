//! Replication: appends are sent without waiting for the answers to earlier ones. Answers come in the same order.

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

use super::connections::Made;
use super::route::Route;
use crate::lease::acks::Acks;
use crate::lease::leader_contact::LeaderContact;
use crate::network::silent_peers::SilentPeers;
use crate::network::wire::convert::{AppendRange, append_reply_from_wire, append_to_wire};

/// Number of equal appends without entries after which a stream is ended.
///
/// openraft sends such an append every 10 ms when the log does not have the next entry that it wants to send. It
/// never checks whether that entry was purged. After the stream has ended, openraft begins again from what the
/// follower has, with a snapshot if necessary. Found by a simulated schedule (docs/simulation.md).
const IN_VAIN: u32 = 20;

/// Lowest rate, in bytes a second, at which an append must reach a follower. A larger append gets more time. If the
/// time were shorter than its bytes take, it would be sent again and again, and never arrive.
const SLOWEST: f64 = (64 << 10) as f64;

type AppendResult = Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>;

/// openraft's requests of one leadership.
///
/// openraft may read the log for a stream that it has already given up. It ends the stream's input where that waits
/// for something to send, but a stream that still waits for its connection reads the log first. By then this node may
/// have voted for another leader and cut off the end of its log. The range to read then begins behind the log's end,
/// and a debug assertion of openraft fails.
///
/// The end of a log is only cut because of a message of a newer leader, and each such message is noted before
/// openraft sees it. So openraft is asked for no more requests once one is noted. A message of an earlier leader that
/// was not heard before ends the stream, too. openraft then opens the next stream, after it has made sure that it
/// still leads.
pub(crate) struct AppendRequests<S> {
    input: S,
    leader_contact: LeaderContact,
    /// The newest term of another leader that had been heard of when the stream was opened.
    contact_before: u64,
    /// How the connection of the stream was made.
    made: Made,
}

/// The next step.
enum NextRequest {
    Send(AppendEntriesRequest<TypeConfig>),
    /// openraft sends no more requests.
    End,
    /// Another leader was heard, or the connection is outdated, so this stream must end.
    Over,
}

impl<S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Unpin> AppendRequests<S> {
    pub(crate) fn new(input: S, leader_contact: LeaderContact, made: Made) -> Self {
        let contact_before = leader_contact.term();
        Self { input, leader_contact, contact_before, made }
    }

    async fn next(&mut self) -> NextRequest {
        poll_fn(|cx| {
            // Before each request: none goes in the clear over a connection that was made at a lower level of TLS.
            if self.leader_contact.term() > self.contact_before || self.made.is_outdated() {
                return Poll::Ready(NextRequest::Over);
            }
            let request = self.input.poll_next_unpin(cx);
            request.map(|request| request.map_or(NextRequest::End, NextRequest::Send))
        })
        .await
    }
}

/// Messages that were sent and not yet answered.
#[derive(Debug, Default)]
struct Pipeline {
    unanswered: VecDeque<SentAppend>,
    last_answer: Option<Instant>,
    /// openraft has no more requests for this stream.
    input_ended: bool,
    /// Where appends without entries end although more is committed, and their number in a row.
    in_vain: (Option<LogId>, u32),
}

/// A request on its way.
#[derive(Clone, Copy, Debug)]
struct SentAppend {
    sent: AppendRange,
    /// The leader's term.
    term: u64,
    /// Encoded size.
    bytes: usize,
    /// Time right before it was sent.
    at: Instant,
}

impl Pipeline {
    /// Whether openraft keeps sending appends without entries to a follower that lacks some.
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

    /// Time for which the oldest request has waited since the last answer, less the time that its bytes may take.
    /// With `bytes` false, the latter is not subtracted.
    fn waiting(&self, bytes: bool) -> Duration {
        self.unanswered.front().map_or(Duration::ZERO, |oldest| {
            let waited = self.last_answer.map_or(oldest.at, |answered| answered.max(oldest.at)).elapsed();
            let under_way = if bytes { oldest.bytes as f64 / SLOWEST } else { 0.0 };
            waited.saturating_sub(Duration::from_secs_f64(under_way))
        })
    }
}

/// Opens the stream. Its answers end with an error when the connection breaks or stalls. They end without one when
/// openraft has ended `input` and everything is answered.
///
/// The stream stalls when nothing is answered for `stall`, one maximum election timeout. An answer waits for the
/// follower's disk: with a shorter time everything would be sent twice to a slow disk. If heartbeats are answered,
/// the link may be narrow. Then the time that the oldest request's bytes may take does not count.
pub(crate) async fn open(
    route: Route,
    mut client: RaftClient<Channel>,
    envelope: v1::Envelope,
    input: AppendRequests<impl Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + Unpin + 'static>,
    stall: Duration,
    acks: Arc<Acks>,
    silent_peers: Arc<SilentPeers>,
) -> Result<impl Stream<Item = AppendResult> + Send + 'static, RPCError<TypeConfig>> {
    let target = route.target;
    let pipeline = Arc::new(Mutex::new(Pipeline::default()));
    let sending = (input, pipeline.clone(), silent_peers.clone(), envelope);
    let requests = stream::unfold(sending, move |(mut input, pipeline, silent_peers, envelope)| async move {
        let request = match input.next().await {
            NextRequest::Send(request) => request,
            NextRequest::End => {
                pipeline.lock().input_ended = true;
                return None;
            }
            // The answers will end with an error, as below.
            NextRequest::Over => return None,
        };
        let sends_on = {
            let mut pipeline = pipeline.lock();
            // A peer that is left alone must not be kept from standing for election by entries either. If answers
            // arrive here, it was only slow to answer heartbeats.
            let silent = !pipeline.unanswered.is_empty() && silent_peers.check(target).is_err();
            !pipeline.is_in_vain(&request) && !silent
        };
        if !sends_on {
            // This is not the end of openraft's input: the answers end with an error.
            return None;
        }
        let (sent, term) = (AppendRange::of(&request), request.vote.leader_id.term);
        let wire = append_to_wire(&request, envelope.clone());
        let bytes = wire.encoded_len();
        pipeline.lock().unanswered.push_back(SentAppend { sent, term, bytes, at: Instant::now() });
        Some((wire, (input, pipeline, silent_peers, envelope)))
    });

    let inbound = match timeout(stall, client.append_stream(requests)).await {
        Err(_) => {
            silent_peers.no_answer(route.target);
            return Err(route.timeout(RPCTypes::AppendEntries, stall).into());
        }
        Ok(Err(status)) => return Err(route.failed(&status)),
        Ok(Ok(reply)) => reply.into_inner(),
    };
    let answers = AppendResponses { route, stall, pipeline, inbound, acks, silent_peers };
    Ok(stream::unfold(Some(answers), |answers| async move {
        let mut answers = answers?;
        let reply = answers.next().await?;
        let goes_on = matches!(reply, (Ok(Ok(_)), Complete::Yes));
        Some((reply.0, goes_on.then_some(answers)))
    }))
}

/// Whether an answer covers all of its request. openraft starts again from an answer that does not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Complete {
    Yes,
    No,
}

struct AppendResponses {
    route: Route,
    stall: Duration,
    pipeline: Arc<Mutex<Pipeline>>,
    inbound: Streaming<v1::AppendReply>,
    acks: Arc<Acks>,
    silent_peers: Arc<SilentPeers>,
}

impl AppendResponses {
    /// Whether the answer to the oldest request may still come.
    fn is_under_way(&self) -> bool {
        let hears = self.silent_peers.check(self.route.target).is_ok();
        self.pipeline.lock().waiting(hears) < self.stall
    }

    async fn next(&mut self) -> Option<(AppendResult, Complete)> {
        let failed = |err| Some((Err(err), Complete::No));
        let reply = loop {
            // Requests are added while this waits, so the age of the oldest one is checked at intervals.
            match timeout(self.stall / 4, self.inbound.message()).await {
                Ok(message) => break message,
                Err(_) if self.is_under_way() => {}
                Err(_) => {
                    self.silent_peers.no_answer(self.route.target);
                    return failed(self.route.timeout(RPCTypes::AppendEntries, self.stall).into());
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
                return failed(self.route.broken("ended the stream of appends"));
            }
            Err(status) => return failed(self.route.failed(&status)),
        };
        let answered = {
            let mut pipeline = self.pipeline.lock();
            pipeline.last_answer = Some(Instant::now());
            pipeline.unanswered.pop_front()
        };
        let Some(SentAppend { sent, term, at, .. }) = answered else {
            return failed(self.route.broken("answered an append that was not sent"));
        };
        match append_reply_from_wire(&reply, sent) {
            Err(err) => failed(self.route.nonsense(&err)),
            Ok(result) => {
                self.silent_peers.answered(self.route.target);
                if let Err(lost) = self.acks.answered(self.route.target, term, at, &result) {
                    return failed(self.route.lost(&lost));
                }
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
