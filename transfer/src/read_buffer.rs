//! Memory that reads fill.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::LostMemory;
use crate::areas::{Loan, Reached};

/// Memory that a read fills: borrowed bytes, or a part of [lent memory](crate::LentMemory).
///
/// Bytes of lent memory are given out only while no device of a store may write there. A future that is dropped sees to that;
/// one that is leaked does not, nor does a device that can't be stopped.
pub struct ReadBuffer<'a> {
    base: NonNull<u8>,
    len: usize,
    /// `None` for borrowed bytes.
    loan: Option<&'a Arc<Loan>>,
    bytes: PhantomData<&'a mut [u8]>,
}

// SAFETY: as `&mut [u8]`.
unsafe impl Send for ReadBuffer<'_> {}
// SAFETY: as `&mut [u8]`.
unsafe impl Sync for ReadBuffer<'_> {}

impl<'a> From<&'a mut [u8]> for ReadBuffer<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        Self { len: bytes.len(), base: NonNull::from(bytes).cast(), loan: None, bytes: PhantomData }
    }
}

impl<'a, const N: usize> From<&'a mut [u8; N]> for ReadBuffer<'a> {
    fn from(bytes: &'a mut [u8; N]) -> Self {
        bytes.as_mut_slice().into()
    }
}

impl<'a> From<&'a mut Vec<u8>> for ReadBuffer<'a> {
    fn from(bytes: &'a mut Vec<u8>) -> Self {
        bytes.as_mut_slice().into()
    }
}

impl<'a> ReadBuffer<'a> {
    /// A buffer of lent memory.
    pub(crate) fn lent(bytes: &'a mut [u8], loan: Option<&'a Arc<Loan>>) -> Self {
        Self { loan, ..bytes.into() }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.base.as_ptr()
    }

    /// Returns the same bytes for a while.
    #[must_use]
    pub fn reborrow(&mut self) -> ReadBuffer<'_> {
        ReadBuffer { base: self.base, len: self.len, loan: self.loan, bytes: PhantomData }
    }

    /// Cuts it in two.
    ///
    /// # Panics
    /// When `at` is more than the length.
    #[must_use]
    pub fn split_at(self, at: usize) -> (Self, Self) {
        assert!(at <= self.len, "cannot split {} bytes at {at}", self.len);
        // SAFETY: inside, or its end.
        let base = unsafe { self.base.add(at) };
        let tail = Self { base, len: self.len - at, ..self };
        (Self { len: at, ..self }, tail)
    }

    /// Returns the bytes.
    ///
    /// # Errors
    /// [`LostMemory`] while a device may write there.
    pub fn as_mut_slice(&mut self) -> Result<&mut [u8], LostMemory> {
        if self.is_free() { Ok(self.slice_mut()) } else { Err(LostMemory { len: self.len }) }
    }

    /// Whether no device may write there. A transport asks once, before a read.
    pub(crate) fn is_free(&self) -> bool {
        self.loan.is_none_or(|loan| loan.is_free(self.base, self.len))
    }

    /// Lets devices write there as long as the result exists; `None` if they don't reach it.
    pub(crate) fn reach(&self) -> Option<Reached> {
        self.loan?.reach(self.base, self.len)
    }

    /// The bytes, for a transport that has found them [free](Self::is_free), and reads them only after the store has answered.
    pub(crate) fn slice(&self) -> &[u8] {
        // SAFETY: valid and initialized by construction, and borrowed for the whole of this value's life.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    /// [`Self::slice`], for writing.
    pub(crate) fn slice_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl fmt::Debug for ReadBuffer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadBuffer").field("len", &self.len).field("lent", &self.loan.is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_buffer_are_its_bytes() {
        let mut bytes = [1, 2, 3, 4, 5];
        let mut whole = ReadBuffer::from(&mut bytes);
        assert_eq!(whole.reborrow().slice(), [1, 2, 3, 4, 5]);
        let (mut head, tail) = whole.split_at(2);
        head.as_mut_slice().unwrap().fill(9);
        let (middle, mut end) = tail.split_at(3);
        assert!(end.is_empty() && end.as_mut_slice().unwrap().is_empty());
        assert_eq!((middle.len(), middle.slice()), (3, &[3, 4, 5][..]));
        assert_eq!(bytes, [9, 9, 3, 4, 5]);
    }
}
