//! RDMA as far as transfers need it: devices, registered memory, reliable connected queue pairs with one-sided reads and
//! writes, and completion queues.
//!
//! The published crate `ibverbs` has no one-sided operations, so this is a layer over its sibling `ibverbs-sys`, the
//! bindings of libibverbs. It is the only crate that calls them. Without the feature `ibverbs` only what needs no device is
//! built: the [choice](choose) of a port and an address, and [the words](PinLimit) for memory that cannot be registered.
//!
//! Each value keeps what it is made of: a `QueuePair` its queues and its protection domain, a `Region` the memory
//! itself. So memory is given back only after the device has forgotten it.

mod choice;
#[cfg(feature = "ibverbs")]
mod device;
#[cfg(feature = "ibverbs")]
mod pair;
mod pin_limit;
#[cfg(feature = "ibverbs")]
mod queue;
#[cfg(feature = "ibverbs")]
mod region;
#[cfg(feature = "ibverbs")]
mod self_test;

pub use choice::{Choice, Gid, GidKind, LinkLayer, Marks, Path, Port, PortState, Wanted, choose};
#[cfg(feature = "ibverbs")]
pub use device::{Device, Domain, Event, Limits, VerbsError, device_names};
#[cfg(feature = "ibverbs")]
pub use pair::{Address, Capacity, Op, PostError, QueuePair, Sge, Timing, Work};
pub use pin_limit::PinLimit;
#[cfg(feature = "ibverbs")]
pub use queue::{Completion, CompletionQueue, Failure, Kind};
#[cfg(feature = "ibverbs")]
pub use region::{Access, Memory, Region, RegisterError};
#[cfg(feature = "ibverbs")]
pub use self_test::self_test;
