//! Raft goes on while a snapshot is received, read back and decoded. A gate delays that for as long as a test needs.

use std::collections::BTreeSet;
use std::fs;

use mc_index::{Settings, State};
use mc_log::{Entry, LogId, Membership, SnapshotMeta, StoredMembership, TypeConfig, Vote, encode_membership};
use mc_net::{ChannelOptions, Network, TcpNetwork};
use mc_proto::v1::{self, raft_client::RaftClient};
use mc_testkit::until;
use mc_types::NodeId;
use openraft::EntryPayload;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::AppendEntriesRequest;
use openraft::storage::{IOFlushed, RaftLogStorage};
use tokio::task::JoinHandle;
use tonic::Status;

use crate::apply::snapshot_limits::SnapshotLimits;
use crate::network::wire::convert::{append_to_wire, log_id_to_wire, vote_from_wire, vote_to_wire};
use crate::network::wire::envelope::LocalNode;
use crate::snapshots::SnapshotStore;
use crate::testing::gate::{Before, Gate};
use crate::testing::{CLUSTER, Pool};
use crate::timing::RaftTiming;

/// The three masters by their roles: A leads, B has all of its log, C was away and is sent a snapshot.
#[tokio::test(flavor = "multi_thread")]
async fn a_voter_that_decodes_a_snapshot_votes() {
    let limits =
        SnapshotLimits { log_bytes: u64::MAX, entries: Some(50), keep_entries: 10, keep_bytes: u64::MAX };
    let mut pool = Pool::formed(3, limits).await;
    let c = (pool.leader().await + 1) % 3;
    pool.stop(c).await;
    let missed = pool.write(0).await;
    for value in 1..150 {
        pool.write(value).await;
    }
    let a = pool.leader().await;
    let b = 3 - a - c;
    until("the log to be purged", async || {
        [a, b].iter().all(|at| pool.members[*at].log.purged() > Some(missed))
    })
    .await;

    let gate = Gate::closed(Before::ReadBack);
    pool.members[c].disk = gate.disk();
    pool.start(c).await.unwrap();
    gate.came(1).await;
    let last = pool.write(150).await;
    until("B to have all", async || pool.node(b).index().read(|applied| applied.last_applied >= Some(last)))
        .await;
    pool.stop(a).await;
    let took = until("B to win the election with C's vote", async || {
        let metrics = pool.node(b).raft().metrics().borrow_watched().clone();
        metrics.vote.committed && metrics.vote.leader_id.voted_for == pool.members[b].id
    })
    .await;
    println!("a leader after {} ms, while the third was decoding a snapshot", took.as_millis());
    // Its metrics may be behind the vote that it gave.
    until("C to name its vote", async || {
        let voted_for = pool.node(c).raft().metrics().borrow_watched().vote.leader_id.voted_for;
        voted_for == pool.members[b].id
    })
    .await;

    gate.open();
    let last = pool.write(151).await;
    pool.converge(last).await;
}

const SENDER: NodeId = NodeId(7);

fn id(index: u64) -> LogId {
    LogId::new_term_index(1, index)
}

fn members() -> Membership {
    Membership::new_with_defaults(vec![BTreeSet::from([SENDER])], [])
}

/// Returns a master that has taken part in nothing so far, with a gate in front of its reading back.
async fn newcomer() -> (Pool, Gate) {
    let mut pool = Pool::unformed(1, SnapshotLimits::default(), RaftTiming::LAN).await;
    pool.stop(0).await;
    let gate = Gate::closed(Before::ReadBack);
    pool.members[0].disk = gate.disk();
    pool.start(0).await.unwrap();
    (pool, gate)
}

fn client(pool: &Pool) -> (RaftClient<tonic::transport::Channel>, v1::Envelope) {
    let channel = TcpNetwork.channel(&pool.members[0].address, ChannelOptions::default()).unwrap();
    let local_node = LocalNode { cluster: CLUSTER, node: SENDER, election_max_ms: 300 };
    (RaftClient::new(channel), local_node.envelope(pool.members[0].id))
}

/// Sends a snapshot up to `index` as the leader of `term`; returns the vote in the answer.
fn send(pool: &Pool, term: u64, index: u64) -> JoinHandle<Result<Vote, Status>> {
    let dir = tempfile::tempdir().unwrap();
    let (snapshots, _) = SnapshotStore::open(dir.path(), CLUSTER).unwrap();
    let meta = SnapshotMeta {
        last_log_id: Some(id(index)),
        last_membership: StoredMembership::new(Some(id(0)), members()),
    };
    let (_, file) = snapshots.write(&meta, &State::new(Settings::default())).unwrap();
    let (mut client, envelope) = client(pool);
    let header = v1::SnapshotPiece {
        envelope: Some(envelope),
        vote: Some(vote_to_wire(&Vote::new_committed(term, SENDER))),
        last_log_id: Some(log_id_to_wire(&id(index))),
        membership: encode_membership(&meta.last_membership),
        total_bytes: file.len(),
        ..v1::SnapshotPiece::default()
    };
    let data = file.read_piece(0, usize::MAX).unwrap();
    let pieces = [header, v1::SnapshotPiece { data, ..v1::SnapshotPiece::default() }];
    tokio::spawn(async move {
        let reply = client.install_snapshot(futures::stream::iter(pieces)).await?.into_inner();
        Ok(vote_from_wire(reply.vote.as_ref(), crate::network::wire::convert::VoteKind::Any).unwrap())
    })
}

/// Sends the log up to `last`, all of it committed, as the leader of `term`.
async fn append(pool: &Pool, term: u64, last: Option<u64>) {
    append_committed(pool, term, last, last).await;
}

async fn append_committed(pool: &Pool, term: u64, last: Option<u64>, committed: Option<u64>) {
    let entry = |index| Entry {
        log_id: id(index),
        payload: if index == 0 { EntryPayload::Membership(members()) } else { EntryPayload::Blank },
    };
    let request = AppendEntriesRequest::<TypeConfig> {
        vote: Vote::new_committed(term, SENDER),
        prev_log_id: None,
        entries: last.map_or_else(Vec::new, |last| (0..=last).map(entry).collect()),
        leader_commit: committed.map(id),
    };
    let (mut client, envelope) = client(pool);
    client.append(append_to_wire(&request, envelope)).await.unwrap();
}

fn applied(pool: &Pool) -> Option<u64> {
    pool.node(0).index().read(|applied| applied.last_applied).map(|last| last.index)
}

/// Waits until that many files are left, finished or not.
async fn files(pool: &Pool, count: usize) {
    let dir = &pool.members[0].snapshot_dir;
    until("what is left over to be deleted", async || fs::read_dir(dir).unwrap().count() == count).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_came_in_whole_is_installed_after_its_sender_has_gone() {
    let (pool, gate) = newcomer().await;
    let sender = send(&pool, 1, 20);
    gate.came(1).await;
    sender.abort();
    assert!(sender.await.unwrap_err().is_cancelled());
    gate.open();
    until("it to be installed", async || applied(&pool) == Some(20)).await;
    files(&pool, 1).await;

    // The sender tries again.
    let answer = send(&pool, 1, 20).await.unwrap().unwrap();
    assert_eq!(answer, Vote::new_committed(1, SENDER));
    assert_eq!(gate.count(), 1, "it was answered without the transfer");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_leader_ends_the_reception_of_an_older_ones_snapshot() {
    let (pool, gate) = newcomer().await;
    let deposed = send(&pool, 1, 20);
    gate.came(1).await;
    append(&pool, 2, None).await;
    // The gate is still closed.
    assert_eq!(deposed.await.unwrap().unwrap(), Vote::new_committed(2, SENDER));

    let newer = send(&pool, 2, 30);
    gate.open();
    assert_eq!(newer.await.unwrap().unwrap(), Vote::new_committed(2, SENDER));
    until("it to be installed", async || applied(&pool) == Some(30)).await;
    files(&pool, 1).await;
    let (_, recovered) = SnapshotStore::open(&pool.members[0].snapshot_dir, CLUSTER).unwrap();
    assert_eq!(recovered.snapshot.unwrap().0.last_log_id, Some(id(30)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_the_log_has_overtaken_is_not_installed() {
    let (pool, gate) = newcomer().await;
    let sent = send(&pool, 1, 20);
    gate.came(1).await;
    append(&pool, 1, Some(25)).await;
    until("the log to be applied", async || applied(&pool) == Some(25)).await;
    gate.open();
    assert_eq!(sent.await.unwrap().unwrap(), Vote::new_committed(1, SENDER));
    files(&pool, 0).await;
    assert_eq!(applied(&pool), Some(25));
}

/// A leader that counts entries which a loss of power can still take would find a log that went back.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_called_unneeded_once_what_it_covers_is_durable() {
    let (pool, gate) = newcomer().await;
    gate.open();
    append(&pool, 1, Some(5)).await;
    pool.members[0].log.hold(true);
    {
        let writing = append(&pool, 1, Some(25));
        tokio::pin!(writing);
        tokio::select! {
            () = &mut writing => panic!("acknowledged before it is durable"),
            _ = until("the log to be applied", async || applied(&pool) == Some(25)) => {}
        }
        let told = send(&pool, 1, 20);
        for _ in 0..20 {
            append(&pool, 1, None).await;
            assert!(!told.is_finished(), "told so before it is durable");
        }
        pool.members[0].log.hold(false);
        writing.await;
        assert_eq!(told.await.unwrap().unwrap(), Vote::new_committed(1, SENDER));
    }
    assert_eq!(applied(&pool), Some(25));
}

/// A leader that lost a follower's answers sends a snapshot, and has no newer one while nothing is written.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_is_told_that_its_snapshot_is_held_where_the_log_goes_on_behind_it() {
    let (mut pool, gate) = newcomer().await;
    gate.open();
    append_committed(&pool, 1, Some(25), Some(3)).await;
    until("what is committed to be applied", async || applied(&pool) == Some(3)).await;
    let held = async |pool: &Pool| {
        until("the sender to be told so", async || send(pool, 1, 20).await.unwrap().is_ok()).await;
        assert_eq!(applied(pool), Some(3), "it was not installed");
    };
    held(&pool).await;
    pool.stop(0).await;
    pool.start(0).await.unwrap();
    held(&pool).await;
}

/// The power is cut after the snapshot was installed, and before the log has durably removed the entries that the
/// snapshot overrules.
#[tokio::test(flavor = "multi_thread")]
async fn a_master_starts_whose_log_a_snapshot_has_overruled() {
    let mut pool = Pool::unformed(1, SnapshotLimits::default(), RaftTiming::LAN).await;
    pool.stop(0).await;
    let member = &mut pool.members[0];
    let entry = |index| Entry { log_id: id(index), payload: EntryPayload::Blank };
    member.log.append((0..=35).map(entry), IOFlushed::noop()).await.unwrap();
    member.log.save_vote(&Vote::new_committed(2, SENDER)).await.unwrap();
    member.log.save_committed(Some(id(20))).await.unwrap();
    let last = LogId::new_term_index(2, 30);
    let meta = SnapshotMeta {
        last_log_id: Some(last),
        last_membership: StoredMembership::new(Some(id(0)), members()),
    };
    let (snapshots, _) = SnapshotStore::open(&member.snapshot_dir, CLUSTER).unwrap();
    snapshots.write(&meta, &State::new(Settings::default())).unwrap();

    pool.start(0).await.unwrap();
    assert_eq!((applied(&pool), pool.members[0].log.purged()), (Some(30), Some(last)));
    assert_eq!(pool.members[0].log.bytes_since(None), 0);
}
