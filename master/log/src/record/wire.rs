//! Strict big-endian reading and writing, shared by the log's encodings.

use bytes::{BufMut, BytesMut};

use super::format::RecordError;
use crate::types::LogId;

/// Reads fields from the front of a slice. A slice that is too short is an error, never a panic.
pub(crate) struct FieldReader<'a> {
    rest: &'a [u8],
}

impl<'a> FieldReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], RecordError> {
        if len > self.rest.len() {
            return Err(RecordError::Short { need: len, have: self.rest.len() });
        }
        let (head, rest) = self.rest.split_at(len);
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], RecordError> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, RecordError> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, RecordError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, RecordError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// Returns the bytes that are left.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Checks that no bytes are left. A record that is longer than expected is of another build, or damaged.
    pub(crate) fn end(&self) -> Result<(), RecordError> {
        if self.rest.is_empty() { Ok(()) } else { Err(RecordError::Trailing { left: self.rest.len() }) }
    }
}

/// Writes a length. Lengths come from memory, so none is above `u32::MAX`; if one were, it would read back as an error.
pub(crate) fn put_len(out: &mut BytesMut, len: usize) {
    out.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
}

/// Bytes of a log id.
pub(crate) const LOG_ID_LEN: usize = 16;

pub(crate) fn put_log_id(out: &mut BytesMut, id: &LogId) {
    out.put_u64(id.leader_id.term);
    out.put_u64(id.index);
}

pub(crate) fn read_log_id(reader: &mut FieldReader<'_>) -> Result<LogId, RecordError> {
    Ok(LogId::new_term_index(reader.u64()?, reader.u64()?))
}
