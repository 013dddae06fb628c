//! The search for the leader by stores and clients: which masters they ask, when, and which answers count.
//!
//! - Decisions: [`Listed`] is the list of masters as its names resolve, [`ClusterIdentity`] their cluster,
//!   [`LeaderView`] the leader, [`Poller`] the next master to ask, and [`SecondWatch`] the master to watch.
//! - Calls: [`Channels`] to the masters, [`hello`], [`Watch`].
//!
//! A fleet has up to a thousand stores and ten thousand clients. After an outage all of them look for the leader at
//! once. [`Backoff`] and [`Poller`] keep their load low enough for an election.

mod ask;
mod backoff;
mod channels;
mod identity;
mod leader;
mod listed;
mod poller;
mod second_watch;

pub use ask::{
    Event, LONGEST_SPREAD, Said, Unsaid, Watch, caller, hello, read_event, read_hello, versions, within,
};
pub use backoff::Backoff;
pub use channels::{Channels, Line};
pub use identity::{ClusterIdentity, Verdict};
pub use leader::{Leader, LeaderView, Source};
pub use listed::{LastKnown, Listed, Reports};
pub use poller::{Poller, Step};
pub use second_watch::{SecondWatch, WatchStep};
