//! Behaviour of a cluster without faults in messages: writes, failover, hand-over, snapshots.

use std::time::{Duration, Instant};

use mc_index::{Command, Endpoint, MountStore, Op, ReadPolicy, Settings, Stamp};
use mc_log::Proposal;
use mc_testkit::{eventually, until};
use mc_types::{GrantKey, NodeId, SegmentEpoch, StoreId};
use openraft::async_runtime::watch::WatchReceiver;

use crate::apply::snapshot_limits::SnapshotLimits;
use crate::members::change::{MembershipChange, MembershipChangeError};
use crate::members::departure::Departure;
use crate::node::RaftNode;
use crate::node::leadership::Leadership;
use crate::node::transfer::LeaderTransferError;
use crate::testing::{Pool, command};
use crate::timing::RaftTiming;

#[tokio::test(flavor = "multi_thread")]
async fn writes_reach_every_master_and_go_on_when_the_leader_dies() {
    let mut pool = Pool::formed(3, SnapshotLimits::default()).await;
    for value in 0..20 {
        pool.write(value).await;
    }
    let last = pool.write(20).await;
    pool.converge(last).await;

    let dead = pool.leader().await;
    pool.stop(dead).await;
    let began = Instant::now();
    let after = pool.write(21).await;
    println!("failover to the first write: {} ms", began.elapsed().as_millis());
    assert!(after.leader_id.term > last.leader_id.term);
    pool.converge(after).await;

    pool.start(dead).await.unwrap();
    let last = pool.write(22).await;
    pool.converge(last).await;
}

/// A founder that noted its cluster before would refuse to start after a loss of power: its log would seem lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_formed_once_the_first_entry_is_durable() {
    let pool = Pool::unformed(1, SnapshotLimits::default(), RaftTiming::LAN).await;
    let log = &pool.members[0].log;
    log.hold(true);
    let node = pool.node(0);
    let formed = node.initialize(pool.addresses());
    tokio::pin!(formed);
    // The vote is written after the answer that openraft gives too early.
    tokio::select! {
        early = &mut formed => panic!("formed before its entry is durable: {early:?}"),
        () = eventually("the vote is written", async || log.vote().map(drop)) => {}
    }
    assert!(futures::poll!(&mut formed).is_pending(), "formed before its entry is durable");
    log.hold(false);
    formed.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn all_masters_restart_and_lose_nothing() {
    let mut pool = Pool::formed(3, SnapshotLimits { entries: Some(30), ..tight() }).await;
    let mut last = pool.write(0).await;
    for value in 1..100 {
        last = pool.write(value).await;
    }
    for at in 0..3 {
        pool.stop(at).await;
    }
    for at in 0..3 {
        pool.start(at).await.unwrap();
    }
    pool.converge(last).await;
    let last = pool.write(100).await;
    pool.converge(last).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_of_a_megabyte_are_replicated() {
    let pool = Pool::formed(3, SnapshotLimits::default()).await;
    let leader = pool.node(pool.leader().await);
    let writes = (0..12).map(|_| {
        let stamp = Stamp { suspects: vec![StoreId(1); 1 << 20], ..Stamp::default() };
        leader.raft().client_write(Proposal(Command { stamp, op: Op::Tick }.encode()))
    });
    let written = futures::future::try_join_all(writes).await.unwrap();
    pool.converge(written.iter().map(|written| written.log_id).max().unwrap()).await;
}

/// A command that makes the index larger by some KiB.
fn mount(term: u64, number: u64) -> Proposal {
    let mount = MountStore {
        store: StoreId(number),
        epoch: SegmentEpoch(number),
        name: "store".into(),
        grant_key: GrantKey([0; 32]),
        endpoints: vec![Endpoint {
            transport: "tcp".into(),
            address: "127.0.0.1:1".into(),
            attributes: vec![("padding".into(), "x".repeat(7 << 10))],
        }],
        segments: vec![1 << 20],
        http: String::new(),
    };
    let stamp = Stamp { term, ..Stamp::default() };
    Proposal(Command { stamp, op: Op::MountStore(mount) }.encode())
}

fn tight() -> SnapshotLimits {
    SnapshotLimits { log_bytes: u64::MAX, entries: Some(50), keep_entries: 10, keep_bytes: u64::MAX }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_the_log_no_longer_reaches_gets_the_snapshot() {
    let mut pool = Pool::formed(3, tight()).await;
    let leader = pool.leader().await;
    let away = (leader + 1) % 3;
    pool.stop(away).await;
    let missed = pool.write(0).await;
    for value in 1..200 {
        pool.propose(mount(missed.leader_id.term, value)).await;
    }
    let leader = pool.leader().await;
    eventually("the log to be purged", async || {
        pool.members[leader].log.purged().filter(|purged| *purged > missed)
    })
    .await;

    pool.start(away).await.unwrap();
    let last = pool.write(200).await;
    pool.converge(last).await;
    let bytes = pool.index_bytes(away).len();
    assert!(bytes > 1 << 20, "{bytes} bytes fit one message: this is to be about pieces");
    let installed = pool.node(away).raft().metrics().borrow_watched().snapshot;
    assert!(installed > Some(missed), "it caught up from {installed:?}, which the log alone could not give");

    // The received snapshot is as good as one of its own.
    pool.stop(away).await;
    pool.start(away).await.unwrap();
    pool.converge(last).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_are_taken_by_bytes_of_log() {
    let limits = SnapshotLimits { log_bytes: 2_000, keep_entries: 0, ..SnapshotLimits::default() };
    a_purge_under(limits).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn so_many_bytes_stay_in_the_log_however_few_entries_they_are() {
    let limits = SnapshotLimits { log_bytes: 2_000, keep_bytes: 3_000, ..SnapshotLimits::default() };
    let pool = a_purge_under(limits).await;
    let kept = pool.members[0].log.bytes_since(None);
    assert!(kept > 1_000, "{kept} bytes are left");
}

/// A single master that was written to until something was purged.
async fn a_purge_under(limits: SnapshotLimits) -> Pool {
    let pool = Pool::formed(1, limits).await;
    eventually("a purge", async || {
        let node = pool.node(0);
        tokio::spawn(async move { node.raft().client_write(command(1)).await.map(drop) });
        pool.members[0].log.purged()
    })
    .await;
    pool
}

/// Hands leadership over. Right after an election, on a busy machine, the others may not have answered a heartbeat
/// yet.
async fn hand_over(leader: &RaftNode, to: Option<NodeId>) -> Leadership {
    let taken = async {
        loop {
            match leader.transfer_leader(to).await {
                Err(LeaderTransferError::Silent(_)) => tokio::time::sleep(Duration::from_millis(10)).await,
                taken => return taken.unwrap(),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), taken).await.expect("the others answer heartbeats")
}

#[tokio::test(flavor = "multi_thread")]
async fn leadership_is_handed_over_and_leases_end_at_once() {
    let pool = Pool::formed(3, SnapshotLimits::default()).await;
    for _ in 0..5 {
        let last = pool.write(1).await;
        pool.converge(last).await;
        let old = pool.node(pool.leader().await);
        let now = hand_over(&old, None).await;
        assert!(now.term > last.leader_id.term);
        assert_eq!(old.try_lease(), None);
        assert!(old.read_barrier().await.is_err());
    }
    let leader = pool.leader().await;
    let to = pool.members[(leader + 1) % 3].id;
    let now = hand_over(&pool.node(leader), Some(to)).await;
    assert_eq!(now.leader.map(|(id, _)| id), Some(to));
    let stranger = NodeId(99);
    let leader = pool.node(pool.leader().await);
    assert!(
        matches!(leader.transfer_leader(Some(stranger)).await, Err(LeaderTransferError::NoVoter(id)) if id == stranger)
    );
    let leads = leader.transfer_leader(Some(leader.node_id())).await.unwrap().leader.map(|(id, _)| id);
    assert_eq!(leads, Some(leader.node_id()), "to itself: it has done so");
    assert!(leader.try_lease().is_some(), "neither that nor a hand-over that was refused costs the lease");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_to_a_dead_master_turns_leases_off_and_an_election_follows() {
    let mut pool = Pool::formed(3, SnapshotLimits::default()).await;
    let last = pool.write(1).await;
    pool.converge(last).await;
    let leader = pool.leader().await;
    let dead = (leader + 1) % 3;
    pool.stop(dead).await;
    let old = pool.node(leader);
    let term = old.try_lease().unwrap();
    let transfer = old.transfer_leader(Some(pool.members[dead].id));
    let lease = async {
        tokio::task::yield_now().await;
        old.try_lease()
    };
    let (transfer, lease) = tokio::join!(transfer, lease);
    assert_ne!(lease, Some(term));
    drop(transfer);
    let after = pool.write(2).await;
    assert!(after.leader_id.term > term.0);
}

/// A removed member must not come back because of an earlier decision.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_was_decided_on_by_older_members_is_refused() {
    let pool = Pool::formed(1, SnapshotLimits::default()).await;
    let leader = pool.node(0);
    let (gone, late) = (NodeId(7), NodeId(8));
    let view = || leader.membership_view().unwrap();
    let there = || pool.addresses()[&pool.members[0].id].clone();
    leader.change_members(&view(), MembershipChange::Learner(gone, there())).await.unwrap();

    let seen = view();
    leader.change_members(&seen, MembershipChange::Forget(gone)).await.unwrap();
    for change in [MembershipChange::Learner(gone, there()), MembershipChange::Learner(late, there())] {
        let refused = leader.change_members(&seen, change).await;
        assert!(matches!(refused, Err(MembershipChangeError::Refused(_))), "{refused:?}");
    }
    assert_eq!(leader.members().into_keys().collect::<Vec<_>>(), [pool.members[0].id]);
    leader.change_members(&view(), MembershipChange::Learner(late, there())).await.unwrap();
}

/// If it were proposed, such a change would leave no leader: neither of the two can commit anything without the dead
/// one.
#[tokio::test(flavor = "multi_thread")]
async fn no_voters_are_proposed_of_which_a_majority_has_just_died() {
    let mut pool = Pool::formed(3, SnapshotLimits::default()).await;
    let at = pool.leader().await;
    let leader = pool.node(at);
    let view = leader.membership_view().unwrap();
    let dead = (at + 1) % 3;
    pool.stop(dead).await;
    let voters = [pool.members[at].id, pool.members[dead].id].into();
    let refused = leader.change_members(&view, MembershipChange::Voters(voters)).await;
    assert!(matches!(refused, Err(MembershipChangeError::Refused(_))), "{refused:?}");
    let last = pool.write(1).await;
    pool.converge(last).await;
    assert!(pool.running().all(|at| pool.node(at).members().len() == 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_voter_that_leaves_stays_a_member_and_learns_that_it_has_left() {
    let pool = Pool::formed(3, SnapshotLimits::default()).await;
    let leader = pool.leader().await;
    let leaver = (leader + 1) % 3;
    let (raft, id) = (pool.node(leader), pool.members[leaver].id);
    until("it knows that it votes", async || pool.node(leaver).departure() == Departure::Waits).await;
    pool.node(leaver).ask_to_leave();
    let asks = || raft.membership_view().filter(|view| view.members[&id].leaving);
    let view = eventually("the leader hears that it leaves", async || asks()).await;
    assert_eq!(view.members.values().filter(|member| member.leaving).count(), 1);

    raft.change_members(&view, MembershipChange::Leave(id)).await.unwrap();
    until("it knows", async || pool.node(leaver).departure() == Departure::Left).await;
    let view = raft.membership_view().unwrap();
    assert_eq!((view.voters.len(), view.members.len(), view.reserved()), (2, 3, 1));
    assert!(!view.voters.contains(&id) && view.members[&id].addresses.is_reserved());
    let written = pool.write(7).await;
    pool.converge(written).await;
}

/// A master that judged its readiness by openraft's commit index alone would be ready too early.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_index_counts_as_soon_as_a_leaders_message_names_it() {
    let pool = Pool::formed(3, SnapshotLimits::default()).await;
    let written = pool.write(0).await;
    let follower = pool.node((pool.leader().await + 1) % 3);
    let ahead = written.index + 5_000;
    follower.leader_contact.heartbeat_of(written.leader_id.term, ahead, false);
    assert_eq!(follower.view().committed, ahead);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_leader_answers_reads() {
    let pool = Pool::formed(3, SnapshotLimits::default()).await;
    let last = pool.write(1).await;
    pool.converge(last).await;
    let leader = pool.leader().await;
    let follower = pool.node((leader + 1) % 3);
    assert_eq!(pool.node(leader).try_lease().unwrap().0, last.leader_id.term);
    assert_eq!(follower.try_lease(), None);
    assert_eq!(pool.node(leader).read_barrier().await.unwrap().0, last.leader_id.term);
    let refused = follower.read_barrier().await.unwrap_err();
    assert_eq!(refused.leader.map(|(id, _)| id), Some(pool.members[leader].id));
}

fn read_policy(read_policy: ReadPolicy) -> Proposal {
    let settings = Settings { read_policy, ..Settings::default() };
    Proposal(Command { stamp: Stamp::default(), op: Op::SetSettings(settings) }.encode())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_read_policy_says_whether_the_lease_is_used() {
    let pool = Pool::formed(3, SnapshotLimits::default()).await;
    pool.write(1).await;
    let leader = pool.node(pool.leader().await);
    eventually("a lease that is used", async || leader.try_lease()).await;

    pool.propose(read_policy(ReadPolicy::ReadIndex)).await;
    assert_eq!(leader.try_lease(), None, "from the moment on at which the entry is acknowledged");
    eventually("a lease that is held, and not used", async || leader.presumed_term()).await;
    assert_eq!(leader.try_lease(), None);

    pool.propose(read_policy(ReadPolicy::Lease)).await;
    eventually("a lease that is used again", async || leader.try_lease()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn under_read_index_a_leader_that_is_cut_off_answers_nothing_while_its_lease_runs() {
    // A lease of fifteen seconds outlasts the test: by its clock this leader holds the lease all the time.
    let (election_min, election_max) = (Duration::from_secs(10), Duration::from_secs(20));
    let timing = RaftTiming { election_min, election_max, ..RaftTiming::LAN };
    let mut pool = Pool::formed_with(3, SnapshotLimits::default(), timing).await;
    let last = pool.propose(read_policy(ReadPolicy::ReadIndex)).await;
    pool.converge(last).await;
    let leader = pool.leader().await;
    assert!(pool.node(leader).read_barrier().await.is_ok());
    pool.stop((leader + 1) % 3).await;
    pool.stop((leader + 2) % 3).await;

    let leader = pool.node(leader);
    let answer = tokio::time::timeout(Duration::from_secs(1), leader.read_barrier()).await;
    assert!(!matches!(answer, Ok(Ok(_))), "it answered without a quorum: {answer:?}");
    assert!(leader.presumed_term().is_some(), "there was no lease that could have been used");
    assert_eq!(leader.try_lease(), None);
}
