//! The small records beside the packs: vote, committed and purged positions, each with format and checksum.
//!
//! ```text
//! 'V' := format u8, term u64, node id u64, committed u8, election timeout u64, crc32c u32
//! 'C', 'P' := format u8, term u64, index u64, crc32c u32
//! ```

use bytes::{BufMut, BytesMut};
use mc_types::NodeId;

use super::format::{FORMAT, RecordError, check_format};
use super::wire::{FieldReader, put_log_id, read_log_id};
use crate::types::{LogId, Vote};

pub(crate) const VOTE: &[u8] = b"V";
pub(crate) const COMMITTED: &[u8] = b"C";
pub(crate) const PURGED: &[u8] = b"P";

/// Appends the checksum of the bytes before it.
pub(crate) fn seal(mut out: BytesMut) -> BytesMut {
    let crc = crc32c::crc32c(&out);
    out.put_u32(crc);
    out
}

/// Checks the checksum and the format, and returns a reader of the rest.
pub(crate) fn open(bytes: &[u8]) -> Result<FieldReader<'_>, RecordError> {
    let Some((body, crc)) = bytes.split_last_chunk::<4>() else {
        return Err(RecordError::Short { need: 4, have: bytes.len() });
    };
    if crc32c::crc32c(body) != u32::from_be_bytes(*crc) {
        return Err(RecordError::Checksum);
    }
    let mut reader = FieldReader::new(body);
    check_format(reader.u8()?)?;
    Ok(reader)
}

/// Encodes a vote, and the longest election timeout, in ms, that this node has promised other masters to wait since; 0
/// if it has promised none.
pub(crate) fn encode_vote(vote: &Vote, election_max_ms: u64) -> BytesMut {
    let mut out = BytesMut::new();
    out.put_u8(FORMAT);
    out.put_u64(vote.leader_id.term);
    out.put_u64(vote.leader_id.voted_for.0);
    out.put_u8(u8::from(vote.committed));
    out.put_u64(election_max_ms);
    seal(out)
}

pub(crate) fn decode_vote(bytes: &[u8]) -> Result<(Vote, u64), RecordError> {
    let mut reader = open(bytes)?;
    let (term, node) = (reader.u64()?, NodeId(reader.u64()?));
    let vote = match reader.u8()? {
        0 => Vote::new(term, node),
        1 => Vote::new_committed(term, node),
        found => return Err(RecordError::Kind { found }),
    };
    let election_max_ms = reader.u64()?;
    reader.end()?;
    Ok((vote, election_max_ms))
}

pub(crate) fn encode_log_id(id: &LogId) -> BytesMut {
    let mut out = BytesMut::new();
    out.put_u8(FORMAT);
    put_log_id(&mut out, id);
    seal(out)
}

pub(crate) fn decode_log_id(bytes: &[u8]) -> Result<LogId, RecordError> {
    let mut reader = open(bytes)?;
    let id = read_log_id(&mut reader)?;
    reader.end()?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_and_votes_have_fixed_bytes_and_every_flipped_bit_is_seen() {
        let vote = Vote::new_committed(2, NodeId(3));
        let id = LogId::new_term_index(2, 3);
        let (vote_bytes, id_bytes) = (encode_vote(&vote, 300), encode_log_id(&id));
        assert_eq!(vote_bytes[..18], [FORMAT, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 1]);
        assert_eq!(vote_bytes[18..26], [0, 0, 0, 0, 0, 0, 1, 44]);
        assert_eq!(id_bytes[..17], [FORMAT, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3]);
        assert_eq!(decode_vote(&vote_bytes), Ok((vote, 300)));
        assert_eq!(decode_log_id(&id_bytes), Ok(id));
        for bit in 0..vote_bytes.len() * 8 {
            let mut bytes = vote_bytes.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_vote(&bytes), Err(RecordError::Checksum));
        }
    }
}
