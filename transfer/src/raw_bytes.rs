#![allow(unsafe_code)]

use std::ptr::NonNull;

/// Memory that is named by its address, for callers that can't borrow it: another thread may read it or write to it during a call, and
/// parts of one call may overlap.
///
/// # Rules
///
/// - The memory is the caller's. It stays mapped until the call has returned or its future is dropped; of a future that is leaked
///   rather than dropped, for ever. A transport touches it at no other time.
/// - Bytes that change while they are read, or are written by two sides at once, are an arbitrary mixture of both and nothing worse:
///   a transport takes no decision by their values and keeps no reference to them between two steps of a call. The kernel and
///   the C library copy them. Only a step that adds bytes to a checksum, mostly up to 128 KiB of them, reads them through a slice of its own; strictly, the
///   language leaves that step undefined if another thread writes there at that moment. It has no branch and, but for a table
///   of 256 entries, no address that depends on the bytes.
/// - A value that changed during its put has a checksum that does not match, or is one mixture with its checksum. A get finds that
///   out unless checksums are off. A destination that changed during its get may make it miss.
/// - If a device of RDMA that was writing there fails and can't be stopped, which none is known to do, this process ends: nothing
///   else keeps the first rule.
#[derive(Clone, Copy, Debug)]
pub struct RawBytes {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address and a length. `new` demands that every thread may use the memory.
unsafe impl Send for RawBytes {}
// SAFETY: as above.
unsafe impl Sync for RawBytes {}

impl RawBytes {
    /// Names `len` bytes at `base`.
    ///
    /// # Safety
    /// From the first call that gets the value until the last one has ended as the rules above say:
    /// - The bytes are mapped and initialized, readable from every thread, and writable if they are a destination.
    /// - They are part of one allocation or mapping, and `len` is at most [`isize::MAX`].
    /// - No Rust reference to them is used: neither a `&mut [u8]`, nor a `&[u8]` to a destination or to what another thread
    ///   writes.
    #[must_use]
    pub const unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len }
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte.
    #[must_use]
    pub const fn as_ptr(&self) -> *const u8 {
        self.base.as_ptr()
    }

    /// Address of the first byte.
    pub(crate) const fn base(self) -> NonNull<u8> {
        self.base
    }
}
