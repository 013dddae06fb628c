//! Memory that bytes are moved from and to: what a store lends, and what a client has.
//!
//! The buffers of callers (`raw_bytes`, `write_buffer`, `read_buffer`) and shared mappings (`mapping`) are below all else. A store
//! lends a `segment`, with its `stamps`. A client's memory is found by its addresses in `areas`, and registered with RDMA devices
//! in `exposures`.

mod area;
mod areas;
mod error;
mod exposures;
mod host_memory;
mod limit;
mod mapping;
mod raw_bytes;
mod reached;
mod read_buffer;
mod registration;
mod segment;
mod stamps;
mod write_buffer;

pub(crate) use self::area::Area;
pub(crate) use self::areas::Areas;
pub use self::error::{DeviceError, LostMemory, RegisterError};
pub(crate) use self::exposures::Exposures;
pub use self::host_memory::HostMemory;
pub(crate) use self::limit::of_machine;
pub(crate) use self::mapping::{Mapping, Protection, memory_file};
pub use self::raw_bytes::RawBytes;
pub(crate) use self::reached::Reached;
pub use self::read_buffer::ReadBuffer;
pub use self::registration::{LentMemory, RegisteredMemory};
pub use self::segment::{AllocateError, Segment};
pub(crate) use self::stamps::{Stamps, newest, stamps_len};
pub use self::write_buffer::WriteBuffer;
