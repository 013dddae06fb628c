//! Conversion of openraft's messages to protobuf and back. openraft takes some facts for granted: consecutive
//! entries, and who may send which vote. Messages from the wire are checked for these here, so that no peer can make
//! openraft panic.

use bytes::Bytes;
use mc_proto::v1;
use mc_types::NodeId;
use openraft::alias::LeaderIdOf;
use openraft::raft::{
    AppendEntriesRequest, StreamAppendError, StreamAppendResult, TransferLeaderRequest, VoteRequest,
    VoteResponse,
};
use tonic::Code;

use mc_log::{
    CommittedLeaderId, LogId, RecordError, SnapshotMeta, TypeConfig, Vote, decode_entry_bytes,
    decode_membership, encode_payload,
};

/// Defect of a received message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadMessage {
    /// A required field is absent.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A field has a value that no sender of this protocol sends.
    #[error("{what} {why}")]
    Invalid {
        /// Name of the field.
        what: &'static str,
        /// Description of the defect.
        why: String,
    },
    /// An entry cannot be read.
    #[error("entry {index}: {source}")]
    Entry {
        /// Log index of the entry.
        index: u64,
        /// The defect.
        source: RecordError,
    },
}

fn invalid(what: &'static str, why: impl Into<String>) -> BadMessage {
    BadMessage::Invalid { what, why: why.into() }
}

/// Kinds of votes that a message may carry: a quorum has granted a leader's vote, but not a candidate's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum VoteKind {
    Leader,
    Candidate,
    Any,
}

pub(crate) fn log_id_to_wire(id: &LogId) -> v1::LogId {
    v1::LogId { term: id.leader_id.term, index: id.index }
}

pub(crate) fn log_id_from_wire(id: &v1::LogId) -> LogId {
    LogId { leader_id: CommittedLeaderId::new(id.term), index: id.index }
}

fn opt_to_wire(id: Option<&LogId>) -> Option<v1::LogId> {
    id.map(log_id_to_wire)
}

fn opt_from_wire(id: Option<&v1::LogId>) -> Option<LogId> {
    id.map(log_id_from_wire)
}

/// Refuses a log id of a later term than the leader's vote. A leader has no such entry, and openraft asserts that.
/// Such a message, from a peer whose disk lost its vote or from a hostile one, would end this master.
fn within_term(what: &'static str, id: Option<&LogId>, vote: &Vote) -> Result<(), BadMessage> {
    match id {
        Some(id) if id.leader_id.term > vote.leader_id.term => {
            Err(invalid(what, format!("is {id}, of a later term than its leader's vote {vote}")))
        }
        _ => Ok(()),
    }
}

pub(crate) fn vote_to_wire(vote: &Vote) -> v1::RaftVote {
    v1::RaftVote {
        term: vote.leader_id.term,
        node_id: node_to_wire(vote.leader_id.voted_for),
        committed: vote.committed,
    }
}

pub(crate) fn vote_from_wire(vote: Option<&v1::RaftVote>, kind: VoteKind) -> Result<Vote, BadMessage> {
    let vote = vote.ok_or(BadMessage::Missing("vote"))?;
    match kind {
        VoteKind::Leader if !vote.committed => return Err(invalid("vote", "is not a leader's")),
        VoteKind::Candidate if vote.committed => return Err(invalid("vote", "is not a candidate's")),
        _ => {}
    }
    if vote.term == u64::MAX {
        return Err(invalid("vote", "is of the last term there can be: no election could follow it"));
    }
    let leader_id =
        LeaderIdOf::<TypeConfig> { term: vote.term, voted_for: node_from_wire("vote", &vote.node_id)? };
    Ok(Vote { leader_id, committed: vote.committed })
}

pub(crate) fn node_to_wire(id: NodeId) -> Bytes {
    Bytes::copy_from_slice(&id.to_bytes())
}

pub(crate) fn node_from_wire(what: &'static str, bytes: &[u8]) -> Result<NodeId, BadMessage> {
    NodeId::from_bytes(bytes).ok_or_else(|| invalid(what, format!("has a node id of {} bytes", bytes.len())))
}

pub(crate) fn append_to_wire(
    request: &AppendEntriesRequest<TypeConfig>,
    envelope: v1::Envelope,
) -> v1::AppendRequest {
    v1::AppendRequest {
        envelope: Some(envelope),
        vote: Some(vote_to_wire(&request.vote)),
        prev_log_id: opt_to_wire(request.prev_log_id.as_ref()),
        entries: request
            .entries
            .iter()
            .map(|entry| v1::Entry {
                log_id: Some(log_id_to_wire(&entry.log_id)),
                payload: encode_payload(entry),
            })
            .collect(),
        leader_commit: opt_to_wire(request.leader_commit.as_ref()),
        deserted: false,
    }
}

pub(crate) fn append_from_wire(
    request: &v1::AppendRequest,
) -> Result<AppendEntriesRequest<TypeConfig>, BadMessage> {
    let vote = vote_from_wire(request.vote.as_ref(), VoteKind::Leader)?;
    let prev_log_id = opt_from_wire(request.prev_log_id.as_ref());
    within_term("prev_log_id", prev_log_id.as_ref(), &vote)?;
    let leader_commit = opt_from_wire(request.leader_commit.as_ref());
    within_term("leader_commit", leader_commit.as_ref(), &vote)?;
    let mut last = prev_log_id;
    let mut entries = Vec::with_capacity(request.entries.len());
    for entry in &request.entries {
        let log_id =
            log_id_from_wire(entry.log_id.as_ref().ok_or(BadMessage::Missing("log id of an entry"))?);
        let expected = last.map_or(0, |last| last.index.saturating_add(1));
        if log_id.index != expected || last.is_some_and(|last| log_id.leader_id < last.leader_id) {
            return Err(invalid(
                "entries",
                format!("are not consecutive: {log_id} where index {expected} is due"),
            ));
        }
        entries.push(
            decode_entry_bytes(log_id, &entry.payload)
                .map_err(|source| BadMessage::Entry { index: log_id.index, source })?,
        );
        last = Some(log_id);
    }
    // Terms ascend, so the last one is the highest.
    within_term("entries", last.as_ref(), &vote)?;
    Ok(AppendEntriesRequest { vote, prev_log_id, entries, leader_commit })
}

/// Range of entries in an append: the entry before the first, and the last one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AppendRange {
    pub(crate) prev: Option<LogId>,
    pub(crate) last: Option<LogId>,
}

impl AppendRange {
    pub(crate) fn of(request: &AppendEntriesRequest<TypeConfig>) -> Self {
        let prev = request.prev_log_id;
        Self { prev, last: request.entries.last().map(|entry| entry.log_id).or(prev) }
    }
}

pub(crate) fn append_reply_to_wire(result: &StreamAppendResult<TypeConfig>) -> v1::AppendReply {
    use v1::append_reply::Outcome;
    let (outcome, matching, vote) = match result {
        Ok(matching) => (Outcome::Success, matching.as_ref(), None),
        Err(StreamAppendError::Conflict(at)) => (Outcome::Conflict, Some(at), None),
        Err(StreamAppendError::HigherVote(vote)) => (Outcome::HigherVote, None, Some(vote)),
    };
    v1::AppendReply {
        outcome: outcome.into(),
        matching: opt_to_wire(matching),
        vote: vote.map(vote_to_wire),
        sync_us: None,
        disk_nearly_full: false,
        has_descriptors: false,
        leaving: false,
    }
}

pub(crate) fn append_reply_from_wire(
    reply: &v1::AppendReply,
    sent: AppendRange,
) -> Result<StreamAppendResult<TypeConfig>, BadMessage> {
    use v1::append_reply::Outcome;
    let outcome = Outcome::try_from(reply.outcome)
        .map_err(|_| invalid("outcome", format!("{} is unknown to this build", reply.outcome)))?;
    match outcome {
        Outcome::Success => Ok(Ok(sent.last)),
        Outcome::Partial => {
            let matching = opt_from_wire(reply.matching.as_ref());
            if matching < sent.prev || matching > sent.last {
                return Err(invalid("matching", "lies outside of what was sent"));
            }
            Ok(Ok(matching))
        }
        // openraft relies on a log id here, because an append from the start of the log fits every log.
        Outcome::Conflict => {
            let at = sent.prev.ok_or_else(|| invalid("outcome", "is a conflict at the start of the log"))?;
            Ok(Err(StreamAppendError::Conflict(at)))
        }
        Outcome::HigherVote => {
            Ok(Err(StreamAppendError::HigherVote(vote_from_wire(reply.vote.as_ref(), VoteKind::Any)?)))
        }
    }
}

pub(crate) fn vote_request_to_wire(
    request: &VoteRequest<TypeConfig>,
    envelope: v1::Envelope,
) -> v1::VoteRequest {
    v1::VoteRequest {
        envelope: Some(envelope),
        vote: Some(vote_to_wire(&request.vote)),
        last_log_id: opt_to_wire(request.last_log_id.as_ref()),
        leadership_transfer: request.leadership_transfer,
    }
}

pub(crate) fn vote_request_from_wire(
    request: &v1::VoteRequest,
) -> Result<VoteRequest<TypeConfig>, BadMessage> {
    Ok(VoteRequest {
        vote: vote_from_wire(request.vote.as_ref(), VoteKind::Candidate)?,
        last_log_id: opt_from_wire(request.last_log_id.as_ref()),
        leadership_transfer: request.leadership_transfer,
    })
}

/// `not_a_member_since` is the entry that set the members, if the candidate is not among them.
pub(crate) fn vote_reply_to_wire(
    reply: &VoteResponse<TypeConfig>,
    not_a_member_since: Option<LogId>,
) -> v1::VoteReply {
    v1::VoteReply {
        vote: Some(vote_to_wire(&reply.vote)),
        last_log_id: opt_to_wire(reply.last_log_id.as_ref()),
        granted: reply.vote_granted,
        not_a_member_since: opt_to_wire(not_a_member_since.as_ref()),
    }
}

pub(crate) fn vote_reply_from_wire(reply: &v1::VoteReply) -> Result<VoteResponse<TypeConfig>, BadMessage> {
    Ok(VoteResponse {
        vote: vote_from_wire(reply.vote.as_ref(), VoteKind::Any)?,
        vote_granted: reply.granted,
        last_log_id: opt_from_wire(reply.last_log_id.as_ref()),
    })
}

pub(crate) fn transfer_to_wire(
    request: &TransferLeaderRequest<TypeConfig>,
    envelope: v1::Envelope,
) -> v1::RaftTransferLeaderRequest {
    v1::RaftTransferLeaderRequest {
        envelope: Some(envelope),
        from_leader: Some(vote_to_wire(request.from_leader())),
        to: node_to_wire(*request.to_node_id()),
        last_log_id: opt_to_wire(request.last_log_id()),
    }
}

pub(crate) fn transfer_from_wire(
    request: &v1::RaftTransferLeaderRequest,
) -> Result<TransferLeaderRequest<TypeConfig>, BadMessage> {
    Ok(TransferLeaderRequest::new(
        vote_from_wire(request.from_leader.as_ref(), VoteKind::Leader)?,
        node_from_wire("to", &request.to)?,
        opt_from_wire(request.last_log_id.as_ref()),
    ))
}

/// Answer of a receiver whose disk refuses the snapshot, most likely because it is full.
pub(crate) const DISK_REFUSES: Code = Code::ResourceExhausted;

/// Decodes the first piece of a snapshot: its sender and its metadata.
pub(crate) fn snapshot_from_wire(header: &v1::SnapshotPiece) -> Result<(Vote, SnapshotMeta), BadMessage> {
    let vote = vote_from_wire(header.vote.as_ref(), VoteKind::Leader)?;
    let last_log_id = opt_from_wire(header.last_log_id.as_ref());
    within_term("last_log_id", last_log_id.as_ref(), &vote)?;
    let last_membership = decode_membership(&header.membership)
        .map_err(|err| invalid("membership", format!("cannot be read: {err}")))?;
    if *last_membership.log_id() > last_log_id {
        return Err(invalid("membership", "was set by an entry after the snapshot's last"));
    }
    Ok((vote, SnapshotMeta { last_log_id, last_membership }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mc_log::{Entry, Membership, StoredMembership, encode_membership};

    fn id(term: u64, index: u64) -> LogId {
        LogId::new_term_index(term, index)
    }

    /// An append of a leader of term 3: entries 5 and 6 after entry 4, committed up to 4.
    fn append() -> AppendEntriesRequest<TypeConfig> {
        let entry = |log_id| Entry { log_id, payload: openraft::EntryPayload::Blank };
        AppendEntriesRequest {
            vote: Vote::new_committed(3, NodeId(1)),
            prev_log_id: Some(id(1, 4)),
            entries: vec![entry(id(2, 5)), entry(id(3, 6))],
            leader_commit: Some(id(1, 4)),
        }
    }

    fn assert_refused(altered: AppendEntriesRequest<TypeConfig>, field: &str) {
        let refused = append_from_wire(&append_to_wire(&altered, v1::Envelope::default())).unwrap_err();
        assert!(
            matches!(&refused, BadMessage::Invalid { what, why } if *what == field && why.contains("a later term")),
            "{refused}"
        );
    }

    #[test]
    fn an_append_holds_nothing_of_a_later_term_than_its_vote() {
        let read = append_from_wire(&append_to_wire(&append(), v1::Envelope::default())).unwrap();
        assert_eq!(read.entries, append().entries);

        let mut later = append();
        later.entries[1].log_id = id(4, 6);
        assert_refused(later, "entries");
        assert_refused(
            AppendEntriesRequest { prev_log_id: Some(id(4, 4)), entries: Vec::new(), ..append() },
            "prev_log_id",
        );
        assert_refused(AppendEntriesRequest { leader_commit: Some(id(4, 4)), ..append() }, "leader_commit");
    }

    #[test]
    fn a_snapshot_ends_in_no_later_term_than_its_vote_and_after_its_membership() {
        let header = |last: Option<LogId>, members_since: Option<LogId>| {
            let members = Membership::new_with_defaults(vec![[NodeId(1)].into()], []);
            v1::SnapshotPiece {
                vote: Some(vote_to_wire(&Vote::new_committed(3, NodeId(1)))),
                last_log_id: opt_to_wire(last.as_ref()),
                membership: encode_membership(&StoredMembership::new(members_since, members)),
                ..v1::SnapshotPiece::default()
            }
        };
        let read = |last, members_since| snapshot_from_wire(&header(last, members_since));
        assert_eq!(read(Some(id(3, 9)), Some(id(3, 9))).unwrap().1.last_log_id, Some(id(3, 9)));
        assert!(read(None, None).is_ok());

        let refused = read(Some(id(4, 9)), Some(id(1, 0))).unwrap_err().to_string();
        assert!(refused.contains("last_log_id") && refused.contains("a later term"), "{refused}");
        for (last, since) in [(Some(id(3, 9)), id(3, 10)), (None, id(1, 0))] {
            let refused = read(last, Some(since)).unwrap_err().to_string();
            assert!(refused.contains("membership"), "{refused}");
        }
    }
}
