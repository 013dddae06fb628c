//! A master's data directory: its identity, the space of its disk, and what a departure and a rescue do to it.
//!
//! `departed` and `rescue` use `identity`.

pub(crate) mod departed;
mod disk;
mod identity;
pub(crate) mod rescue;

pub(crate) use disk::{DataDisk, DiskShortage, Holdings};
pub use identity::IdentityError;
#[cfg(feature = "testing")]
pub(crate) use identity::fuzz;
pub(crate) use identity::{Belonging, IdentityFile};
pub use rescue::{Prepared, Rescue, RescueError, Rescued};
