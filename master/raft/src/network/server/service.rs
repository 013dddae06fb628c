use std::collections::VecDeque;
use std::fmt;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures::future::{Either, select};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt, stream};
use mc_log::{LogId, Raft, TypeConfig};
use mc_net::{ConnectInfo, Guard, Listener, OpenTo, Principal};
use mc_proto::v1::{self, raft_server::RaftServer};
use mc_types::{ClusterId, NodeId};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, TransferLeaderError, VoteRequest};
use parking_lot::Mutex;
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Response, Status, Streaming};

use super::receive_snapshot;
use super::rpc_times::{RaftRpc, RpcTimes};
use super::served_node::ServedNode;
use super::status::{malformed, raft_stopped, stopped};
use crate::apply::state_machine::StateMachine;
use crate::network::wire::convert;
use crate::network::wire::envelope::{check_envelope, check_timing};

/// Largest message that is read: twice what a log reader puts into one append.
const MAX_MESSAGE_BYTES: usize = 4 << 20;

/// Calls before there is a cluster: the two calls of formation, and the notice that a Raft call arrived.
#[tonic::async_trait]
pub trait Formation: Send + Sync + 'static {
    /// Returns this node's id, what it holds, and the masters that it lists.
    async fn meet(&self, request: v1::MeetRequest) -> Result<v1::MeetReply, Status>;
    /// Takes part in a new cluster.
    async fn found(&self, request: v1::FoundRequest) -> Result<v1::FoundReply, Status>;
    /// Reports a Raft call for node `to` of `cluster`, while this node takes part in none yet.
    ///
    /// # Errors
    /// The answer to the call, unless this node takes part in that cluster by now.
    fn admit(&self, cluster: ClusterId, to: NodeId) -> Result<(), Status>;
}

/// The Raft port of a master. It serves before the node has a cluster, because formation uses the same port. Until
/// [`RaftService::join`] every Raft call is refused, and until the node runs it is answered with `UNAVAILABLE`.
#[derive(Clone)]
pub struct RaftService(Arc<Inner>);

struct Inner {
    node: NodeId,
    cluster: OnceLock<ClusterId>,
    served: OnceLock<ServedNode>,
    formation: Arc<dyn Formation>,
    times: RpcTimes,
}

impl fmt::Debug for RaftService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RaftService")
            .field("node", &self.0.node)
            .field("cluster", &self.0.cluster.get())
            .finish_non_exhaustive()
    }
}

/// Name of a call in the text of a denial.
const CALL: &str = "a procedure of the Raft port";

/// The master that sends messages over a stream, which may be shut out meanwhile.
#[derive(Clone)]
struct Admitted {
    principal: Principal,
    guard: Arc<Guard>,
}

impl RaftService {
    /// Returns a service for `node`, which belongs to no cluster yet.
    pub fn new(node: NodeId, formation: Arc<dyn Formation>, times: RpcTimes) -> Self {
        let (cluster, served) = (OnceLock::new(), OnceLock::new());
        Self(Arc::new(Inner { node, cluster, served, formation, times }))
    }

    /// Makes the node belong to `cluster` from now on. Only the first call has an effect.
    pub fn join(&self, cluster: ClusterId) {
        let _ = self.0.cluster.set(cluster);
    }

    /// Connects the running node. Only the first call has an effect.
    pub(crate) fn attach(&self, running: ServedNode) {
        let _ = self.0.served.set(running);
    }

    /// Serves masters that `guard` admits on `listener` until `stop` completes. Open streams end with it.
    pub async fn serve(
        self,
        listener: Listener,
        guard: Arc<Guard>,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<(), tonic::transport::Error> {
        let (server, age) = (RaftServer::new(self), guard.connection_age());
        let server = server.max_decoding_message_size(MAX_MESSAGE_BYTES);
        // A peer that only keeps a connection open, or is no master, takes no place that a master needs.
        let server = InterceptedService::new(server, move |mut request: Request<()>| {
            let info = request.extensions().get::<ConnectInfo>();
            let principal = guard.admit(info, None, OpenTo::MASTERS, CALL)?;
            if let Some(place) = info.and_then(|info| info.place.as_ref()) {
                place.vouch();
            }
            request.extensions_mut().insert(Admitted { principal, guard: guard.clone() });
            Ok(request)
        });
        let mut builder = tonic::transport::Server::builder();
        if let Some(age) = age {
            builder = builder.max_connection_age(age);
        }
        // Keep-alive ends the streams of a peer that vanished silently.
        builder
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(4 << 20)
            // After a process was stopped and continued, it finds many cancelled heartbeats. They must not end the
            // connection.
            .http2_max_pending_accept_reset_streams(Some(1024))
            .http2_keepalive_interval(Some(Duration::from_secs(1)))
            .http2_keepalive_timeout(Some(Duration::from_secs(2)))
            .add_service(server)
            .serve_with_incoming_shutdown(listener.incoming, stop)
            .await
    }

    fn admit(&self, envelope: Option<&v1::Envelope>) -> Result<&ServedNode, Status> {
        let ours = self.0.cluster.get().copied();
        if ours.is_none()
            && let Some(envelope) = envelope
            && let Some(cluster) = ClusterId::from_bytes(&envelope.cluster_id)
            && let Some(to) = NodeId::from_bytes(&envelope.to)
        {
            // A member whose founding was accepted learns from the first Raft call that the cluster has begun. The
            // call goes no further than this, whatever formation's answer is, because Raft does not run yet.
            self.0.formation.admit(cluster, to)?;
            return Err(self.starting());
        }
        check_envelope(self.0.node, ours, envelope)?;
        let served = self.served()?;
        if let Some(from) = envelope.and_then(|envelope| NodeId::from_bytes(&envelope.from)) {
            served.silent_peers.answered(from);
        }
        if let Some(envelope) = envelope
            && let Err(refused) = check_timing(served.election_max_ms, envelope)
        {
            // Logged once: the peer tries again many times a second.
            if !served.timing_differs.swap(true, Ordering::Relaxed) {
                tracing::error!("refused a master: {}", refused.message());
            }
            return Err(refused);
        }
        Ok(served)
    }

    fn served(&self) -> Result<&ServedNode, Status> {
        self.0.served.get().ok_or_else(|| self.starting())
    }

    fn starting(&self) -> Status {
        Status::unavailable(format!("node {} is starting", self.0.node))
    }

    /// Handles a vote or a pre-vote; also returns what its sender is told besides.
    fn asked_for_a_vote(
        &self,
        request: Request<v1::VoteRequest>,
    ) -> Result<(&ServedNode, VoteRequest<TypeConfig>, Option<LogId>), Status> {
        let request = request.into_inner();
        let served = self.admit_to_election(request.envelope.as_ref())?;
        let not_a_member_since = served.not_a_member_since(request.envelope.as_ref());
        let request = convert::vote_request_from_wire(&request).map_err(|err| malformed(&err))?;
        Ok((served, request, not_a_member_since))
    }

    /// Like [`Self::admit`], for calls that make or depose a leader.
    fn admit_to_election(&self, envelope: Option<&v1::Envelope>) -> Result<&ServedNode, Status> {
        let served = self.admit(envelope)?;
        let remaining = served.restart_wait.remaining();
        if remaining.is_zero() {
            return Ok(served);
        }
        Err(Status::unavailable(format!(
            "node {} restarted and keeps out of elections for another {remaining:?}",
            self.0.node
        )))
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Passes a heartbeat to Raft, and answers without waiting for the disk.
///
/// openraft answers an append when everything before it is durable, even an append without entries. With a slow disk, a
/// leader would therefore conclude that no follower answers, although all heartbeats arrive. The answer to a heartbeat
/// needs no disk. The sender asks whether this node has the entry that it confirmed before, and counts the time for
/// which this node votes for nobody else.
///
/// That time begins when Raft has taken the message in. This is certain once Raft has answered a question that was
/// put behind the message in the same queue. A refusal is answered before that question. If Raft's commands wait for
/// a snapshot, the refusal is recognised by the vote.
///
/// The vote itself is durable by then, because openraft saves it before it looks at the next message. A node that
/// forgets its promise in a restart keeps out of elections for as long as the promise holds
/// ([`RestartWait`](crate::lease::restart_wait::RestartWait)).
async fn heartbeat(
    raft: &Raft<StateMachine>,
    request: AppendEntriesRequest<TypeConfig>,
) -> Result<AppendEntriesResponse<TypeConfig>, Status> {
    let leader = request.vote;
    let durable = pin!(raft.append_entries(request));
    let taken = pin!(raft.with_raft_state(|state| *state.vote_ref()));
    // The future that is polled first is in the queue first.
    match select(durable, taken).await {
        Either::Left((reply, _)) => reply.map_err(raft_stopped),
        Either::Right((vote, durable)) => {
            let vote = vote.map_err(|err| stopped(&err))?;
            match durable.now_or_never() {
                Some(reply) => reply.map_err(raft_stopped),
                None if vote == leader => Ok(AppendEntriesResponse::Success),
                None => Ok(AppendEntriesResponse::HigherVote(vote)),
            }
        }
    }
}

#[tonic::async_trait]
impl v1::raft_server::Raft for RaftService {
    type AppendStreamStream = BoxStream<'static, Result<v1::AppendReply, Status>>;

    async fn meet(&self, request: Request<v1::MeetRequest>) -> Result<Response<v1::MeetReply>, Status> {
        let _timer = self.0.times.time(RaftRpc::Meet);
        self.0.formation.meet(request.into_inner()).await.map(Response::new)
    }

    async fn found(&self, request: Request<v1::FoundRequest>) -> Result<Response<v1::FoundReply>, Status> {
        self.0.formation.found(request.into_inner()).await.map(Response::new)
    }

    /// The stream opens at once, because there may be nothing to replicate yet, and every message is checked. A
    /// message that cannot be taken, or a broken connection, ends the stream with that error, after the answers that
    /// are still due. It is never skipped.
    async fn append_stream(
        &self,
        request: Request<Streaming<v1::AppendRequest>>,
    ) -> Result<Response<Self::AppendStreamStream>, Status> {
        let raft = self.served()?.raft.clone();
        let sender = request.extensions().get::<Admitted>().cloned();
        // The leader ends its streams before that.
        let age = sender.as_ref().and_then(|sender| sender.guard.connection_age());
        let until = age.and_then(|age| Instant::now().checked_add(age * 2));
        let failed = Arc::new(Mutex::new(None));
        // Arrival times of the messages that are not answered yet. Answers have the same order.
        let unanswered = Arc::new(Mutex::new(VecDeque::new()));
        let requests = stream::unfold(
            (self.clone(), request.into_inner(), sender, failed.clone(), unanswered.clone()),
            move |(service, mut inbound, sender, failed, unanswered)| async move {
                let is_over = until.is_some_and(|until| until <= Instant::now());
                let next = if is_over { Ok(None) } else { inbound.message().await };
                let came = Instant::now();
                let checked = next.and_then(|next| {
                    let Some(request) = next else { return Ok(None) };
                    if let Some(sender) = &sender {
                        sender.guard.still_admits(None, &sender.principal, CALL)?;
                    }
                    let leader_contact = &service.admit(request.envelope.as_ref())?.leader_contact;
                    let request = convert::append_from_wire(&request).map_err(|err| malformed(&err))?;
                    leader_contact.message_of(request.vote.leader_id.term);
                    Ok(Some(request))
                });
                match checked {
                    Ok(request) => {
                        let request = request?;
                        unanswered.lock().push_back(came);
                        Some((request, (service, inbound, sender, failed, unanswered)))
                    }
                    Err(status) => {
                        *failed.lock() = Some(status);
                        None
                    }
                }
            },
        );
        let times = self.0.times.clone();
        let answers = raft.stream_append(requests).map(move |answer| {
            let came = unanswered.lock().pop_front();
            if let Some(came) = came {
                times.served(RaftRpc::Append, came.elapsed());
            }
            match answer {
                Ok(result) => Ok(convert::append_reply_to_wire(&result)),
                Err(err) => Err(stopped(&err)),
            }
        });
        let end = stream::once(async move { failed.lock().take() }).filter_map(async |end| end.map(Err));
        Ok(Response::new(answers.chain(end).boxed()))
    }

    async fn append(&self, request: Request<v1::AppendRequest>) -> Result<Response<v1::AppendReply>, Status> {
        let _timer = self.0.times.time(RaftRpc::Append);
        let request = request.into_inner();
        let served = self.admit(request.envelope.as_ref())?;
        let deserted = request.deserted;
        let request = convert::append_from_wire(&request).map_err(|err| malformed(&err))?;
        let committed = request.leader_commit.map_or(0, |committed| committed.index);
        served.leader_contact.heartbeat_of(request.vote.leader_id.term, committed, deserted);
        let prev = request.prev_log_id;
        let sent = convert::AppendRange::of(&request);
        let reply = if request.entries.is_empty() {
            heartbeat(&served.raft, request).await?
        } else {
            served.raft.append_entries(request).await.map_err(raft_stopped)?
        };
        let result = match (reply, prev) {
            (AppendEntriesResponse::Conflict, None) => {
                return Err(Status::internal("an append from the start of the log conflicts"));
            }
            (reply, prev) => reply.into_stream_result(prev, sent.last),
        };
        let sync_us = served.pace.now().map(|pace| micros(pace.at_worst()));
        let disk_nearly_full = (served.nearly_full)();
        let has_descriptors = (served.has_descriptors)();
        let reply = convert::append_reply_to_wire(&result);
        let leaving = served.leaving.load(Ordering::Relaxed);
        Ok(Response::new(v1::AppendReply { sync_us, disk_nearly_full, has_descriptors, leaving, ..reply }))
    }

    async fn vote(&self, request: Request<v1::VoteRequest>) -> Result<Response<v1::VoteReply>, Status> {
        let _timer = self.0.times.time(RaftRpc::Vote);
        let (served, request, not_a_member_since) = self.asked_for_a_vote(request)?;
        let reply = if request.leadership_transfer {
            // The leader has yielded its lease before it sent this request.
            served.raft.vote(request).await.map_err(raft_stopped)?
        } else if let Some(refusal) = served.refusal(self.0.node) {
            refusal
        } else {
            let pending = served.revocation.pause_for_vote(request.vote.leader_id.term);
            let raft = served.raft.clone();
            // This goes on when the candidate hangs up: openraft decides all the same, and leased reads pause until
            // it has.
            let decided = tokio::spawn(async move {
                let reply = raft.vote(request).await;
                if reply.as_ref().is_ok_and(|reply| !reply.vote_granted) {
                    pending.refused();
                }
                reply
            });
            decided.await.map_err(|_| self.starting())?.map_err(raft_stopped)?
        };
        Ok(Response::new(convert::vote_reply_to_wire(&reply, not_a_member_since)))
    }

    async fn pre_vote(&self, request: Request<v1::VoteRequest>) -> Result<Response<v1::VoteReply>, Status> {
        let _timer = self.0.times.time(RaftRpc::PreVote);
        let (served, request, not_a_member_since) = self.asked_for_a_vote(request)?;
        let reply = match served.refusal(self.0.node) {
            Some(refusal) => refusal,
            None => served.raft.pre_vote(request).await.map_err(raft_stopped)?,
        };
        Ok(Response::new(convert::vote_reply_to_wire(&reply, not_a_member_since)))
    }

    async fn install_snapshot(
        &self,
        request: Request<Streaming<v1::SnapshotPiece>>,
    ) -> Result<Response<v1::SnapshotReply>, Status> {
        let mut inbound = request.into_inner();
        let header = receive_snapshot::next(&mut inbound)
            .await?
            .ok_or_else(|| Status::invalid_argument("a snapshot begins with its header"))?;
        let _timer = self.0.times.time(RaftRpc::Snapshot);
        let served = self.admit(header.envelope.as_ref())?;
        served.leader_contact.message_of(header.vote.as_ref().map_or(0, |vote| vote.term));
        let vote = receive_snapshot::receive(served, &header, inbound).await?;
        Ok(Response::new(v1::SnapshotReply { vote: Some(convert::vote_to_wire(&vote)) }))
    }

    async fn transfer_leader(
        &self,
        request: Request<v1::RaftTransferLeaderRequest>,
    ) -> Result<Response<v1::RaftTransferLeaderReply>, Status> {
        let _timer = self.0.times.time(RaftRpc::TransferLeader);
        let request = request.into_inner();
        let served = self.admit_to_election(request.envelope.as_ref())?;
        let request = convert::transfer_from_wire(&request).map_err(|err| malformed(&err))?;
        let reply = served.raft.handle_transfer_leader(request).await.map_err(|err| stopped(&err))?;
        let vote = match &reply {
            Err(TransferLeaderError::VoteChanged { actual, .. }) => Some(convert::vote_to_wire(actual)),
            Ok(()) | Err(TransferLeaderError::LogNotFlushed { .. }) => None,
        };
        Ok(Response::new(v1::RaftTransferLeaderReply { accepted: reply.is_ok(), vote }))
    }
}
