//! Sessions: several transfers of one version of an object, with one call to the leader before them.

mod get;
mod pinned;

use std::time::Duration;

pub(crate) use get::Opened;

/// Time for which the leases of get sessions are renewed. A session that is forgotten must not keep its object from
/// being evicted for longer.
pub(crate) const RENEWED_FOR: Duration = Duration::from_secs(5 * 60);
