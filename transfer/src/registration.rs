//! Registration of local memory with the transports.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::shm::{Areas, ListedArea};

/// Unit in which one-sided transports register memory.
const PAGE: usize = 4096;

/// Local memory that transfers read from and write to.
///
/// Memory that a transport [allocated](crate::Transport::allocate) is shared with the stores of this host, which copy the bytes
/// of writes out of it. Other memory is copied once more.
pub struct RegisteredMemory {
    base: NonNull<u8>,
    len: usize,
    owner: Owner,
}

enum Owner {
    /// Page-aligned memory allocated here.
    Pages(Layout),
    /// Memory that stores of this host may map.
    Area { _area: ListedArea },
    /// A vector moved in by the caller.
    Vec { capacity: usize },
    /// Memory that somebody else owns and frees.
    Borrowed,
}

// SAFETY: plain bytes, reached through `&self` for reading and `&mut self` for writing only.
unsafe impl Send for RegisteredMemory {}
// SAFETY: as above.
unsafe impl Sync for RegisteredMemory {}

/// Why memory could not be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The allocator could not provide the memory.
    #[error("cannot allocate {0} bytes of transfer memory: register a smaller buffer")]
    OutOfMemory(usize),
}

impl RegisteredMemory {
    /// Allocates `len` zeroed, page-aligned bytes.
    ///
    /// # Errors
    /// [`RegisterError::OutOfMemory`] when the allocator cannot provide them.
    pub fn allocate(len: usize) -> Result<Self, RegisterError> {
        let layout =
            Layout::from_size_align(len.max(1), PAGE).map_err(|_| RegisterError::OutOfMemory(len))?;
        // SAFETY: the layout's size is at least 1.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(RegisterError::OutOfMemory(len))?;
        Ok(Self { base, len, owner: Owner::Pages(layout) })
    }

    /// [`Self::allocate`], in memory that stores of this host may map; in other memory if there are too many areas, or no
    /// descriptor.
    pub(crate) fn in_area(areas: &Arc<Areas>, len: usize) -> Result<Self, RegisterError> {
        match areas.allocate_listed(len) {
            Ok(area) => Ok(Self { base: area.base(), len, owner: Owner::Area { _area: area } }),
            Err(error) if error.kind() == io::ErrorKind::OutOfMemory => Err(RegisterError::OutOfMemory(len)),
            Err(error) => {
                tracing::debug!(%error, len, "a buffer is not shared with stores of this host");
                Self::allocate(len)
            }
        }
    }

    /// Registers a vector's memory and takes it over.
    #[must_use]
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        let mut bytes = std::mem::ManuallyDrop::new(bytes);
        let base = NonNull::from(bytes.as_mut_slice()).cast();
        Self { base, len: bytes.len(), owner: Owner::Vec { capacity: bytes.capacity() } }
    }

    /// Registers memory that somebody else owns, such as a Python buffer.
    ///
    /// # Safety
    /// `base .. base + len` must stay valid, initialized and untouched by anybody else until the value is dropped.
    #[must_use]
    pub unsafe fn from_raw_parts(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len, owner: Owner::Borrowed }
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: valid and initialized by construction; `&self` keeps writers of ours away.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    /// Returns the bytes for writing.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        match self.owner {
            // SAFETY: allocated with this layout in `allocate`.
            Owner::Pages(layout) => unsafe { dealloc(self.base.as_ptr(), layout) },
            Owner::Vec { capacity } => {
                // SAFETY: the parts of the vector that `from_vec` took apart.
                drop(unsafe { Vec::from_raw_parts(self.base.as_ptr(), self.len, capacity) });
            }
            Owner::Area { .. } | Owner::Borrowed => {}
        }
    }
}

impl fmt::Debug for RegisteredMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredMemory").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_three_forms_are_the_bytes_they_were_made_of() {
        let mut pages = RegisteredMemory::allocate(5000).unwrap();
        assert!(pages.as_slice().iter().all(|byte| *byte == 0));
        assert_eq!(pages.as_slice().as_ptr() as usize % PAGE, 0);
        pages.as_mut_slice()[4999] = 7;
        assert_eq!(pages.as_slice()[4999], 7);

        assert_eq!(RegisteredMemory::from_vec(vec![1, 2, 3]).as_slice(), [1, 2, 3]);
        assert!(RegisteredMemory::from_vec(Vec::new()).as_slice().is_empty());

        let mut theirs = [1u8, 2, 3];
        // SAFETY: `theirs` outlives the registration and is not touched meanwhile.
        let mut registered =
            unsafe { RegisteredMemory::from_raw_parts(NonNull::from(&mut theirs).cast(), 3) };
        registered.as_mut_slice()[0] = 9;
        drop(registered);
        assert_eq!(theirs, [9, 2, 3]);
        assert!(RegisteredMemory::allocate(0).unwrap().as_slice().is_empty());
        assert!(RegisteredMemory::allocate(usize::MAX).is_err());
    }
}
