//! Strict big-endian reading and writing, shared by the log's encodings.

use bytes::{BufMut, BytesMut};

use super::record::RecordError;

/// Reads fields off the front of a slice; every shortfall is an error, never a panic.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn bytes(&mut self, len: usize) -> Result<&'a [u8], RecordError> {
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

    pub(super) fn u8(&mut self) -> Result<u8, RecordError> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn u32(&mut self) -> Result<u32, RecordError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, RecordError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// A count of things of at least `each` bytes: one that cannot fit in what is left is refused before anything
    /// is allocated for it.
    pub(super) fn count(&mut self, each: usize) -> Result<usize, RecordError> {
        let count = self.u32()? as usize;
        let need = count.saturating_mul(each);
        if need > self.rest.len() {
            return Err(RecordError::Short { need, have: self.rest.len() });
        }
        Ok(count)
    }

    pub(super) fn text(&mut self) -> Result<String, RecordError> {
        let len = self.u32()? as usize;
        let bytes = self.bytes(len)?;
        Ok(std::str::from_utf8(bytes).map_err(|_| RecordError::Text)?.to_owned())
    }

    /// Nothing may be left over: a longer record is a newer one, or a damaged one.
    pub(super) fn end(&self) -> Result<(), RecordError> {
        if self.rest.is_empty() { Ok(()) } else { Err(RecordError::Trailing { left: self.rest.len() }) }
    }
}

/// Writes a length. Lengths come from memory: one past `u32::MAX` cannot be met before memory ends, and would read
/// back as an error rather than as something else.
pub(super) fn put_len(out: &mut BytesMut, len: usize) {
    out.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
}

pub(super) fn put_text(out: &mut BytesMut, text: &str) {
    put_len(out, text.len());
    out.put_slice(text.as_bytes());
}
