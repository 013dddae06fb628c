//! Memory that bytes are moved from and to: what a store lends, and what a client has.
//!
//! Imports go down this list only:
//! - Segments that are `kept` outlive the process of their store.
//! - A store lends a `segment`, with its `stamps`, or its `page` if it is kept.
//! - A client allocates and registers `host_memory`, as `registration`s.
//! - `reached` finds the bytes of a call where the devices of stores reach them; `areas` finds memory by its addresses.
//! - `exposures` are the registrations of each `area` with the devices of `rdma`, and `staging` memory is registered with them for good.
//! - `exposed` and `registered` are single registrations with the `rdma_devices`.
//! - `mapping`s of memory files, the buffers of callers, and the errors of all.

mod area;
mod areas;
mod error;
mod exposed;
mod exposures;
mod host_memory;
mod kept;
mod limit;
mod mapping;
mod page;
mod raw_bytes;
mod rdma;
mod rdma_devices;
mod reached;
mod read_buffer;
mod registered;
mod registration;
mod segment;
mod staging;
mod stamps;
mod write_buffer;

pub(crate) use self::area::Area;
pub(crate) use self::areas::Areas;
pub use self::error::{DeviceError, LostMemory, RegisterError};
pub(crate) use self::exposures::Exposures;
pub use self::host_memory::HostMemory;
pub use self::kept::{KeptMemory, NotKept, SegmentDir, SegmentDirError};
pub(crate) use self::limit::of_machine;
pub(crate) use self::mapping::Mapping;
#[cfg(test)]
pub(crate) use self::mapping::{Protection, memory_file};
pub use self::raw_bytes::RawBytes;
pub use self::rdma::Rdma;
pub(crate) use self::rdma_devices::{BLANK_LEN, Devices};
pub use self::rdma_devices::{
    DeviceReport, NoRdma, ParseRdmaDevicesError, ParseRdmaOptionsError, RdmaDevices, RdmaOptions,
};
pub(crate) use self::reached::Reached;
pub use self::read_buffer::ReadBuffer;
pub use self::registration::{LentMemory, RegisteredMemory};
pub use self::segment::{AllocateError, Segment};
pub(crate) use self::staging::Staging;
pub(crate) use self::stamps::{Stamps, newest, stamps_len};
pub use self::write_buffer::WriteBuffer;
