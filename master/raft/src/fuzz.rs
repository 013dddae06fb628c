//! Decodes what masters read of each other and of snapshots, for tests/fuzz: each function says whether it could be
//! read. A value that was read is written and read again, and must be the same.

use mc_log::{LogId, Vote};
use mc_proto::v1;
use mc_types::{ClusterId, NodeId};

use crate::network::wire::convert::{
    AppendRange, VoteKind, append_from_wire, append_reply_from_wire, append_to_wire, snapshot_from_wire,
    transfer_from_wire, transfer_to_wire, vote_from_wire, vote_reply_from_wire, vote_reply_to_wire,
    vote_request_from_wire, vote_request_to_wire,
};
use crate::network::wire::envelope::{check_envelope, check_timing};
use crate::snapshots::fuzz_file;

/// Cluster id that messages must have to be accepted.
pub const CLUSTER: ClusterId = ClusterId(7);
/// Node id that messages must have to be accepted.
pub const NODE: NodeId = NodeId(2);
/// Longest election timeout of that master.
pub const ELECTION_MAX_MS: u64 = 300;

fn is_for_us(envelope: Option<&v1::Envelope>) -> bool {
    check_envelope(NODE, Some(CLUSTER), envelope).is_ok()
        && envelope.is_some_and(|envelope| check_timing(ELECTION_MAX_MS, envelope).is_ok())
}

/// openraft ends the master on anything else.
fn assert_within_term(vote: &Vote, mut ids: impl Iterator<Item = LogId>) {
    assert!(ids.all(|id| id.leader_id.term <= vote.leader_id.term), "an id of a later term than {vote}");
}

/// Entries to replicate, or a heartbeat.
pub fn append(request: &v1::AppendRequest) -> bool {
    let Ok(read) = append_from_wire(request) else { return false };
    let ids = read.entries.iter().map(|entry| entry.log_id).chain(read.prev_log_id).chain(read.leader_commit);
    assert_within_term(&read.vote, ids);
    let again = append_to_wire(&read, v1::Envelope::default());
    assert!(append_from_wire(&again).is_ok_and(|again| again.entries == read.entries), "{request:?}");
    is_for_us(request.envelope.as_ref())
}

/// The answer to an append of the entries 5 to 9.
pub fn append_reply(reply: &v1::AppendReply) -> bool {
    let id = |index| Some(LogId::new_term_index(3, index));
    append_reply_from_wire(reply, AppendRange { prev: id(4), last: id(9) }).is_ok()
}

/// A request for a vote or a pre-vote.
pub fn vote_request(request: &v1::VoteRequest) -> bool {
    let Ok(read) = vote_request_from_wire(request) else { return false };
    let again = vote_request_to_wire(&read, v1::Envelope::default());
    assert_eq!(vote_request_from_wire(&again), Ok(read));
    is_for_us(request.envelope.as_ref())
}

/// A vote that is given or not.
pub fn vote_reply(reply: &v1::VoteReply) -> bool {
    let Ok(read) = vote_reply_from_wire(reply) else { return false };
    assert_eq!(vote_reply_from_wire(&vote_reply_to_wire(&read, None)), Ok(read));
    true
}

/// The first piece of a snapshot.
pub fn snapshot_header(piece: &v1::SnapshotPiece) -> bool {
    let Ok((vote, meta)) = snapshot_from_wire(piece) else { return false };
    assert_within_term(&vote, meta.last_log_id.into_iter().chain(*meta.last_membership.log_id()));
    is_for_us(piece.envelope.as_ref())
}

/// The answer to a snapshot.
pub fn snapshot_reply(reply: &v1::SnapshotReply) -> bool {
    vote_from_wire(reply.vote.as_ref(), VoteKind::Any).is_ok()
}

/// Leadership that is handed over.
pub fn transfer(request: &v1::RaftTransferLeaderRequest) -> bool {
    let Ok(read) = transfer_from_wire(request) else { return false };
    let again = transfer_to_wire(&read, v1::Envelope::default());
    assert_eq!(transfer_from_wire(&again), Ok(read));
    is_for_us(request.envelope.as_ref())
}

/// Leadership that was taken or not.
pub fn transfer_reply(reply: &v1::RaftTransferLeaderReply) -> bool {
    reply.vote.as_ref().is_none_or(|vote| vote_from_wire(Some(vote), VoteKind::Any).is_ok())
}

/// A snapshot file, with its length and checksums made right.
pub fn snapshot_file(data: &[u8]) -> bool {
    fuzz_file(data, CLUSTER).unwrap_or_default()
}
