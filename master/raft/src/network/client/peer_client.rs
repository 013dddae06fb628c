use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use mc_log::{TypeConfig, Vote};
use mc_proto::v1;
use mc_types::NodeId;
use openraft::RaftNetworkV2;
use openraft::alias::SnapshotOf;
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{Backoff, RPCOption, RPCTypes, stream_append_sequential};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendError, StreamAppendResult,
    TransferLeaderError, TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use tokio::time::Instant;

use super::connections::{Connections, PeerChannels};
use super::route::Route;
use super::{append_stream, send_snapshot};
use crate::lease::acks::PeerReport;
use crate::network::wire::convert::{self, AppendRange, VoteKind};
use crate::network::wire::envelope::LocalNode;
use crate::snapshots::SnapshotFile;

/// Time limit of a heartbeat's answer.
const LATE: Duration = Duration::from_secs(1);

/// Interval at which a peer that is left alone is checked again.
const LEFT_ALONE: Duration = Duration::from_millis(20);

/// Way that a client's appends take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppendPath {
    /// The stream of appends.
    Stream,
    /// A call for each append, beside heartbeats and votes.
    Calls,
}

/// openraft's client of one other master.
#[derive(Debug)]
pub(crate) struct PeerClient {
    local_node: LocalNode,
    target: NodeId,
    /// Address in the membership when openraft asked for this client.
    recorded: String,
    append_path: AppendPath,
    connections: Arc<Connections>,
}

impl PeerClient {
    pub(crate) fn new(
        local_node: LocalNode,
        target: NodeId,
        recorded: String,
        append_path: AppendPath,
        connections: Arc<Connections>,
    ) -> Self {
        Self { local_node, target, recorded, append_path, connections }
    }

    /// Decodes an answer to a vote or a pre-vote.
    fn voted(
        &self,
        route: &Route,
        reply: &v1::VoteReply,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.connections.silent_peers.answered(self.target);
        self.connections.removal.note(reply.not_a_member_since.as_ref().map(convert::log_id_from_wire));
        convert::vote_reply_from_wire(reply).map_err(|err| route.nonsense(&err))
    }

    fn connect(&self) -> Result<(Route, PeerChannels), Unreachable<TypeConfig>> {
        self.connections.to(self.local_node.node, self.target, &self.recorded)
    }

    fn envelope(&self) -> v1::Envelope {
        self.local_node.envelope(self.target)
    }
}

impl RaftNetworkV2<TypeConfig> for PeerClient {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        let (route, mut channels) = self.connect()?;
        self.connections.silent_peers.check(self.target)?;
        let sent = AppendRange::of(&request);
        let (term, began) = (request.vote.leader_id.term, Instant::now());
        let deserted = self.connections.acks.is_deserted(term);
        let wire = v1::AppendRequest { deserted, ..convert::append_to_wire(&request, self.envelope()) };
        let (connections, target, answering) = (self.connections.clone(), self.target, route.clone());
        // The call goes on when openraft has given it up: a late answer still proves that this leader was followed
        // when it was sent.
        let call = tokio::spawn(async move {
            let call = answering.call(RPCTypes::AppendEntries, LATE, channels.control.append(wire));
            let reply = call.await?;
            connections.acks.note_round_trip(target, began);
            let result =
                convert::append_reply_from_wire(&reply, sent).map_err(|err| answering.nonsense(&err))?;
            connections.silent_peers.answered(target);
            let sync = reply.sync_us.map(Duration::from_micros);
            let v1::AppendReply { disk_nearly_full: nearly_full, has_descriptors, leaving, .. } = reply;
            connections.acks.note_report(target, PeerReport { sync, nearly_full, has_descriptors, leaving });
            connections.acks.answered(target, term, began, &result).map_err(|lost| answering.lost(&lost))?;
            Ok::<_, RPCError<TypeConfig>>(result)
        });
        // A little less than openraft's own time limit, so that a peer that does not answer is noted here.
        let ttl = option.hard_ttl() * 15 / 16;
        let result = match tokio::time::timeout(ttl, call).await {
            Ok(Ok(result)) => result?,
            Ok(Err(_)) => return Err(route.broken("was not asked: this master is stopping")),
            Err(_) => {
                self.connections.silent_peers.no_answer(self.target);
                return Err(route.timeout(RPCTypes::AppendEntries, ttl).into());
            }
        };
        Ok(match result {
            Ok(matching) if matching == sent.last => AppendEntriesResponse::Success,
            Ok(matching) => AppendEntriesResponse::PartialSuccess(matching),
            Err(StreamAppendError::Conflict(_)) => AppendEntriesResponse::Conflict,
            Err(StreamAppendError::HigherVote(vote)) => AppendEntriesResponse::HigherVote(vote),
        })
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<
        's,
        Result<
            BoxStream<'s, Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>>,
            RPCError<TypeConfig>,
        >,
    >
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + Unpin + 'static,
    {
        match self.append_path {
            // A stream with a single request costs as much as a call and leaves no stream open.
            AppendPath::Calls => stream_append_sequential(self, input, option),
            AppendPath::Stream => Box::pin(async move {
                let (route, channels) = self.connect()?;
                if let Err(left_alone) = self.connections.silent_peers.check(self.target) {
                    // openraft immediately opens a failed stream again.
                    tokio::time::sleep(LEFT_ALONE).await;
                    return Err(left_alone.into());
                }
                let input = append_stream::AppendRequests::new(
                    input,
                    self.connections.leader_contact.clone(),
                    channels.made.clone(),
                );
                let stream = append_stream::open(
                    route,
                    channels.appends,
                    self.envelope(),
                    input,
                    Duration::from_millis(self.local_node.election_max_ms),
                    self.connections.acks.clone(),
                    self.connections.silent_peers.clone(),
                )
                .await?;
                Ok(stream.boxed())
            }),
        }
    }

    async fn vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        let (route, mut channels) = self.connect()?;
        let wire = convert::vote_request_to_wire(&request, self.envelope());
        let reply = route.call(RPCTypes::Vote, option.hard_ttl(), channels.control.vote(wire)).await?;
        self.voted(&route, &reply)
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        let (route, mut channels) = self.connect()?;
        let wire = convert::vote_request_to_wire(&request, self.envelope());
        let reply = route.call(RPCTypes::Vote, option.hard_ttl(), channels.control.pre_vote(wire)).await?;
        self.voted(&route, &reply)
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: SnapshotOf<TypeConfig, SnapshotFile>,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let (route, channels) = self.connect()?;
        let last = snapshot.meta.last_log_id;
        let sent = send_snapshot::send(
            &route,
            channels.snapshots,
            self.envelope(),
            &vote,
            snapshot,
            cancel,
            option.soft_ttl(),
        );
        let reply = sent.await?;
        if let Some(last) = last.filter(|_| reply.vote == vote) {
            self.connections.acks.holds(self.target, vote.leader_id.term, last);
        }
        Ok(reply)
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        let (route, mut channels) = self.connect()?;
        let wire = convert::transfer_to_wire(&request, self.envelope());
        let call = channels.control.transfer_leader(wire);
        let reply = route.call(RPCTypes::TransferLeader, option.hard_ttl(), call).await?;
        if reply.accepted {
            return Ok(Ok(()));
        }
        Ok(Err(match reply.vote {
            None => {
                TransferLeaderError::LogNotFlushed { expected: request.last_log_id().copied(), actual: None }
            }
            Some(actual) => TransferLeaderError::VoteChanged {
                expected: *request.from_leader(),
                actual: convert::vote_from_wire(Some(&actual), VoteKind::Any)
                    .map_err(|err| route.nonsense(&err))?,
            },
        }))
    }

    /// Short, so that a restarted peer is found within the time of an election.
    fn backoff(&self) -> Option<Backoff> {
        let growing = [20, 40, 80, 160].map(Duration::from_millis);
        Some(Backoff::new(growing.into_iter().chain(std::iter::repeat(Duration::from_millis(200)))))
    }
}
