//! Why memory can't be used.

use std::fmt;
use std::ops::Range;

use mc_cuda::{CudaError, Device};

/// Why memory could not be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The allocator could not provide the memory.
    #[error("cannot allocate {0} bytes of transfer memory: register a smaller buffer")]
    OutOfMemory(usize),
    /// The address is null.
    #[error("cannot register memory at address 0: that is no memory")]
    Null,
    /// The length is 0, or the memory would not end inside the address space.
    #[error(
        "cannot register {len} bytes at {address:#x}: register at least one byte, and no more than there are"
    )]
    Length {
        /// Address that was named.
        address: usize,
        /// Number of bytes that was named.
        len: usize,
    },
    /// Some of the memory is registered, or was allocated here.
    #[error(
        "cannot register the memory from {:#x} to {:#x}: that from {:#x} to {:#x} is registered already. Unregister it first, or \
         register what is beside it",
        asked.start, asked.end, there.start, there.end
    )]
    Overlap {
        /// Addresses that were named.
        asked: Range<usize>,
        /// Addresses that are registered.
        there: Range<usize>,
    },
    /// The memory is a device's, which calls take as it is.
    #[error(
        "cannot register the {len} bytes at {address:#x}: they are memory of {device}, whose bytes go through buffers in host memory"
    )]
    OfDevice {
        /// Address that was named.
        address: usize,
        /// Number of bytes.
        len: usize,
        /// The device.
        device: String,
    },
    /// The driver of CUDA does not say whether the memory is a device's.
    #[error("cannot register the memory at {address:#x}: {why}")]
    Unlocated {
        /// Address that was named.
        address: usize,
        /// Why not.
        why: DeviceError,
    },
    /// No registered memory begins there.
    #[error("cannot unregister the memory at {address:#x}: none was registered with this address")]
    Unknown {
        /// Address that was named.
        address: usize,
    },
    /// A call uses the memory, or it is being registered with a device.
    #[error("cannot unregister the {len} bytes at {address:#x} while a call uses them: try again after it")]
    InUse {
        /// Address that was named.
        address: usize,
        /// Number of bytes.
        len: usize,
    },
}

/// Memory that a device of a store may still write to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes of memory are lost until this process ends: an RDMA device did not release them")]
pub struct LostMemory {
    /// Number of lost bytes.
    pub len: usize,
}

/// Memory of a device could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct DeviceError {
    what: String,
}

impl DeviceError {
    pub(crate) fn new(why: impl fmt::Display) -> Self {
        Self { what: why.to_string() }
    }

    pub(crate) fn at(device: Device, why: &CudaError) -> Self {
        Self::of_driver(format_args!("{device}: {why}"))
    }

    pub(crate) fn of_driver(why: impl fmt::Display) -> Self {
        let advice =
            "check the GPU (nvidia-smi), and that its memory stays allocated until the call has returned";
        Self::new(format_args!("{why}; {advice}"))
    }
}
