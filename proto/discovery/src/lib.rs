//! The search for the leader by stores and clients: which masters they ask, when, and which answers count.
//!
//! - Decisions: [`Listed`] is the list of masters as its names resolve, [`ClusterIdentity`] their cluster,
//!   [`LeaderView`] the leader, and [`Search`] whom to ask and to watch next.
//! - Calls: [`Channels`] to the masters, [`hello`], [`Watch`], and [`drive`], which carries out a search for its
//!   [`SearchOwner`].
//!
//! A fleet has up to a thousand stores and ten thousand clients. After an outage all of them look for the leader at
//! once. [`Backoff`] and [`Search`] keep their load low enough for an election.

mod backoff;
mod calls;
mod drive;
mod identity;
mod leader;
mod listed;
mod poller;
mod search;
mod second_watch;
mod watches;

pub use backoff::Backoff;
pub use calls::{
    Channels, ClusterReport, HelloError, LONGEST_SPREAD, MasterChannel, TokenChannel, Watch, WatchUpdate,
    caller, hello, read_hello, read_update, versions, within,
};
pub use drive::{Changed, SearchOwner, drive};
pub use identity::{ClusterIdentity, Verdict};
pub use leader::{Leader, LeaderView, Witness};
pub use listed::{LastKnown, Listed, Reports};
use poller::{PollStep, Poller};
pub use search::{Action, Phase, Search, SearchOptions, Situation};
