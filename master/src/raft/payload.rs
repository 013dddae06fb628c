//! The payload of an entry as bytes: one kind byte, then the command as it was proposed, or the membership in postcard.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use mc_base::NodeId;
use openraft::EntryPayload;
use serde::{Deserialize, Serialize};

use super::{Entry, LogId, MasterNode, Membership, Proposal, StoredMembership};

const BLANK: u8 = 0;
const COMMAND: u8 = 1;
const MEMBERSHIP: u8 = 2;

/// Why bytes are not an entry's payload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordError {
    /// Written by a newer build, or not a payload.
    #[error("entry kind {0} is unknown to this build: upgrade this master before it goes on")]
    Kind(u8),
    /// Not decodable to the last byte.
    #[error("entry is malformed: {0}")]
    Malformed(String),
}

#[derive(Serialize, Deserialize)]
struct MembershipRecord {
    log_id: Option<(u64, u64)>,
    configs: Vec<BTreeSet<NodeId>>,
    nodes: BTreeMap<NodeId, MasterNode>,
}

/// Encodes what an entry carries besides its log id.
pub(crate) fn encode_payload(entry: &Entry) -> Bytes {
    match &entry.payload {
        EntryPayload::Blank => Bytes::from_static(&[BLANK]),
        EntryPayload::Normal(Proposal(command)) => [&[COMMAND], &command[..]].concat().into(),
        EntryPayload::Membership(membership) => {
            let stored = StoredMembership::new(None, membership.clone());
            [&[MEMBERSHIP], &encode_membership(&stored)[..]].concat().into()
        }
    }
}

/// Reads what [`encode_payload`] wrote.
pub(crate) fn decode_entry_bytes(log_id: LogId, payload: &Bytes) -> Result<Entry, RecordError> {
    let decoded = match payload.split_first() {
        Some((&BLANK, [])) => EntryPayload::Blank,
        Some((&COMMAND, _)) => EntryPayload::Normal(Proposal(payload.slice(1..))),
        Some((&MEMBERSHIP, bytes)) => {
            EntryPayload::Membership(decode_membership(bytes)?.membership().clone())
        }
        Some((&BLANK, rest)) => return Err(RecordError::Malformed(format!("{} bytes too many", rest.len()))),
        Some((&kind, _)) => return Err(RecordError::Kind(kind)),
        None => return Err(RecordError::Malformed("empty".into())),
    };
    Ok(Entry { log_id, payload: decoded })
}

/// Encodes a membership and the entry that set it.
pub(crate) fn encode_membership(stored: &StoredMembership) -> Bytes {
    let membership = stored.membership();
    let record = MembershipRecord {
        log_id: stored.log_id().map(|id| (id.leader_id.term, id.index)),
        configs: membership.get_joint_config().clone(),
        nodes: membership.nodes().map(|(id, node)| (*id, node.clone())).collect(),
    };
    postcard::to_allocvec(&record).expect("a membership of plain values always encodes").into()
}

/// Reads what [`encode_membership`] wrote.
pub(crate) fn decode_membership(bytes: &[u8]) -> Result<StoredMembership, RecordError> {
    let (record, rest): (MembershipRecord, _) =
        postcard::take_from_bytes(bytes).map_err(|err| RecordError::Malformed(err.to_string()))?;
    if !rest.is_empty() {
        return Err(RecordError::Malformed(format!("{} bytes too many", rest.len())));
    }
    let membership = Membership::new(record.configs, record.nodes)
        .map_err(|err| RecordError::Malformed(err.to_string()))?;
    Ok(StoredMembership::new(
        record.log_id.map(|(term, index)| LogId::new_term_index(term, index)),
        membership,
    ))
}
