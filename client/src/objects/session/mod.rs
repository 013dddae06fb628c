//! Sessions: several transfers of one version of an object, with one call to the leader before them.

mod coverage;
mod get;
mod open_put;
mod pinned;
mod put;
mod seals;

use std::time::Duration;

pub(crate) use get::Opened;
pub(crate) use open_put::OpenPut;
pub(crate) use put::RangeWrite;

/// Time for which the leases of get sessions are renewed. A session that is forgotten must not keep its object from
/// being evicted for longer.
pub(crate) const RENEWED_FOR: Duration = Duration::from_secs(5 * 60);
