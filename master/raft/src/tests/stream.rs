//! The pipelined stream of appends to a scripted follower.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use mc_log::{Entry, LogId, MasterNode, Membership, TypeConfig, Vote};
use mc_net::{Network, TcpNetwork};
use mc_proto::v1::{self, raft_server::RaftServer};
use mc_types::NodeId;
use openraft::RaftNetworkV2;
use openraft::errors::RPCError;
use openraft::network::{RPCOption, RaftNetworkFactory};
use openraft::raft::{AppendEntriesRequest, StreamAppendError, StreamAppendResult};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::{Request, Response, Status, Streaming};

use crate::lease::acks::Acks;
use crate::lease::leader_contact::LeaderContact;
use crate::members::address_book::AddressBook;
use crate::network::client::peer_client::PeerClient;
use crate::network::client::peer_clients::PeerClients;
use crate::network::wire::convert::{append_from_wire, append_reply_to_wire};
use crate::network::wire::envelope::LocalNode;
use crate::testing::{CLUSTER, command};

/// The follower's reaction to an append, by its index.
type Script = Arc<dyn Fn(u64) -> Act + Send + Sync>;

enum Act {
    Accept,
    AcceptLate(watch::Receiver<bool>),
    Conflict,
    Silence,
    Break,
    End,
}

struct Scripted(Script);

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl v1::raft_server::Raft for Scripted {
    type AppendStreamStream = BoxStream<'static, Result<v1::AppendReply, Status>>;

    async fn append_stream(
        &self,
        request: Request<Streaming<v1::AppendRequest>>,
    ) -> Reply<Self::AppendStreamStream> {
        let answers =
            stream::unfold((request.into_inner(), self.0.clone()), |(mut inbound, script)| async move {
                let request = append_from_wire(&inbound.message().await.ok()??).unwrap();
                let last = request.entries.last().map(|entry| entry.log_id).or(request.prev_log_id).unwrap();
                let answer = match script(last.index) {
                    Act::Accept => Ok(append_reply_to_wire(&Ok(Some(last)))),
                    Act::AcceptLate(mut go) => {
                        go.wait_for(|go| *go).await.unwrap();
                        Ok(append_reply_to_wire(&Ok(Some(last))))
                    }
                    Act::Conflict => Ok(append_reply_to_wire(&Err(StreamAppendError::Conflict(last)))),
                    Act::Silence => std::future::pending().await,
                    Act::Break => Err(Status::unavailable("broken")),
                    Act::End => return None,
                };
                Some((answer, (inbound, script)))
            });
        Ok(Response::new(answers.boxed()))
    }

    async fn install_snapshot(&self, _: Request<Streaming<v1::SnapshotPiece>>) -> Reply<v1::SnapshotReply> {
        Err(Status::unimplemented("appends alone"))
    }

    mc_testkit::not_served! { "appends alone":
        meet(MeetRequest) -> MeetReply;
        found(FoundRequest) -> FoundReply;
        append(AppendRequest) -> AppendReply;
        vote(VoteRequest) -> VoteReply;
        pre_vote(VoteRequest) -> VoteReply;
        transfer_leader(RaftTransferLeaderRequest) -> RaftTransferLeaderReply;
    }
}

struct Follower {
    peer: PeerClient,
    acks: Arc<Acks>,
    leader_contact: LeaderContact,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn follower(script: impl Fn(u64) -> Act + Send + Sync + 'static) -> Follower {
    let listener = TcpNetwork.listen("127.0.0.1:0").await.unwrap();
    let node = MasterNode { raft: listener.address.to_string(), ..MasterNode::default() };
    let server = RaftServer::new(Scripted(Arc::new(script)));
    let server =
        tonic::transport::Server::builder().add_service(server).serve_with_incoming(listener.incoming);
    let local_node = LocalNode { cluster: CLUSTER, node: NodeId(1), election_max_ms: 300 };
    let acks = Arc::new(Acks::default());
    let (removal, leader_contact) = (Arc::default(), LeaderContact::default());
    let mut peers = PeerClients::new(
        local_node,
        TcpNetwork::shared(),
        AddressBook::default(),
        acks.clone(),
        removal,
        leader_contact.clone(),
    );
    Follower {
        peer: peers.new_client(NodeId(2), &node).await,
        acks,
        leader_contact,
        server: tokio::spawn(server),
    }
}

fn append(index: u64) -> AppendEntriesRequest<TypeConfig> {
    let id = |index| LogId::new_term_index(1, index);
    let payload = openraft::EntryPayload::Normal(command(index));
    AppendEntriesRequest {
        vote: Vote::new_committed(1, NodeId(1)),
        prev_log_id: index.checked_sub(1).map(id),
        entries: vec![Entry { log_id: id(index), payload }],
        leader_commit: None,
    }
}

/// As openraft's input: more may always come.
fn endless(last: u64) -> impl Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + Unpin + 'static {
    Box::pin(stream::iter(0..=last).map(append).chain(stream::pending()))
}

/// Returns the answers up to and including the first that ends the stream.
async fn answers(
    follower: &mut Follower,
    input: impl Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + Unpin + 'static,
) -> Vec<Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>> {
    let option = RPCOption::new(Duration::from_millis(50));
    match follower.peer.stream_append(input, option).await {
        Err(err) => vec![Err(err)],
        Ok(stream) => pin!(stream).collect().await,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_come_in_the_order_of_the_requests_and_the_stream_ends_with_them() {
    let mut follower = follower(|_| Act::Accept).await;
    let got = answers(&mut follower, Box::pin(stream::iter(0..500).map(append))).await;
    assert_eq!(got.len(), 500);
    for (index, answer) in (0..).zip(got) {
        assert_eq!(answer.unwrap(), Ok(Some(LogId::new_term_index(1, index))));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_ends_the_stream_and_names_what_was_sent() {
    let mut follower = follower(|index| if index == 3 { Act::Conflict } else { Act::Accept }).await;
    let got = answers(&mut follower, endless(10)).await;
    assert_eq!(got.len(), 4);
    let before = LogId::new_term_index(1, 2);
    assert_eq!(*got[3].as_ref().unwrap(), Err(StreamAppendError::Conflict(before)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_falls_silent_is_given_up() {
    let mut follower = follower(|index| if index == 2 { Act::Silence } else { Act::Accept }).await;
    let began = Instant::now();
    let got =
        tokio::time::timeout(Duration::from_secs(10), answers(&mut follower, endless(10))).await.unwrap();
    assert_eq!(got.len(), 3);
    assert!(matches!(got[2], Err(RPCError::Timeout(_))), "{:?}", got[2]);
    assert!(began.elapsed() >= Duration::from_millis(300), "a slow disk is given its time");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_stream_is_not_a_silent_one() {
    let mut follower = follower(|_| Act::Accept).await;
    let one_then_late = stream::iter([0]).chain(stream::once(async {
        tokio::time::sleep(Duration::from_millis(800)).await;
        1
    }));
    let got = answers(&mut follower, Box::pin(one_then_late.map(append))).await;
    assert!(got.len() == 2 && got.iter().all(Result::is_ok), "{got:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_breaks_or_ends_early_is_an_error() {
    for broken in [true, false] {
        let act = move |index| match index {
            2 if broken => Act::Break,
            2 => Act::End,
            _ => Act::Accept,
        };
        let mut follower = follower(act).await;
        let got = answers(&mut follower, endless(10)).await;
        assert_eq!(got.len(), 3);
        assert!(got[2].is_err(), "broken: {broken}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_sends_nothing_to_a_follower_that_lacks_something_is_ended() {
    let id = |index| Some(LogId::new_term_index(1, index));
    let nothing = move |committed: u64| {
        let empty = AppendEntriesRequest { entries: Vec::new(), leader_commit: id(committed), ..append(5) };
        Box::pin(stream::iter(std::iter::repeat_with(move || empty.clone()).take(60)))
    };
    let mut follower = follower(|_| Act::Accept).await;
    let got = answers(&mut follower, nothing(4)).await;
    assert!(got.len() == 60 && got.iter().all(Result::is_ok), "it has all that is committed: {got:?}");
    let got = answers(&mut follower, nothing(9)).await;
    assert!(got.len() < 60 && got.last().unwrap().is_err(), "{got:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_is_not_there_is_unreachable() {
    let mut follower = follower(|_| Act::Accept).await;
    follower.server.abort();
    drop((&mut follower.server).await);
    let got = answers(&mut follower, endless(1)).await;
    assert!(matches!(got[..], [Err(RPCError::Unreachable(_))]), "{got:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_answer_says_nothing_of_what_was_sent_after_its_request() {
    let (let_go, go) = watch::channel(false);
    let asked = AtomicUsize::new(0);
    let mut follower = follower(move |_| match asked.fetch_add(1, Ordering::Relaxed) {
        0 => Act::AcceptLate(go.clone()),
        _ => Act::Silence,
    })
    .await;
    let acks = follower.acks.clone();
    let (sent_empty, empty_sent) = tokio::sync::oneshot::channel();
    let first = stream::iter([append(0)]);
    let empty = stream::once(async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        sent_empty.send(tokio::time::Instant::now()).unwrap();
        AppendEntriesRequest {
            prev_log_id: Some(LogId::new_term_index(1, 0)),
            entries: Vec::new(),
            ..append(1)
        }
    });
    let option = RPCOption::new(Duration::from_secs(5));
    let stream = follower.peer.stream_append(Box::pin(first.chain(empty).chain(stream::pending())), option);
    let mut answers = pin!(stream.await.unwrap());
    let woke = empty_sent.await.unwrap();
    let_go.send(true).unwrap();
    assert_eq!(answers.next().await.unwrap().unwrap(), Ok(Some(LogId::new_term_index(1, 0))));
    let voters = Membership::new_with_defaults(vec![[NodeId(1), NodeId(2)].into()], []);
    let followed = acks.quorum(NodeId(1), 1, &voters, tokio::time::Instant::now()).unwrap();
    assert!(followed < woke, "the lease counts from the request that was answered");
}

/// openraft may still read the log for a stream of a leadership that is over. Its range ends before it begins once
/// the new leader has had the end of the log cut off.
#[tokio::test(flavor = "multi_thread")]
async fn the_requests_of_a_leadership_are_over_once_a_newer_leader_was_heard() {
    let mut follower = follower(|_| Act::Accept).await;
    let leader_contact = follower.leader_contact.clone();
    leader_contact.message_of(1);
    let (openraft, mut requests) = tokio::sync::mpsc::unbounded_channel();
    let input = stream::poll_fn(move |cx| requests.poll_recv(cx));
    openraft.send(append(0)).unwrap();
    let option = RPCOption::new(Duration::from_secs(5));
    let stream = follower.peer.stream_append(input, option).await.unwrap();
    let mut answers = Box::pin(stream);
    assert!(answers.next().await.unwrap().is_ok(), "a leader that went before is no newer one");

    leader_contact.message_of(2);
    openraft.send(append(1)).unwrap();
    let end = answers.next().await.unwrap();
    assert!(end.is_err(), "append 1 was asked for and answered: {end:?}");

    drop(answers);
    // If it had been one of an earlier term, which does not end the leadership, openraft would go on.
    let got = self::answers(&mut follower, Box::pin(stream::iter([append(1)]))).await;
    assert!(matches!(got[..], [Ok(Ok(_))]), "{got:?}");
}
