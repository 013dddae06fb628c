//! Registration of local memory with the transports.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::area::MIN_IN_PLACE;
use super::areas::{Areas, ListedArea};
use super::error::{LostMemory, RegisterError};
use super::read_buffer::ReadBuffer;

/// Unit in which one-sided transports register memory.
const PAGE: usize = 4096;

/// Local memory that transfers read from and write to.
///
/// Memory that a transport [allocated](crate::Transport::allocate) is reached by stores, which take the bytes of writes out of it
/// by themselves: those of this host map it, and others read it by RDMA. Other memory is copied once more.
pub struct RegisteredMemory {
    base: NonNull<u8>,
    len: usize,
    /// Shared by the parts of one allocation.
    owner: Arc<Owner>,
}

enum Owner {
    /// Page-aligned memory allocated here.
    Pages { base: NonNull<u8>, layout: Layout },
    /// Memory that stores reach.
    Area(ListedArea),
    /// A vector moved in by the caller.
    Vec { base: NonNull<u8>, len: usize, capacity: usize },
    /// Memory that somebody else owns and frees.
    Borrowed,
}

/// Memory that is filled by reads: see [`RegisteredMemory::lend`].
#[derive(Debug)]
pub struct LentMemory {
    memory: RegisteredMemory,
}

// SAFETY: plain bytes, reached through `&self` for reading and `&mut self` for writing only. Parts of one allocation are
// apart.
unsafe impl Send for RegisteredMemory {}
// SAFETY: as above.
unsafe impl Sync for RegisteredMemory {}
// SAFETY: addresses, which only the drop uses.
unsafe impl Send for Owner {}
// SAFETY: as above.
unsafe impl Sync for Owner {}

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
        Ok(Self { base, len, owner: Arc::new(Owner::Pages { base, layout }) })
    }

    /// [`Self::allocate`], in memory that stores reach; in other memory if it is too little, or there are too many areas, or
    /// no descriptor.
    pub(crate) fn in_area(areas: &Arc<Areas>, len: usize) -> Result<Self, RegisterError> {
        if len < MIN_IN_PLACE {
            return Self::allocate(len);
        }
        match areas.allocate_listed(len) {
            Ok(area) => Ok(Self { base: area.area().base(), len, owner: Arc::new(Owner::Area(area)) }),
            Err(error) if error.kind() == io::ErrorKind::OutOfMemory => Err(RegisterError::OutOfMemory(len)),
            Err(error) => {
                tracing::debug!(%error, len, "cannot allocate a buffer that stores reach");
                Self::allocate(len)
            }
        }
    }

    /// Registers a vector's memory and takes it over.
    #[must_use]
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        let mut bytes = std::mem::ManuallyDrop::new(bytes);
        let base = NonNull::from(bytes.as_mut_slice()).cast();
        let (len, capacity) = (bytes.len(), bytes.capacity());
        Self { base, len, owner: Arc::new(Owner::Vec { base, len, capacity }) }
    }

    /// Registers memory that somebody else owns, such as a Python buffer.
    ///
    /// # Safety
    /// `base .. base + len` must stay valid, initialized and untouched by anybody else until the value, and every part that was
    /// [split off](Self::split_off), is dropped.
    #[must_use]
    pub unsafe fn from_raw_parts(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len, owner: Arc::new(Owner::Borrowed) }
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

    /// Keeps the first `at` bytes, and returns the others. The memory is freed with its last part.
    ///
    /// # Panics
    /// When there are fewer bytes.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(at <= self.len, "cannot split {} bytes at {at}", self.len);
        let len = self.len - at;
        self.len = at;
        // SAFETY: inside, or its end.
        Self { base: unsafe { self.base.add(at) }, len, owner: self.owner.clone() }
    }

    /// Whether [`Self::lend`] takes no time: either the memory was lent before, or nothing has to be registered.
    #[must_use]
    pub fn is_lent_at_once(&self) -> bool {
        match &*self.owner {
            Owner::Area(area) => area.is_lent_at_once(),
            Owner::Pages { .. } | Owner::Vec { .. } | Owner::Borrowed => true,
        }
    }

    /// Lends the memory to reads. If a transport has [allocated](crate::Transport::allocate) it, devices of stores write the bytes of
    /// reads by RDMA straight into it; otherwise these are copied out of buffers.
    ///
    /// An allocation that is lent for the first time, or after a read that failed, is registered with the local devices, which
    /// takes a second for some GiB. From then on, stores that this process has connected to could write to it: it is up to them not to do so unasked.
    #[must_use]
    pub fn lend(self) -> LentMemory {
        if let Owner::Area(area) = &*self.owner {
            area.lend();
        }
        LentMemory { memory: self }
    }
}

impl AsRef<[u8]> for RegisteredMemory {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl LentMemory {
    /// Returns the memory for reads to fill.
    #[must_use]
    pub fn buffer(&mut self) -> ReadBuffer<'_> {
        let RegisteredMemory { base, len, ref owner } = self.memory;
        // SAFETY: valid and initialized by construction, and `&mut self` makes it the only reference.
        let bytes = unsafe { std::slice::from_raw_parts_mut(base.as_ptr(), len) };
        match &**owner {
            Owner::Area(area) => ReadBuffer::lent(bytes, area.area()),
            Owner::Pages { .. } | Owner::Vec { .. } | Owner::Borrowed => bytes.into(),
        }
    }

    /// Ends the loan, and returns the memory.
    ///
    /// # Errors
    /// [`LostMemory`] if a device did not release the memory, so that bytes of a read may still arrive. It is leaked then, with the
    /// bytes that were read.
    pub fn take_back(self) -> Result<RegisteredMemory, LostMemory> {
        let Self { memory } = self;
        // The request that holds it keeps the area mapped.
        let is_free = match &*memory.owner {
            Owner::Area(area) => area.area().is_free(memory.base, memory.len),
            Owner::Pages { .. } | Owner::Vec { .. } | Owner::Borrowed => true,
        };
        if is_free { Ok(memory) } else { Err(LostMemory { len: memory.len }) }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        match *self {
            // SAFETY: allocated with this layout in `allocate`.
            Self::Pages { base, layout } => unsafe { dealloc(base.as_ptr(), layout) },
            Self::Vec { base, len, capacity } => {
                // SAFETY: the parts of the vector that `from_vec` took apart.
                drop(unsafe { Vec::from_raw_parts(base.as_ptr(), len, capacity) });
            }
            Self::Area(_) | Self::Borrowed => {}
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

    #[test]
    fn parts_of_an_allocation_are_apart_and_free_it_together() {
        let mut whole = RegisteredMemory::from_vec(vec![1, 2, 3, 4, 5]);
        let mut tail = whole.split_off(3);
        let end = tail.split_off(2);
        assert_eq!(
            (whole.as_slice(), tail.as_slice(), end.as_slice()),
            (&[1, 2, 3][..], &[4, 5][..], &[][..])
        );
        drop(whole);
        tail.as_mut_slice()[0] = 9;
        assert_eq!(tail.lend().take_back().unwrap().as_slice(), [9, 5]);
        let areas = Arc::new(Areas::default());
        let mut one = RegisteredMemory::in_area(&areas, 40_000).unwrap();
        let two = one.split_off(20_000);
        drop(one);
        assert!(areas.find(two.as_slice().as_ptr(), 20_000).is_some());
        let gone = areas.gone();
        let gone = gone.notified();
        drop(two);
        assert!(futures::FutureExt::now_or_never(gone).is_some(), "freed with its last part");
    }
}
