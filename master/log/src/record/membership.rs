//! The encoding of a membership: inside log entries, and in the headers of snapshots.
//!
//! ```text
//! membership := voters of each configuration, nodes with their addresses; in postcard
//! stored     := format u8 (= 2), 0 u8 | 1 u8 and the log id, membership
//! ```
//! Ids ascend strictly, so that one membership has one encoding.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{BufMut, Bytes, BytesMut};
use mc_types::NodeId;
use serde::{Deserialize, Serialize};

use super::format::{FORMAT, RecordError, check_format};
use super::wire::{FieldReader, put_log_id, read_log_id};
use crate::types::{MasterNode, Membership, StoredMembership};

/// A membership as it is encoded. A type of our own, so that a release of openraft cannot change the bytes.
#[derive(Serialize, Deserialize)]
struct MembershipRecord {
    /// One set of voters, or two while the members are being changed.
    configs: Vec<BTreeSet<NodeId>>,
    nodes: BTreeMap<NodeId, MasterNode>,
}

/// Encodes a membership with the entry that set it, for snapshot headers.
#[must_use]
pub fn encode_membership(stored: &StoredMembership) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(FORMAT);
    match stored.log_id() {
        None => out.put_u8(0),
        Some(id) => {
            out.put_u8(1);
            put_log_id(&mut out, id);
        }
    }
    out.put_slice(&encode(stored.membership()));
    out.freeze()
}

/// Decodes what [`encode_membership`] wrote.
///
/// # Errors
/// When the bytes are not exactly one membership of this format, or one that Raft does not allow.
pub fn decode_membership(bytes: &[u8]) -> Result<StoredMembership, RecordError> {
    let mut reader = FieldReader::new(bytes);
    check_format(reader.u8()?)?;
    let log_id = match reader.u8()? {
        0 => None,
        1 => Some(read_log_id(&mut reader)?),
        found => return Err(RecordError::Kind { found }),
    };
    Ok(StoredMembership::new(log_id, decode(reader.rest())?))
}

pub(crate) fn encode(membership: &Membership) -> Vec<u8> {
    let record = MembershipRecord {
        configs: membership.get_joint_config().clone(),
        nodes: membership.nodes().map(|(id, node)| (*id, node.clone())).collect(),
    };
    postcard::to_stdvec(&record).expect("a membership of plain values always encodes")
}

/// Decodes the whole of `bytes`.
pub(crate) fn decode(bytes: &[u8]) -> Result<Membership, RecordError> {
    let impossible = |error: &dyn ToString| RecordError::Membership(error.to_string());
    let (record, rest) =
        postcard::take_from_bytes::<MembershipRecord>(bytes).map_err(|error| impossible(&error))?;
    if !rest.is_empty() {
        return Err(RecordError::Trailing { left: rest.len() });
    }
    let membership = Membership::new(record.configs, record.nodes).map_err(|error| impossible(&error))?;
    // postcard accepts ids in any order, repeated ids, and numbers with leading zeros.
    if encode(&membership) != bytes {
        return Err(RecordError::NotCanonical);
    }
    Ok(membership)
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
        assert_eq!(hex(&encode_membership(&empty)), "02000000");
        assert_eq!(decode_membership(&encode_membership(&empty)).unwrap(), empty);

        let node = MasterNode { raft: "a:1".into(), client: String::new(), http: String::new() };
        let membership =
            Membership::new(vec![BTreeSet::from([NodeId(700)])], BTreeMap::from([(NodeId(700), node)]))
                .unwrap();
        let stored = StoredMembership::new(Some(LogId::new_term_index(2, 5)), membership);
        let bytes = encode_membership(&stored);
        assert_eq!(
            hex(&bytes),
            concat!(
                "0201",
                "0000000000000002",
                "0000000000000005",
                "01", // configurations
                "01", // voters
                "bc05",
                "01", // nodes
                "bc05",
                "03613a31",
                "00",
                "00",
            )
        );
        assert_eq!(decode_membership(&bytes).unwrap(), stored);
    }

    #[test]
    fn a_voter_without_an_address_is_refused() {
        let bytes = [FORMAT, 0, 1, 1, 7, 0];
        assert!(matches!(decode_membership(&bytes), Err(RecordError::Membership(_))));
    }

    #[test]
    fn what_no_encoder_writes_is_refused() {
        let node = |id| [id, 0, 0, 0];
        let of = |parts: &[&[u8]]| [&[FORMAT, 0][..], &parts.concat()].concat();
        let well = of(&[&[1, 1, 7, 1], &node(7)]);
        assert!(decode_membership(&well).is_ok());
        for (bytes, what) in [
            (of(&[&[1, 2, 7, 7, 1], &node(7)]), "a voter twice"),
            (of(&[&[1, 1, 7, 2], &node(8), &node(7)]), "nodes out of order"),
            (of(&[&[1, 1, 0x87, 0x00, 1], &node(7)]), "a number with a leading zero"),
        ] {
            assert_eq!(decode_membership(&bytes), Err(RecordError::NotCanonical), "{what}");
        }
        let longer = of(&[&[1, 1, 7, 1], &node(7), &[0]]);
        assert_eq!(decode_membership(&longer), Err(RecordError::Trailing { left: 1 }));
    }
}
