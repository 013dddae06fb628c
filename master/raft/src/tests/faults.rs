//! Refusals of a cluster: strangers, wiped nodes, voters that have just restarted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mc_log::Vote;
use mc_net::{ChannelOptions, Guard, Network, TcpNetwork};
use mc_proto::{
    detail_of,
    v1::{self, raft_client::RaftClient},
};
use mc_testkit::until;
use mc_types::{Clock, ClusterId, Code, NodeId};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::VoteRequest;
use tonic::transport::Channel;

use crate::apply::snapshot_limits::SnapshotLimits;
use crate::network::server::service::RaftService;
use crate::network::wire::convert::{vote_request_to_wire, vote_to_wire};
use crate::network::wire::envelope::LocalNode;
use crate::testing::{CLUSTER, NO_CLUSTER, NoFormation, Pool, unread_metrics};

fn client(address: &str) -> RaftClient<Channel> {
    RaftClient::new(TcpNetwork.channel(address, ChannelOptions::default()).unwrap())
}

/// Starts the only master with a clock that stands still until the returned one is moved, and asks it for a vote.
async fn started_at(pool: &mut Pool, ms: u64) -> (Arc<AtomicU64>, RaftClient<Channel>, v1::VoteRequest) {
    let now = Arc::new(AtomicU64::new(ms));
    pool.clock = Clock::from_fn({
        let now = now.clone();
        move || Duration::from_millis(now.load(Ordering::Relaxed))
    });
    pool.start(0).await.unwrap();
    let peer = LocalNode { cluster: CLUSTER, node: NodeId(7), election_max_ms: 300 };
    let vote = vote_request(100, NodeId(7), peer.envelope(pool.members[0].id));
    (now, client(&pool.members[0].address), vote)
}

fn vote_request(term: u64, from: NodeId, envelope: v1::Envelope) -> v1::VoteRequest {
    vote_request_to_wire(&VoteRequest::new(Vote::new(term, from), None), envelope)
}

fn code(status: &tonic::Status) -> Option<Code> {
    detail_of(status).and_then(|detail| Code::try_from(detail.code).ok())
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_for_another_cluster_or_node_never_reach_raft() {
    let pool = Pool::formed(1, SnapshotLimits::default()).await;
    let us = pool.members[0].id;
    let mut client = client(&pool.members[0].address);
    let before = pool.node(0).raft().metrics().borrow_watched().vote;

    let stranger = LocalNode { cluster: ClusterId(0xbad), node: NodeId(7), election_max_ms: 300 };
    let peer = LocalNode { cluster: CLUSTER, node: NodeId(7), election_max_ms: 300 };
    for (envelope, refusal) in
        [(stranger.envelope(us), Code::WrongCluster), (peer.envelope(NodeId(8)), Code::WrongNode)]
    {
        let vote = vote_request(100, NodeId(7), envelope.clone());
        assert_eq!(code(&client.vote(vote.clone()).await.unwrap_err()), Some(refusal));
        assert_eq!(code(&client.pre_vote(vote).await.unwrap_err()), Some(refusal));

        let vote = Some(vote_to_wire(&Vote::new_committed(100, NodeId(7))));
        let envelope = Some(envelope);
        let append =
            v1::AppendRequest { envelope: envelope.clone(), vote: vote.clone(), ..Default::default() };
        assert_eq!(code(&client.append(append.clone()).await.unwrap_err()), Some(refusal));
        let mut answers = client.append_stream(futures::stream::iter([append])).await.unwrap().into_inner();
        assert_eq!(code(&answers.message().await.unwrap_err()), Some(refusal));

        let piece =
            v1::SnapshotPiece { envelope: envelope.clone(), vote: vote.clone(), ..Default::default() };
        let sent = client.install_snapshot(futures::stream::iter([piece])).await;
        assert_eq!(code(&sent.unwrap_err()), Some(refusal));
        let transfer = v1::RaftTransferLeaderRequest { envelope, from_leader: vote, ..Default::default() };
        assert_eq!(code(&client.transfer_leader(transfer).await.unwrap_err()), Some(refusal));
    }
    assert_eq!(pool.node(0).raft().metrics().borrow_watched().vote, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_a_cluster_refuses_and_one_that_is_starting_is_unavailable() {
    let us = NodeId(1);
    let service = RaftService::new(us, Arc::new(NoFormation), unread_metrics());
    let listener = TcpNetwork.listen("127.0.0.1:0").await.unwrap();
    let mut client = client(&listener.address.to_string());
    let server = tokio::spawn(service.clone().serve(listener, Guard::open(), std::future::pending()));

    let vote = vote_request(
        1,
        NodeId(2),
        LocalNode { cluster: CLUSTER, node: NodeId(2), election_max_ms: 300 }.envelope(us),
    );
    let refused = client.vote(vote.clone()).await.unwrap_err();
    assert_eq!(refused.message(), NO_CLUSTER, "formation answers for a node without a cluster");
    service.join(CLUSTER);
    assert_eq!(client.vote(vote).await.unwrap_err().code(), tonic::Code::Unavailable);
    let stranger = LocalNode { cluster: ClusterId(0xbad), node: NodeId(2), election_max_ms: 300 };
    let vote = vote_request(1, NodeId(2), stranger.envelope(us));
    assert_eq!(code(&client.vote(vote).await.unwrap_err()), Some(Code::WrongCluster));
    assert_eq!(client.meet(v1::MeetRequest::default()).await.unwrap_err().code(), tonic::Code::Unimplemented);
    server.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wiped_master_cannot_vote_in_the_place_of_the_one_it_was() {
    let mut pool = Pool::formed(3, SnapshotLimits::default()).await;
    let last = pool.write(1).await;
    pool.converge(last).await;
    let leader = pool.leader().await;
    let (survivor, wiped) = ((leader + 1) % 3, (leader + 2) % 3);
    pool.wipe(wiped, NodeId(99)).await;
    pool.start(wiped).await.unwrap();
    pool.stop(leader).await;

    // The survivor needs one more vote, and asks for it at the wiped master's address. Its election timeout passes
    // several times.
    let wiped_vote = || pool.node(wiped).raft().metrics().borrow_watched().vote;
    let until = tokio::time::Instant::now() + Duration::from_millis(1500);
    while tokio::time::Instant::now() < until {
        assert_eq!(wiped_vote().leader_id.term, 0, "a node without the log granted a vote");
        assert_eq!(pool.node(survivor).try_lease(), None);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    pool.start(leader).await.unwrap();
    assert!(pool.write(2).await > last);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_voter_keeps_out_of_elections_until_its_leases_are_over() {
    let mut pool = Pool::formed(1, SnapshotLimits::default()).await;
    pool.write(1).await;
    pool.stop(0).await;

    let (now, mut client, vote) = started_at(&mut pool, 1_000).await;

    // Its clock stands still, so it waits for ever: a single voter would otherwise lead within 600 ms.
    let until = tokio::time::Instant::now() + Duration::from_millis(1000);
    while tokio::time::Instant::now() < until {
        assert_eq!(client.vote(vote.clone()).await.unwrap_err().code(), tonic::Code::Unavailable);
        assert_eq!(client.pre_vote(vote.clone()).await.unwrap_err().code(), tonic::Code::Unavailable);
        assert!(!pool.node(0).raft().metrics().borrow_watched().state.is_leader(), "it stood");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    now.store(1_299, Ordering::Relaxed);
    assert!(client.vote(vote.clone()).await.is_err(), "one maximum election timeout is 300 ms");

    // The random part is at most the spread of the election timeout.
    now.store(1_450, Ordering::Relaxed);
    pool.leader().await;
    let denied = client.pre_vote(vote).await.unwrap().into_inner();
    assert!(!denied.granted, "a leader grants nobody");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_voter_waits_for_the_longer_of_the_recorded_and_the_configured_timeout() {
    let mut pool = Pool::formed(1, SnapshotLimits::default()).await;
    pool.write(1).await;
    pool.stop(0).await;
    let lan = Duration::from_millis(300);
    assert_eq!(pool.members[0].vote_timing.election_max(), lan, "it stands beside the vote");

    // It promised a longer time a moment ago, under another timing.
    let wan = Duration::from_secs(1);
    pool.members[0].vote_timing.set(wan);
    let (now, mut client, vote) = started_at(&mut pool, 0).await;
    now.store(999, Ordering::Relaxed);
    assert_eq!(client.vote(vote).await.unwrap_err().code(), tonic::Code::Unavailable);
    assert_eq!(
        pool.members[0].vote_timing.election_max(),
        wan,
        "a restart right now still has to wait for it"
    );

    now.store(1_150, Ordering::Relaxed);
    pool.leader().await;
    assert_eq!(pool.members[0].vote_timing.election_max(), lan);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_was_cut_off_does_not_depose_the_leader_when_it_is_back() {
    let mut pool = Pool::formed(3, SnapshotLimits::default()).await;
    let last = pool.write(1).await;
    pool.converge(last).await;
    let leader = pool.leader().await;
    let lonely = (leader + 1) % 3;
    pool.stop(leader).await;
    pool.stop((leader + 2) % 3).await;
    // Without the others it asks for pre-votes and gets none, so its term stays.
    let until = tokio::time::Instant::now() + Duration::from_millis(1500);
    while tokio::time::Instant::now() < until {
        let vote = pool.node(lonely).raft().metrics().borrow_watched().vote;
        assert_eq!(vote.leader_id.term, last.leader_id.term, "it raised its term without a chance to win");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_knows_no_leader_when_its_leader_has_lost_the_majority() {
    let mut pool = Pool::formed(5, SnapshotLimits::default()).await;
    let leader = pool.leader().await;
    let follower = (leader + 1) % 5;
    let names = |at: usize| pool.node(at).leadership().borrow().leader.clone();
    until("the follower knows the leader", async || names(follower).is_some()).await;
    for at in (0..5).filter(|at| ![leader, follower].contains(at)) {
        pool.stop(at).await;
    }
    let names = |at: usize| pool.node(at).leadership().borrow().leader.clone();
    until("neither of the two knows a leader", async || names(leader).is_none() && names(follower).is_none())
        .await;
    let raft = pool.node(follower);
    assert!(
        raft.raft().metrics().borrow_watched().current_leader.is_some(),
        "openraft still names the leader that the follower hears"
    );
}
