//! Registered memory.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::abi;
use crate::device::{Device, Domain};
use crate::pin_limit::PinLimit;

/// Memory that can be registered.
///
/// # Safety
/// [`Self::range`] must return the same mapped memory each time, and it must stay mapped until the value is dropped. A
/// device writes there behind the compiler's back, so nobody may use a reference to bytes that it was asked to write to, by a peer
/// or a request of this process, before that has ended.
pub unsafe trait Memory: Send + Sync + 'static {
    /// Returns the first byte, and the number of bytes.
    fn range(&self) -> (NonNull<u8>, usize);
}

/// Accesses that a region permits, besides sending from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads of this process write to it.
    Local,
    /// Peers that know its key read it.
    RemoteRead,
    /// Peers that know its key read it and write to it.
    Remote,
}

/// Why memory could not be registered.
#[derive(Debug, thiserror::Error)]
#[error("RDMA device {device}: cannot register {bytes} bytes: {source}{why}")]
pub struct RegisterError {
    /// Name of the device.
    pub device: String,
    /// Size of the memory in bytes.
    pub bytes: usize,
    /// The system's error.
    pub source: io::Error,
    /// Cause and advice, appended to the text of the error; empty if unknown.
    pub why: String,
}

impl RegisterError {
    fn new(device: &Device, bytes: usize, source: io::Error) -> Self {
        let most = device.limits().map_or(u64::MAX, |limits| limits.region_bytes);
        let why = if bytes as u64 > most {
            format!(": the device registers at most {most} bytes at once")
        } else if source.kind() == io::ErrorKind::OutOfMemory {
            format!(": {}", PinLimit::of_this_process())
        } else {
            String::new()
        };
        Self { device: device.name().to_owned(), bytes, source, why }
    }
}

/// Memory registered with a device. It is registered until the value is dropped, and kept as long.
pub struct Region {
    region: NonNull<abi::ibv_mr>,
    domain: Arc<Domain>,
    /// `None` once it was leaked, because the device did not release it.
    memory: Option<Arc<dyn Memory>>,
}

// SAFETY: the region is only read here; libibverbs serializes its end.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Registers memory, which pins it: some GiB take a second.
    ///
    /// # Errors
    /// [`RegisterError`], which says what limits it.
    pub fn new(domain: &Arc<Domain>, memory: Arc<dyn Memory>, access: Access) -> Result<Self, RegisterError> {
        let (base, len) = memory.range();
        let (local, read, write) =
            (abi::IBV_ACCESS_LOCAL_WRITE, abi::IBV_ACCESS_REMOTE_READ, abi::IBV_ACCESS_REMOTE_WRITE);
        let flags = match access {
            Access::Local => local,
            Access::RemoteRead => read,
            Access::Remote => local | read | write,
        };
        // SAFETY: a live domain, and memory that is mapped as long as this value holds it.
        let region = unsafe {
            (domain.device().verbs().ibv_reg_mr)(domain.as_ptr(), base.as_ptr().cast(), len, flags as i32)
        };
        let source = io::Error::last_os_error();
        let region = NonNull::new(region).ok_or_else(|| RegisterError::new(domain.device(), len, source))?;
        Ok(Self { region, domain: domain.clone(), memory: Some(memory) })
    }

    /// Address of the first byte, as peers and requests name it.
    #[must_use]
    pub fn address(&self) -> u64 {
        // SAFETY: registered, so the structure is there.
        unsafe { self.region.as_ref() }.addr as u64
    }

    /// Length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "there is no use for an empty region")]
    pub fn len(&self) -> usize {
        // SAFETY: as above.
        unsafe { self.region.as_ref() }.length
    }

    /// Key for requests of this process.
    #[must_use]
    pub fn local_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.region.as_ref() }.lkey
    }

    /// Key for peers.
    #[must_use]
    pub fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.region.as_ref() }.rkey
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: registered in `new`.
        let done = unsafe { (self.domain.device().verbs().ibv_dereg_mr)(self.region.as_ptr()) };
        if done != 0 {
            // The device may still write there, so this memory must not be used for anything else.
            std::mem::forget(self.memory.take());
            let (device, error) = (self.domain.device().name(), io::Error::from_raw_os_error(done));
            tracing::error!(device, %error, "cannot deregister memory: it stays pinned until this process ends");
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("device", &self.domain.device().name())
            .field("len", &self.len())
            .finish()
    }
}
