//! Memory that reads fill.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use mc_cuda::Device;

use super::area::Area;
use super::error::LostMemory;
use super::mapping::Mapping;
use super::raw_bytes::RawBytes;
use crate::checksum::{Checksum, RunningChecksum};

/// Memory that a read fills: borrowed bytes, [raw ones](RawBytes), or a part of [lent memory](crate::LentMemory).
///
/// Bytes of lent memory are filled only while no device of a store may write there. Dropping a future ends such writes.
/// A leaked future does not, and neither does a device that can't be stopped.
pub struct ReadBuffer<'a> {
    base: NonNull<u8>,
    len: usize,
    filled: Filled<'a>,
    bytes: PhantomData<&'a mut [u8]>,
}

/// Whose memory a read fills.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Filled<'a> {
    Borrowed,
    /// Lent memory. Devices of stores may write to it, unless a write for another read may still arrive.
    Lent(&'a Area),
    /// Raw memory. Devices of stores may write to it, too.
    Raw,
    /// Memory of a device of this process. No device of a store can write to it.
    Device(Device),
}

// SAFETY: as `&mut [u8]`, or as `RawBytes`.
unsafe impl Send for ReadBuffer<'_> {}
// SAFETY: as above.
unsafe impl Sync for ReadBuffer<'_> {}

impl<'a> From<&'a mut [u8]> for ReadBuffer<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        Self {
            len: bytes.len(),
            base: NonNull::from(bytes).cast(),
            filled: Filled::Borrowed,
            bytes: PhantomData,
        }
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

impl From<RawBytes> for ReadBuffer<'_> {
    fn from(bytes: RawBytes) -> Self {
        let filled = bytes.device().map_or(Filled::Raw, Filled::Device);
        Self { base: bytes.base(), len: bytes.len(), filled, bytes: PhantomData }
    }
}

impl<'a> ReadBuffer<'a> {
    /// A buffer of lent memory.
    pub(crate) fn lent(bytes: &'a mut [u8], area: &'a Area) -> Self {
        Self { filled: Filled::Lent(area), ..bytes.into() }
    }

    pub(crate) fn filled(&self) -> Filled<'a> {
        self.filled
    }

    /// Address of the first byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
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

    /// Whether the bytes lie in memory of a device. Then only a [`StagedTransport`](crate::StagedTransport) can reach them.
    #[must_use]
    pub fn is_of_device(&self) -> bool {
        self.device().is_some()
    }

    pub(crate) fn device(&self) -> Option<Device> {
        if let Filled::Device(device) = self.filled { Some(device) } else { None }
    }

    /// The bytes, by their address.
    pub(crate) fn raw(&mut self) -> RawBytes {
        RawBytes::of_buffer(self.base, self.len, self.device())
    }

    /// Returns the same bytes for a while.
    #[must_use]
    pub fn reborrow(&mut self) -> ReadBuffer<'_> {
        ReadBuffer { base: self.base, len: self.len, filled: self.filled, bytes: PhantomData }
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

    /// Fills all of it.
    ///
    /// # Errors
    /// [`LostMemory`] while a device may write there.
    ///
    /// # Panics
    /// When `bytes` has another length, or this lies in memory of a device.
    pub fn fill(&mut self, bytes: &[u8]) -> Result<(), LostMemory> {
        assert!(!self.is_of_device(), "memory of a device");
        assert_eq!(bytes.len(), self.len, "other lengths");
        if !self.is_free() {
            return Err(LostMemory { len: self.len });
        }
        self.put(0, bytes);
        Ok(())
    }

    /// Computes the checksum of the bytes that lie there.
    ///
    /// # Errors
    /// [`LostMemory`] while a device may write there.
    ///
    /// # Panics
    /// When this lies in memory of a device.
    pub fn checksum(&self) -> Result<Checksum, LostMemory> {
        assert!(!self.is_of_device(), "memory of a device");
        if !self.is_free() {
            return Err(LostMemory { len: self.len });
        }
        Ok(Checksum::of(self.step(0..self.len)))
    }

    /// Whether no device may write there. A transport asks once, before a read.
    pub(crate) fn is_free(&self) -> bool {
        match self.filled {
            Filled::Lent(area) => area.is_free(self.base, self.len),
            Filled::Borrowed | Filled::Raw | Filled::Device(_) => true,
        }
    }

    /// Copies bytes in, for a transport that has found the memory [free](Self::is_free).
    ///
    /// # Panics
    /// When they would not be inside.
    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) {
        assert!(
            at <= self.len && bytes.len() <= self.len - at,
            "{} bytes to {at} of {}",
            bytes.len(),
            self.len
        );
        // SAFETY: inside of memory that is writable by construction. Bytes that the library received are never the caller's, but
        // nothing depends on that.
        unsafe { libc::memmove(self.base.add(at).as_ptr().cast(), bytes.as_ptr().cast(), bytes.len()) };
    }

    /// Fills all of it from a mapping, from its byte `from` on. Bytes that others write meanwhile come out torn.
    ///
    /// # Panics
    /// When they are not inside.
    pub(crate) fn fill_from(&mut self, mapping: &Mapping, from: u64) {
        let len = self.len;
        assert!(mapping.contains(from, len as u64), "{len} bytes at {from} of {}", mapping.len());
        // SAFETY: inside the mapping, and apart from this buffer. The C library does the copy, so that no reference to the
        // mapping is formed.
        unsafe { libc::memcpy(self.base.as_ptr().cast(), mapping.at(from).cast(), len) };
    }

    /// Adds bytes to a checksum, for a transport that has put all of them there.
    ///
    /// # Panics
    /// When they are not inside.
    pub(crate) fn add_to(&self, bytes: Range<usize>, sum: &mut RunningChecksum) {
        sum.update(self.step(bytes));
    }

    /// Bytes for one step that reads them and ends.
    fn step(&self, bytes: Range<usize>) -> &[u8] {
        assert!(bytes.start <= bytes.end && bytes.end <= self.len, "{bytes:?} of {}", self.len);
        // SAFETY: inside of memory that is readable and initialized by construction. Nobody else writes to borrowed or lent bytes;
        // `RawBytes` says what comes of it if somebody does to raw ones.
        unsafe { std::slice::from_raw_parts(self.base.add(bytes.start).as_ptr(), bytes.end - bytes.start) }
    }

    /// Address of the first byte, for a copy of at most all of it.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Cuts it into parts of `size` bytes, of which the last may be shorter.
    pub(crate) fn chunks_mut(&mut self, size: usize) -> impl Iterator<Item = ReadBuffer<'_>> {
        let mut rest = Some(self.reborrow());
        std::iter::from_fn(move || {
            let whole = rest.take().filter(|rest| !rest.is_empty())?;
            let at = size.min(whole.len);
            let (now, later) = whole.split_at(at);
            rest = Some(later);
            Some(now)
        })
    }
}

impl fmt::Debug for ReadBuffer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadBuffer").field("len", &self.len).field("filled", &self.filled).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_buffer_are_its_bytes() {
        let mut bytes = [1, 2, 3, 4, 5];
        let whole = ReadBuffer::from(&mut bytes);
        let (mut head, tail) = whole.split_at(2);
        head.fill(&[9, 9]).unwrap();
        let (mut middle, mut end) = tail.split_at(3);
        assert!(end.is_empty() && end.fill(&[]).is_ok());
        let lens: Vec<_> = middle.chunks_mut(2).map(|part| part.len()).collect();
        assert_eq!((middle.len(), lens), (3, vec![2, 1]));
        middle.chunks_mut(2).last().unwrap().put(0, &[7]);
        assert_eq!(bytes, [9, 9, 3, 4, 7]);
    }
}
