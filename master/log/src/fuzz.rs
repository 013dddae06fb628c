//! Entry points of tests/fuzz: each function decodes bytes that a master reads from its log, and returns whether they
//! could be read.

use std::hint::black_box;

use bytes::BytesMut;

use crate::disk::mark_file::{self, SLOT};
use crate::record::hard_state;
use crate::record::pack::{self, Assembler, CRC_AT, HEADER, ValueKey};
use crate::record::wire::FieldReader;

/// Decodes a value of the log's database, with its checksum corrected, under each key that its header may belong to.
pub fn piece(data: &[u8]) -> bool {
    let mut value = data.to_vec();
    if value.len() < HEADER {
        return pack::decode(&ValueKey::pack(0), &value).is_ok();
    }
    let right = pack::checksum(&value).to_be_bytes();
    value[CRC_AT..HEADER].copy_from_slice(&right);
    let mut reader = FieldReader::new(&value[2..]);
    let (Ok(index), Ok(_), Ok(part)) = (reader.u64(), reader.u32(), reader.u32()) else { return false };
    black_box(pack::ends_by(&value, index));
    let mut read = false;
    for key in [ValueKey::pack(index), ValueKey::part(index, part)] {
        if let Ok(piece) = pack::decode(&key, &value) {
            drop(black_box(Assembler::default().feed(piece)));
            read = true;
        }
    }
    read
}

/// Decodes a vote or a position in the log, with its checksum corrected.
pub fn mark(data: &[u8]) -> bool {
    let sealed = hard_state::seal(BytesMut::from(data));
    if let Ok((vote, election_max_ms)) = hard_state::decode_vote(&sealed) {
        assert_eq!(
            hard_state::encode_vote(&vote, election_max_ms),
            sealed,
            "there is one way to write a vote"
        );
        return true;
    }
    let Ok(id) = hard_state::decode_log_id(&sealed) else { return false };
    assert_eq!(hard_state::encode_log_id(&id), sealed, "there is one way to write a position");
    true
}

/// Decodes the file of the mark. The two halves of `data` are its slots, with their checksums corrected.
pub fn mark_file(data: &[u8]) -> bool {
    let (first, second) = data.split_at(data.len() / 2);
    let mut file = hard_state::seal(BytesMut::from(first));
    file.resize(SLOT as usize, 0);
    file.extend_from_slice(&hard_state::seal(BytesMut::from(second)));
    mark_file::newest(&file).is_ok()
}
