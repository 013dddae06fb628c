//! The encoding of one entry, on disk and between masters: our own, versioned, strict. openraft's serde forms change
//! between its releases; these bytes do not (the golden tests below fix them).
//!
//! ```text
//! record  := term u64, index u64, payload
//! payload := format u8 (= 2), kind u8, body
//! body    := nothing (blank) | the proposal's bytes (normal) | a membership
//! ```
//! Integers are big-endian.

use bytes::{BufMut, Bytes, BytesMut};
use openraft::EntryPayload;

use super::format::{FORMAT, RecordError, check_format};
use super::membership;
use super::wire::{FieldReader, LOG_ID_LEN, put_log_id, read_log_id};
use crate::types::{Entry, LogId, Proposal};

const BLANK: u8 = 0;
const NORMAL: u8 = 1;
const MEMBERSHIP: u8 = 2;

/// Encodes an entry's payload, as `mc.v1.Entry.payload` carries it and the log stores it.
#[must_use]
pub fn encode_payload(entry: &Entry) -> Bytes {
    let mut out = BytesMut::with_capacity(size_hint(entry));
    put_payload(&mut out, entry);
    out.freeze()
}

/// Decodes what [`encode_payload`] wrote.
///
/// # Errors
/// When the bytes are not exactly one payload of a format known here.
pub fn decode_entry(log_id: LogId, payload: &[u8]) -> Result<Entry, RecordError> {
    decode_entry_bytes(log_id, &Bytes::copy_from_slice(payload))
}

/// Like [`decode_entry`], without a copy: the entry shares the memory of `payload`.
pub fn decode_entry_bytes(log_id: LogId, payload: &Bytes) -> Result<Entry, RecordError> {
    let mut reader = FieldReader::new(payload);
    check_format(reader.u8()?)?;
    let payload = match reader.u8()? {
        BLANK => {
            reader.end()?;
            EntryPayload::Blank
        }
        NORMAL => EntryPayload::Normal(Proposal(payload.slice(2..))),
        MEMBERSHIP => EntryPayload::Membership(membership::decode(reader.rest())?),
        found => return Err(RecordError::Kind { found }),
    };
    Ok(Entry { log_id, payload })
}

/// Appends an entry's record.
pub(crate) fn put_record(out: &mut BytesMut, entry: &Entry) {
    put_log_id(out, &entry.log_id);
    put_payload(out, entry);
}

/// Reads what [`put_record`] wrote.
pub(crate) fn read_record(record: &Bytes) -> Result<Entry, RecordError> {
    let mut reader = FieldReader::new(record);
    let log_id = read_log_id(&mut reader)?;
    decode_entry_bytes(log_id, &record.slice(LOG_ID_LEN..))
}

/// Returns the size of an entry in memory, which is nearly that on disk.
pub(crate) fn size_hint(entry: &Entry) -> usize {
    let body = match &entry.payload {
        EntryPayload::Blank => 0,
        EntryPayload::Normal(proposal) => proposal.0.len(),
        EntryPayload::Membership(membership) => membership.nodes().count() * 128,
    };
    LOG_ID_LEN + 2 + body
}

fn put_payload(out: &mut BytesMut, entry: &Entry) {
    out.put_u8(FORMAT);
    match &entry.payload {
        EntryPayload::Blank => out.put_u8(BLANK),
        EntryPayload::Normal(proposal) => {
            out.put_u8(NORMAL);
            out.put_slice(&proposal.0);
        }
        EntryPayload::Membership(membership) => {
            out.put_u8(MEMBERSHIP);
            out.put_slice(&membership::encode(membership));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{MasterNode, Membership};
    use mc_types::NodeId;
    use std::collections::{BTreeMap, BTreeSet};

    fn entry(payload: EntryPayload<Proposal, NodeId, MasterNode>) -> Entry {
        Entry { log_id: LogId::new_term_index(3, 0x0102), payload }
    }

    fn joint() -> Membership {
        let node = |n: u64| {
            (NodeId(n), MasterNode { raft: format!("r{n}"), client: format!("c{n}"), http: String::new() })
        };
        let config = vec![BTreeSet::from([NodeId(1)]), BTreeSet::from([NodeId(1), NodeId(2)])];
        Membership::new(config, BTreeMap::from([node(1), node(2), node(9)])).unwrap()
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn the_bytes_of_a_record_never_change() {
        let golden = |payload, want: &str| {
            let entry = entry(payload);
            let mut out = BytesMut::new();
            put_record(&mut out, &entry);
            assert_eq!(hex(&out), format!("00000000000000030000000000000102{want}"));
            assert_eq!(hex(&encode_payload(&entry)), want);
            assert_eq!(read_record(&out.freeze()).unwrap(), entry);
        };
        golden(EntryPayload::Blank, "0200");
        golden(EntryPayload::Normal(Proposal(Bytes::from_static(b"\x00put"))), "020100707574");
        golden(
            EntryPayload::Membership(joint()),
            concat!(
                "0202",
                "02",
                "0101",
                "020102",
                "03",
                "01027231026331",
                "00",
                "02027232026332",
                "00",
                "09027239026339",
                "00",
            ),
        );
    }

    #[test]
    fn every_cut_and_every_extra_byte_of_a_membership_is_refused() {
        let entry = entry(EntryPayload::Membership(joint()));
        let payload = encode_payload(&entry);
        for len in 0..payload.len() {
            assert!(
                decode_entry(entry.log_id, &payload[..len]).is_err(),
                "a payload cut to {len} bytes decodes"
            );
        }
        let mut longer = payload.to_vec();
        longer.push(0);
        assert_eq!(decode_entry(entry.log_id, &longer), Err(RecordError::Trailing { left: 1 }));
    }

    #[test]
    fn another_format_and_another_kind_are_named() {
        let id = LogId::new_term_index(1, 1);
        for (found, than_ours) in [(1, "older"), (3, "newer")] {
            let refused = decode_entry(id, &[found, 0]).unwrap_err();
            assert_eq!(refused, RecordError::Format { found });
            assert!(refused.to_string().contains(than_ours), "{refused}");
        }
        assert_eq!(decode_entry(id, &[FORMAT, 7]), Err(RecordError::Kind { found: 7 }));
        assert_eq!(decode_entry(id, &[FORMAT, 0, 0]), Err(RecordError::Trailing { left: 1 }));
    }

    #[test]
    fn a_count_that_cannot_fit_allocates_nothing() {
        let id = LogId::new_term_index(1, 1);
        let payload = [FORMAT, MEMBERSHIP, 0xff, 0xff, 0xff, 0xff, 0x0f];
        assert!(matches!(decode_entry(id, &payload), Err(RecordError::Membership(_))));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic_the_decoder(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let id = LogId::new_term_index(1, 1);
            if let Ok(entry) = decode_entry(id, &bytes) {
                proptest::prop_assert_eq!(encode_payload(&entry), bytes);
            }
        }
    }
}
