//! The client's end of a connection to a store: requests and their verdicts, and whether bytes move.

mod failure;
mod health;
pub(crate) mod iovecs;
mod link;
mod options;
mod out_of_band;
pub(crate) mod pieces;
mod pipe;
mod progress;

pub(crate) use self::failure::Failure;
pub(crate) use self::health::Health;
pub(crate) use self::link::{Broken, CACHED, ConnectError, Link, Outcome, Refused, is_for_now, put_request};
pub use self::options::TcpOptions;
pub(crate) use self::out_of_band::OutOfBand;
pub(crate) use self::pipe::{Pipe, PipedReply, PipedRequest, Place};
pub(crate) use self::progress::{Progress, Watch};
