//! A store's segment, mapped to be read.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};

/// A mapping of all of a segment.
pub(super) struct Map {
    base: NonNull<u8>,
    len: u64,
}

// SAFETY: the mapping lives as long as the value, and is only read.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps a segment of `len` bytes. It must have that size, and be sealed against shrinking: reading past the end of a file
    /// kills the process.
    pub(super) fn new(descriptor: &OwnedFd, len: u64) -> io::Result<Self> {
        let refused = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        let there = rustix::fs::fstat(descriptor)?.st_size;
        if u64::try_from(there) != Ok(len) || len == 0 {
            return Err(refused(format!("it has {there} bytes, and the store says {len}")));
        }
        if !rustix::fs::fcntl_get_seals(descriptor)?.contains(rustix::fs::SealFlags::SHRINK) {
            return Err(refused("it is not sealed against shrinking".to_owned()));
        }
        let map_len = usize::try_from(len).map_err(io::Error::other)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(ptr::null_mut(), map_len, libc::PROT_READ, libc::MAP_SHARED, descriptor.as_raw_fd(), 0)
        };
        match NonNull::new(base.cast::<u8>()) {
            Some(base) if base.as_ptr().cast() != libc::MAP_FAILED => Ok(Self { base, len }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Copies bytes out. Those that the store writes meanwhile come out torn.
    ///
    /// # Panics
    /// When they are not inside.
    pub(super) fn read(&self, from: u64, into: &mut [u8]) {
        let end = from.checked_add(into.len() as u64);
        assert!(end.is_some_and(|end| end <= self.len), "{} bytes at {from} of {}", into.len(), self.len);
        // SAFETY: inside the mapping, and apart from `into`. No reference to the mapping is formed, and the copy is done by
        // the C library, so that other processes may write there: what comes out is only used once the store says that it is good.
        unsafe {
            libc::memcpy(into.as_mut_ptr().cast(), self.base.as_ptr().add(from as usize).cast(), into.len());
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nobody else has the address of.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len as usize) };
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, SealFlags};

    use super::*;
    use crate::segment::Segment;

    #[test]
    fn a_segment_is_mapped_and_nothing_that_could_shrink() {
        let segment = Segment::allocate(0, 70_000, &mut |_| {}).unwrap();
        let theirs = segment.shared().unwrap().try_clone_to_owned().unwrap();
        let map = Map::new(&theirs, 70_000).unwrap();
        segment.corrupt(69_999).unwrap();
        let mut bytes = [7; 2];
        map.read(69_998, &mut bytes);
        assert_eq!(bytes, [0, 255]);
        assert!(Map::new(&theirs, 70_001).is_err(), "another size");
        let open = rustix::fs::memfd_create("open", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&open, 4096).unwrap();
        assert!(Map::new(&open, 4096).is_err(), "not sealed");
        rustix::fs::fcntl_add_seals(&open, SealFlags::SHRINK).unwrap();
        assert!(Map::new(&open, 4096).is_ok());
    }
}
