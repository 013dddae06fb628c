//! The encoding of a membership: inside log entries, and in the headers of snapshots.
//!
//! ```text
//! membership := configs u32, { voters u32, { id u64 } }, nodes u32, { id u64, raft text, client text, http text }
//! text       := length u32, UTF-8
//! stored     := format u8 (= 1), 0 u8 | 1 u8 and the log id, membership
//! ```
//! Ids ascend strictly, so that one membership has one encoding.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{BufMut, Bytes, BytesMut};
use mc_types::NodeId;

use super::record::{self, FORMAT, RecordError};
use super::wire::{Reader, put_len, put_text};
use crate::types::{MasterNode, Membership, StoredMembership};

/// Encodes a membership with the entry that set it, for snapshot headers.
#[must_use]
pub fn encode_membership(stored: &StoredMembership) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(FORMAT);
    match stored.log_id() {
        None => out.put_u8(0),
        Some(id) => {
            out.put_u8(1);
            record::put_log_id(&mut out, id);
        }
    }
    put(&mut out, stored.membership());
    out.freeze()
}

/// Decodes what [`encode_membership`] wrote.
///
/// # Errors
/// When the bytes are not exactly one membership of a format known here, or one that Raft does not allow.
pub fn decode_membership(bytes: &[u8]) -> Result<StoredMembership, RecordError> {
    let mut reader = Reader::new(bytes);
    record::check_format(reader.u8()?)?;
    let log_id = match reader.u8()? {
        0 => None,
        1 => Some(record::read_log_id(&mut reader)?),
        found => return Err(RecordError::Kind { found }),
    };
    let membership = read(&mut reader)?;
    reader.end()?;
    Ok(StoredMembership::new(log_id, membership))
}

pub(super) fn put(out: &mut BytesMut, membership: &Membership) {
    let configs = membership.get_joint_config();
    put_len(out, configs.len());
    for voters in configs {
        put_len(out, voters.len());
        for id in voters {
            out.put_u64(id.0);
        }
    }
    put_len(out, membership.nodes().count());
    for (id, node) in membership.nodes() {
        out.put_u64(id.0);
        put_text(out, &node.raft);
        put_text(out, &node.client);
        put_text(out, &node.http);
    }
}

pub(super) fn read(reader: &mut Reader<'_>) -> Result<Membership, RecordError> {
    let mut configs = Vec::new();
    for _ in 0..reader.count(4)? {
        let mut voters = BTreeSet::new();
        for _ in 0..reader.count(8)? {
            let id = NodeId(reader.u64()?);
            if voters.last().is_some_and(|last| *last >= id) {
                return Err(RecordError::Order);
            }
            voters.insert(id);
        }
        configs.push(voters);
    }
    let mut nodes = BTreeMap::new();
    for _ in 0..reader.count(20)? {
        let id = NodeId(reader.u64()?);
        if nodes.last_key_value().is_some_and(|(last, _)| *last >= id) {
            return Err(RecordError::Order);
        }
        let node = MasterNode { raft: reader.text()?, client: reader.text()?, http: reader.text()? };
        nodes.insert(id, node);
    }
    Membership::new(configs, nodes).map_err(|error| RecordError::Membership(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::LogId;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn the_bytes_of_a_stored_membership_never_change() {
        let empty = StoredMembership::default();
        assert_eq!(hex(&encode_membership(&empty)), "01000000000000000000");
        assert_eq!(decode_membership(&encode_membership(&empty)).unwrap(), empty);

        let node = MasterNode { raft: "a:1".into(), client: String::new(), http: String::new() };
        let membership =
            Membership::new(vec![BTreeSet::from([NodeId(7)])], BTreeMap::from([(NodeId(7), node)])).unwrap();
        let stored = StoredMembership::new(Some(LogId::new_term_index(2, 5)), membership);
        let bytes = encode_membership(&stored);
        assert_eq!(
            hex(&bytes),
            concat!(
                "0101",
                "0000000000000002",
                "0000000000000005",
                "00000001",
                "00000001",
                "0000000000000007",
                "00000001",
                "0000000000000007",
                "00000003613a31",
                "00000000",
                "00000000",
            )
        );
        assert_eq!(decode_membership(&bytes).unwrap(), stored);
    }

    #[test]
    fn a_voter_without_an_address_is_refused() {
        let mut out = BytesMut::new();
        out.put_slice(&[FORMAT, 0, 0, 0, 0, 1, 0, 0, 0, 1]);
        out.put_u64(7);
        put_len(&mut out, 0);
        assert!(matches!(decode_membership(&out), Err(RecordError::Membership(_))));
    }

    #[test]
    fn ids_out_of_order_are_refused() {
        let mut out = BytesMut::new();
        out.put_slice(&[FORMAT, 0, 0, 0, 0, 1, 0, 0, 0, 2]);
        out.put_u64(7);
        out.put_u64(7);
        put_len(&mut out, 0);
        assert_eq!(decode_membership(&out), Err(RecordError::Order));
    }
}
