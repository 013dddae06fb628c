//! Calls on keys that move no bytes: exist, describe, list, remove.

mod describe;
mod exist;
mod list;
mod remove;

pub use describe::{DescribedGroup, DescribedReplica, Description, Pin};
pub use exist::Presence;
pub use list::{KeyPage, ListPosition, ListedKey};
pub use remove::Removed;

#[cfg(feature = "testing")]
pub(crate) use exist::read_presences;
