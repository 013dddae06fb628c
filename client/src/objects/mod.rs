//! Calls on objects: get, put, exist, size, describe, list, remove, one by one and many at once.

mod avoid;
mod batch;
mod core;
mod describe;
mod destination;
mod exist;
mod get;
mod keys;
mod list;
mod publish;
mod put;
mod range;
mod removal;
mod report;
mod round;
mod session;

pub use describe::{DescribedGroup, DescribedReplica, Description, Pin};
pub use exist::Presence;
pub use get::Source;
pub use list::{KeyPage, ListPosition, ListedKey};
pub use range::ByteRange;
pub use removal::Removed;

pub(crate) use self::core::{Core, Follow, Lanes, device_error, item_error, nonsense};
pub(crate) use avoid::AvoidList;
pub(crate) use destination::{Destination, Got};
#[cfg(feature = "testing")]
pub(crate) use exist::read_presences;
pub(crate) use exist::{Asked, Lease};
pub(crate) use publish::publish;
pub(crate) use put::Fill;
pub(crate) use round::PutItem;
#[cfg(feature = "testing")]
pub(crate) use round::{Pending, Refused, Round, Written};
pub(crate) use session::{OpenPut, Opened, RangeWrite};
