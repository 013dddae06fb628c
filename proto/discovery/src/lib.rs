//! How stores and clients look for the leader: whom they ask, when, and whose word counts.
//!
//! Pure decisions; those who use them do the calls. A fleet is sized for a thousand stores and ten thousand clients, and
//! after an outage all of them look at the same time: [`Backoff`] and [`Poller`] keep that from becoming a load under which
//! no leader can be elected.

mod backoff;
mod listed;
mod poller;

pub use backoff::Backoff;
pub use listed::{LastKnown, Listed, Reports};
pub use poller::{Poller, Step};
