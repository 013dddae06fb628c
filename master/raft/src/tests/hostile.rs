//! Messages that no master of this protocol sends: each is refused, and Raft runs on.

use std::collections::BTreeSet;

use mc_index::{Settings, State};
use mc_log::{Entry, LogId, Membership, SnapshotMeta, StoredMembership, Vote, encode_membership};
use mc_net::{ChannelOptions, Network, TcpNetwork};
use mc_proto::v1::{self, raft_client::RaftClient};
use mc_types::NodeId;
use openraft::EntryPayload;
use openraft::raft::AppendEntriesRequest;
use tonic::Code;
use tonic::transport::Channel;

use crate::apply::snapshot_limits::SnapshotLimits;
use crate::network::wire::convert::{append_to_wire, log_id_to_wire, vote_to_wire};
use crate::network::wire::envelope::LocalNode;
use crate::snapshots::SnapshotStore;
use crate::testing::{CLUSTER, Pool};

const STRANGER: NodeId = NodeId(7);

fn client(pool: &Pool) -> RaftClient<Channel> {
    RaftClient::new(TcpNetwork.channel(&pool.members[0].address, ChannelOptions::default()).unwrap())
}

fn envelope(pool: &Pool) -> v1::Envelope {
    LocalNode { cluster: CLUSTER, node: STRANGER, election_max_ms: 300 }.envelope(pool.members[0].id)
}

/// A leader of `term` sends a whole and good snapshot that ends at `last`.
async fn send_snapshot(pool: &Pool, term: u64, last: LogId) -> tonic::Status {
    let dir = tempfile::tempdir().unwrap();
    let (snapshots, _) = SnapshotStore::open(dir.path(), CLUSTER).unwrap();
    let members = Membership::new_with_defaults(vec![BTreeSet::from([STRANGER])], []);
    let last_membership = StoredMembership::new(Some(LogId::new_term_index(1, 0)), members);
    let meta = SnapshotMeta { last_log_id: Some(last), last_membership };
    let (_, file) = snapshots.write(&meta, &State::new(Settings::default())).unwrap();
    let header = v1::SnapshotPiece {
        envelope: Some(envelope(pool)),
        vote: Some(vote_to_wire(&Vote::new_committed(term, STRANGER))),
        last_log_id: Some(log_id_to_wire(&last)),
        membership: encode_membership(&meta.last_membership),
        total_bytes: file.len(),
        ..v1::SnapshotPiece::default()
    };
    let data = file.read_piece(0, usize::MAX).unwrap();
    let pieces = [header, v1::SnapshotPiece { data, ..v1::SnapshotPiece::default() }];
    client(pool).install_snapshot(futures::stream::iter(pieces)).await.unwrap_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_a_later_term_than_its_leader_does_not_end_raft() {
    let pool = Pool::formed(1, SnapshotLimits::default()).await;
    let written = pool.write(1).await;
    let last = LogId::new_term_index(101, written.index + 50);
    let refused = send_snapshot(&pool, 100, last).await;
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    let after = pool.write(2).await;
    assert_eq!(after.leader_id, written.leader_id, "it leads on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_contradicts_what_is_committed_does_not_end_raft() {
    let pool = Pool::formed(1, SnapshotLimits::default()).await;
    let written = pool.write(1).await;
    let refused = send_snapshot(&pool, 100, LogId::new_term_index(99, written.index)).await;
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("different histories"), "{refused}");
    let after = pool.write(2).await;
    assert_eq!(after.leader_id, written.leader_id, "it leads on");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_append_of_entries_of_a_later_term_than_its_leader_is_refused() {
    let pool = Pool::formed(1, SnapshotLimits::default()).await;
    let written = pool.write(1).await;
    let log_id = LogId::new_term_index(101, written.index + 1);
    let request = AppendEntriesRequest {
        vote: Vote::new_committed(100, STRANGER),
        prev_log_id: Some(written),
        entries: vec![Entry { log_id, payload: EntryPayload::Blank }],
        leader_commit: None,
    };
    let append = append_to_wire(&request, envelope(&pool));
    assert_eq!(client(&pool).append(append.clone()).await.unwrap_err().code(), Code::InvalidArgument);
    let answers = client(&pool).append_stream(futures::stream::iter([append])).await;
    let refused = answers.unwrap().into_inner().message().await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    let after = pool.write(2).await;
    assert_eq!(after.leader_id, written.leader_id, "it leads on");
}
