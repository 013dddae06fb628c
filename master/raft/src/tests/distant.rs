//! Masters far from each other.

use std::time::Duration;

use mc_log::{LogId, Vote};
use mc_net::{ChannelOptions, Network as _, TcpNetwork};
use mc_proto::v1::raft_client::RaftClient;
use mc_testkit::{eventually, until};
use mc_types::NodeId;
use openraft::raft::VoteRequest;

use crate::network::wire::convert::vote_request_to_wire;
use crate::network::wire::envelope::LocalNode;
use crate::testing::{CLUSTER, Pool, slow};
use crate::timing::RaftTiming;

/// Forms a cluster, writes nothing for longer than openraft's lease holds without answers, then writes.
async fn writes_after_a_rest(timing: RaftTiming) {
    let rest = timing.election_max * 3;
    let (mut pool, _links) = Pool::far_apart(timing, timing.supported_round_trip()).await;
    let first = pool.write(1).await;
    pool.converge(first).await;
    tokio::time::sleep(rest).await;
    let second = pool.write(2).await;
    assert_eq!(second.leader_id, first.leader_id, "the leader changed while nothing happened");

    let leader = pool.leader().await;
    pool.stop(leader).await;
    let third = pool.write(3).await;
    assert!(third.leader_id > second.leader_id);
    pool.converge(third).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_leader_writes_at_the_longest_round_trip_of_a_lan() {
    writes_after_a_rest(RaftTiming::LAN).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_leader_writes_at_the_longest_round_trip_of_a_wan() {
    writes_after_a_rest(RaftTiming::WAN).await;
}

/// Returns whether master `at` would vote for a candidate with the whole log, and whether it does.
async fn votes(pool: &Pool, at: usize, last: LogId) -> (bool, bool) {
    let member = &pool.members[at];
    let (candidate, term) = (NodeId(9), last.leader_id.term + 100);
    let envelope = LocalNode { cluster: CLUSTER, node: candidate, election_max_ms: 300 }.envelope(member.id);
    let last = LogId::new_term_index(last.leader_id.term, last.index + 1_000);
    let request = vote_request_to_wire(&VoteRequest::new(Vote::new(term, candidate), Some(last)), envelope);
    let channel = TcpNetwork.channel(&member.address, ChannelOptions::default()).unwrap();
    let mut client = RaftClient::new(channel);
    let would = client.pre_vote(request.clone()).await.unwrap().into_inner().granted;
    (would, client.vote(request).await.unwrap().into_inner().granted)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_answers_come_too_late_says_so_and_writes_again_when_they_do_not() {
    let timing = RaftTiming::LAN;
    let (pool, links) = Pool::far_apart(timing, timing.supported_round_trip()).await;
    let last = pool.write(1).await;
    let leader = pool.leader().await;
    let node = pool.node(leader);
    assert_eq!(node.blocked(), None);

    links.with_clients(slow(Duration::from_millis(240)));
    let blocked = eventually("the leader to say so", async || node.blocked()).await;
    assert!(blocked.to_string().contains("up to 75 ms"), "{blocked}");
    until("the round trip is measured", async || {
        node.round_trip().is_some_and(|round_trip| round_trip >= Duration::from_millis(240))
    })
    .await;
    assert!(node.raft().client_write(crate::testing::command(2)).await.is_err(), "it can't write");

    links.with_clients(slow(Duration::from_millis(20)));
    until("it takes its word back", async || node.blocked().is_none()).await;
    let next = pool.write(3).await;
    assert_eq!(next.leader_id, last.leader_id, "its followers heard it all the time");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_refuses_candidates_unless_it_can_not_write() {
    let timing = RaftTiming::LAN;
    let (pool, links) = Pool::far_apart(timing, timing.supported_round_trip()).await;
    let last = pool.write(1).await;
    let leader = pool.leader().await;
    assert_eq!(votes(&pool, leader, last).await, (false, false));
    assert_eq!(pool.leader().await, leader, "a candidate that it refused costs it nothing");

    let node = pool.node(leader);
    links.with_clients(slow(Duration::from_millis(240)));
    eventually("the leader to say that it can't write", async || node.blocked()).await;
    assert_eq!(votes(&pool, leader, last).await, (true, true));
    until("it leads no more", async || node.view().role != "leader").await;
    assert_eq!(node.presumed_term(), None);
}
