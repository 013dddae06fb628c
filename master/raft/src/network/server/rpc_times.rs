use std::time::{Duration, Instant};

use metrics::Histogram;

/// The calls between masters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RaftRpc {
    /// Append entries, as a single call or as one message of the stream.
    Append,
    /// A candidate asks for a vote.
    Vote,
    /// A candidate asks whether it would get a vote.
    PreVote,
    /// A snapshot, from its header on, so the transfer is included.
    Snapshot,
    /// The leader hands leadership over.
    TransferLeader,
    /// Masters without a cluster meet.
    Meet,
}

const RPCS: [(RaftRpc, &str); 6] = [
    (RaftRpc::Append, "append"),
    (RaftRpc::Vote, "vote"),
    (RaftRpc::PreVote, "pre_vote"),
    (RaftRpc::Snapshot, "snapshot"),
    (RaftRpc::TransferLeader, "transfer_leader"),
    (RaftRpc::Meet, "meet"),
];

/// Seconds to answer each kind of call between masters.
#[derive(Clone, Debug)]
pub struct RpcTimes([Histogram; 6]);

impl RpcTimes {
    /// With a histogram for each call, by its name as a label.
    pub fn new(histogram: impl Fn(&'static str) -> Histogram) -> Self {
        Self(RPCS.map(|(_, name)| histogram(name)))
    }

    /// Times a call until the returned value is dropped.
    pub(crate) fn time(&self, rpc: RaftRpc) -> RpcTimer<'_> {
        RpcTimer::start(&self.0[rpc as usize])
    }

    /// Records that a message of a stream was answered `took` after it had arrived.
    pub(crate) fn served(&self, rpc: RaftRpc, took: Duration) {
        self.0[rpc as usize].record(took.as_secs_f64());
    }
}

/// Records how long a call took when it is dropped.
#[derive(Debug)]
pub struct RpcTimer<'a> {
    histogram: &'a Histogram,
    since: Instant,
}

impl<'a> RpcTimer<'a> {
    /// Starts now, and records in seconds.
    #[must_use]
    pub fn start(histogram: &'a Histogram) -> Self {
        Self { histogram, since: Instant::now() }
    }
}

impl Drop for RpcTimer<'_> {
    fn drop(&mut self) {
        self.histogram.record(self.since.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_has_its_own_histogram() {
        for (at, (rpc, _)) in RPCS.iter().enumerate() {
            assert_eq!(*rpc as usize, at);
        }
    }
}
