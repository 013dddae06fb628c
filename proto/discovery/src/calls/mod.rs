//! Calls to masters in which a master reports itself, its cluster and the leader.
//!
//! A hello asks for one [`ClusterReport`], and a watch brings one with each change. Both import the report, the time
//! limit of a call, and the channel that shows the token of this process; they know nothing of each other.

mod channels;
mod hello;
mod report;
mod token_channel;
mod watch;
mod within;

pub use channels::{Channels, MasterChannel};
pub use hello::{hello, read_hello, versions};
pub use report::{ClusterReport, HelloError, caller};
pub use token_channel::TokenChannel;
pub use watch::{LONGEST_SPREAD, Watch, WatchUpdate, read_update};
pub use within::within;
