//! Gets: of whole objects and of ranges, into memory of several kinds.

mod calls;
mod destination;
mod engine;
mod owned;
mod ranges;
mod report;

pub use calls::GetInto;
pub use engine::Source;
pub use owned::{GetIntoOwned, GotOwned};
pub use ranges::{GetRangesInto, RangeInto};

pub(crate) use destination::{Destination, Got};
pub(crate) use engine::{ASK_AGAIN, Get, Located, PendingGet};
