//! Memory that writes take their bytes from.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;

use mc_cuda::Device;

use super::raw_bytes::RawBytes;
use crate::checksum::{Checksum, RunningChecksum};

/// Bytes of a write: borrowed, or [raw](RawBytes). They are reached by copies, and by steps of a checksum.
#[derive(Clone, Copy)]
pub struct WriteBuffer<'a> {
    base: NonNull<u8>,
    len: usize,
    device: Option<Device>,
    bytes: PhantomData<&'a [u8]>,
}

// SAFETY: as `&[u8]`, or as `RawBytes`.
unsafe impl Send for WriteBuffer<'_> {}
// SAFETY: as above.
unsafe impl Sync for WriteBuffer<'_> {}

impl<'a> From<&'a [u8]> for WriteBuffer<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self { base: NonNull::from(bytes).cast(), len: bytes.len(), device: None, bytes: PhantomData }
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for WriteBuffer<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        bytes.as_slice().into()
    }
}

impl<'a> From<&'a Vec<u8>> for WriteBuffer<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        bytes.as_slice().into()
    }
}

impl From<RawBytes> for WriteBuffer<'_> {
    fn from(bytes: RawBytes) -> Self {
        Self { base: bytes.base(), len: bytes.len(), device: bytes.device(), bytes: PhantomData }
    }
}

impl WriteBuffer<'_> {
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
        self.device.is_some()
    }

    pub(crate) fn device(&self) -> Option<Device> {
        self.device
    }

    /// The bytes, by their address.
    pub(crate) fn raw(&self) -> RawBytes {
        RawBytes::of_buffer(self.base, self.len, self.device)
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
        (Self { len: at, ..self }, Self { base, len: self.len - at, ..self })
    }

    /// Cuts it into parts of `size` bytes, of which the last may be shorter.
    pub(crate) fn chunks(self, size: usize) -> impl Iterator<Item = Self> {
        let mut rest = self;
        std::iter::from_fn(move || {
            let (now, later) = rest.split_at(size.min(rest.len));
            rest = later;
            (!now.is_empty()).then_some(now)
        })
    }

    /// Adds a copy of the bytes to `to`.
    ///
    /// # Panics
    /// When they lie in memory of a device.
    pub fn append_to(&self, to: &mut Vec<u8>) {
        assert!(!self.is_of_device(), "memory of a device");
        to.reserve(self.len);
        let end = to.len();
        // SAFETY: the bytes are readable, there is room for them, and they are set before they count.
        unsafe {
            libc::memcpy(to.as_mut_ptr().add(end).cast(), self.base.as_ptr().cast(), self.len);
            to.set_len(end + self.len);
        }
    }

    /// Computes the checksum of the bytes.
    ///
    /// # Panics
    /// When they lie in memory of a device.
    #[must_use]
    pub fn checksum(&self) -> Checksum {
        assert!(!self.is_of_device(), "memory of a device");
        Checksum::of(self.step())
    }

    /// Adds the bytes to a checksum.
    pub(crate) fn add_to(&self, sum: &mut RunningChecksum) {
        sum.update(self.step());
    }

    /// Copies the bytes to memory of our own.
    ///
    /// # Safety
    /// There must be room, apart from the bytes.
    pub(crate) unsafe fn copy_to(&self, to: *mut u8) {
        // SAFETY: the bytes are readable, and the caller vouches for the rest.
        unsafe { libc::memcpy(to.cast(), self.base.as_ptr().cast(), self.len) };
    }

    /// The bytes, for one step that reads them and ends.
    fn step(&self) -> &[u8] {
        // SAFETY: readable and initialized by construction. Nobody writes to borrowed bytes; `RawBytes` says what comes of it if
        // somebody does to raw ones.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl fmt::Debug for WriteBuffer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteBuffer").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_buffer_are_its_bytes() {
        let bytes = [1, 2, 3, 4, 5];
        let whole = WriteBuffer::from(&bytes);
        let content = |buffer: WriteBuffer<'_>| {
            let mut copy = vec![9];
            buffer.append_to(&mut copy);
            copy.split_off(1)
        };
        let parts: Vec<_> = whole.chunks(2).map(content).collect();
        assert_eq!(parts, [&[1, 2][..], &[3, 4], &[5]]);
        let (head, tail) = whole.split_at(5);
        assert_eq!((content(head), tail.len(), tail.chunks(2).count()), (bytes.to_vec(), 0, 0));
        assert_eq!(whole.checksum(), Checksum::of(&bytes));
    }
}
