//! RDMA as far as transfers need it: devices, registered memory, reliable connected queue pairs with one-sided reads and
//! writes, and completion queues.
//!
//! libibverbs is opened when a process first looks for devices, so an executable starts without it (ADR 0014). Only this crate
//! calls it.
//!
//! Each value keeps what it is made of: a `QueuePair` its queues and its protection domain, a `Region` the memory
//! itself. So memory is given back only after the device has forgotten it.

mod abi;
mod choice;
mod device;
mod error;
mod library;
mod pair;
mod pin_limit;
mod queue;
mod region;
mod self_test;

pub use choice::{Choice, Gid, GidKind, LinkLayer, Marks, Path, Port, PortState, Wanted, choose};
pub use device::{Device, Domain, Event, Limits, device_names};
pub use error::VerbsError;
pub use pair::{Address, Capacity, Op, PostError, QueuePair, Sge, Timing, Work};
pub use pin_limit::PinLimit;
pub use queue::{Completion, CompletionQueue, Failure, Kind};
pub use region::{Access, Memory, Region, RegisterError};
pub use self_test::self_test;
