//! Breakdown of the time of a put of one key, and a check of its bound.
//!
//! The parts come from three measurements. The client times the put, its two calls and its transfer. The masters time
//! each commit, from its proposal until it is applied, and each fdatasync of a log. After the run, the leader times
//! commits one at a time on an idle pool. The parts of the run are means, because medians do not add up.

use anyhow::{Context, Result};
use mc_client::{Client, Stats};
use serde::Serialize;

use super::alone::{self, Alone};
use crate::latencies::{Latencies, round};
use crate::masters::{Masters, Measured};

/// Allowance for a put beyond its two commits, in microseconds.
const ALLOWANCE_US: f64 = 500.0;

/// Parts of a put, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Parts {
    /// Median time of a put, as seen by its caller.
    pub(crate) put_p50_us: f64,
    /// Mean time of a put: the sum of the next six.
    pub(crate) put_mean_us: f64,
    /// Start call without its commit.
    pub(crate) start_rpc_mean_us: f64,
    /// Commit of the start, from its proposal until the leader has applied it.
    pub(crate) start_commit_mean_us: f64,
    /// Write to the store, as seen by the client.
    pub(crate) transfer_mean_us: f64,
    /// End call without its commit.
    pub(crate) end_rpc_mean_us: f64,
    /// Commit of the end.
    pub(crate) end_commit_mean_us: f64,
    /// Remaining time, spent in the client itself.
    pub(crate) client_mean_us: f64,
    /// One fdatasync of the leader's log during the run; absent where logs are not synced.
    pub(crate) fdatasync_leader_mean_us: Option<f64>,
    /// One fdatasync of another master's log.
    pub(crate) fdatasync_followers_mean_us: Option<f64>,
    /// Number of fdatasyncs of the leader's log per put.
    pub(crate) fdatasyncs_a_put: f64,
    /// Commit of the smallest entry, one at a time on an idle pool, by the leader's clock.
    pub(crate) commit_alone_p50_us: f64,
    pub(crate) commit_alone_mean_us: f64,
    /// One fdatasync of the leader's log during those commits.
    pub(crate) commit_alone_fdatasync_mean_us: Option<f64>,
    /// Bound of a put: twice the p50 of a commit alone, plus 500 us.
    pub(crate) bound_us: f64,
    /// Whether the p50 of a put is within the bound.
    pub(crate) bound_met: bool,
}

/// Measurement of a run that puts one key at a time.
pub(super) struct Watch {
    masters: Masters,
    measured: Measured,
    stats: Stats,
}

impl Watch {
    /// Begins the measurement. Call it right before the run.
    pub(super) async fn begin(addresses: &str, client: &Client) -> Result<Self> {
        let masters = Masters::find(addresses).await?;
        let measured = masters.measured().await?;
        Ok(Self { masters, measured, stats: client.stats() })
    }

    /// Ends the measurement. Call it after the run, once the pool is idle; `puts` are the latencies of the run.
    pub(super) async fn end(self, client: &Client, puts: &Latencies) -> Result<Parts> {
        let client = Waits::between(&self.stats, &client.stats(), puts.count());
        let masters = self.masters.measured().await?.since(self.measured);
        let alone = alone::measure(&self.masters).await?;
        Parts::new(puts, client, masters, &alone)
    }
}

/// Mean waits of a put in the client, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Waits {
    start_us: f64,
    transfer_us: f64,
    end_us: f64,
}

impl Waits {
    fn between(before: &Stats, after: &Stats, puts: u64) -> Self {
        let mean = |before: u64, after: u64| after.saturating_sub(before) as f64 / 1e3 / puts as f64;
        Self {
            start_us: mean(before.put_start_ns, after.put_start_ns),
            transfer_us: mean(before.put_write_ns, after.put_write_ns),
            end_us: mean(before.put_end_ns, after.put_end_ns),
        }
    }
}

impl Parts {
    fn new(puts: &Latencies, client: Waits, masters: Measured, alone: &Alone) -> Result<Self> {
        let unseen = "the leader counted no commit of a put: it changed during the run, or is an older build";
        let start_commit = masters.start_commits.mean_us().context(unseen)?;
        let end_commit = masters.end_commits.mean_us().context(unseen)?;
        let (put_p50_us, put_mean) = (puts.quantile_us(0.5), puts.mean_us());
        let commit_alone_p50_us = alone.commits.quantile_us(0.5);
        let bound_us = round(2.0 * commit_alone_p50_us + ALLOWANCE_US);
        Ok(Self {
            put_p50_us,
            put_mean_us: round(put_mean),
            start_rpc_mean_us: round(client.start_us - start_commit),
            start_commit_mean_us: round(start_commit),
            transfer_mean_us: round(client.transfer_us),
            end_rpc_mean_us: round(client.end_us - end_commit),
            end_commit_mean_us: round(end_commit),
            client_mean_us: round(put_mean - client.start_us - client.transfer_us - client.end_us),
            fdatasync_leader_mean_us: masters.leader_fdatasyncs.mean_us().map(round),
            fdatasync_followers_mean_us: masters.followers_fdatasyncs.mean_us().map(round),
            fdatasyncs_a_put: round(masters.leader_fdatasyncs.count as f64 / puts.count() as f64),
            commit_alone_p50_us,
            commit_alone_mean_us: round(alone.commits.mean_us()),
            commit_alone_fdatasync_mean_us: alone.fdatasyncs.mean_us().map(round),
            bound_us,
            bound_met: put_p50_us <= bound_us,
        })
    }

    pub(super) fn table(&self) -> String {
        let us = |value: Option<f64>| value.map_or_else(|| "none".to_owned(), |us| format!("{us:.0} us"));
        format!(
            "a put of one key: mean {:.0} us, of which\n  \
             start: rpc {:.0} us + commit {:.0} us; transfer {:.0} us; end: rpc {:.0} us + commit {:.0} us; \
             client {:.0} us\n  \
             fdatasync of the masters' logs, mean: leader {} ({:.1} a put), followers {}\n\
             a commit alone: p50 {:.0} us, mean {:.0} us, of which fdatasync {}\n\
             put p50 {:.0} us, bound (two commits alone + {ALLOWANCE_US} us) {:.0} us: {}\n",
            self.put_mean_us,
            self.start_rpc_mean_us,
            self.start_commit_mean_us,
            self.transfer_mean_us,
            self.end_rpc_mean_us,
            self.end_commit_mean_us,
            self.client_mean_us,
            us(self.fdatasync_leader_mean_us),
            self.fdatasyncs_a_put,
            us(self.fdatasync_followers_mean_us),
            self.commit_alone_p50_us,
            self.commit_alone_mean_us,
            us(self.commit_alone_fdatasync_mean_us),
            self.put_p50_us,
            self.bound_us,
            if self.bound_met { "met" } else { "missed" },
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::masters::Total;

    fn latencies(us: u64) -> Latencies {
        let mut latencies = Latencies::new();
        (0..10).for_each(|_| latencies.record(Duration::from_micros(us)));
        latencies
    }

    fn total(mean_us: f64, count: u64) -> Total {
        Total { seconds: mean_us * count as f64 / 1e6, count }
    }

    fn parts(put_us: u64) -> Parts {
        let client = Waits { start_us: 1_200.0, transfer_us: 100.0, end_us: 1_150.0 };
        let masters = Measured {
            start_commits: total(1_000.0, 10),
            end_commits: total(990.0, 10),
            leader_fdatasyncs: total(250.0, 20),
            ..Measured::default()
        };
        let alone = Alone { commits: latencies(980), fdatasyncs: total(240.0, 10) };
        Parts::new(&latencies(put_us), client, masters, &alone).unwrap()
    }

    #[test]
    fn the_parts_add_up_to_the_put() {
        let parts = parts(2_500);
        let sum = parts.start_rpc_mean_us
            + parts.start_commit_mean_us
            + parts.transfer_mean_us
            + parts.end_rpc_mean_us
            + parts.end_commit_mean_us
            + parts.client_mean_us;
        assert!((sum - parts.put_mean_us).abs() < 1.0, "{parts:?}");
        assert_eq!(
            (parts.start_rpc_mean_us, parts.end_rpc_mean_us, parts.transfer_mean_us),
            (200.0, 160.0, 100.0)
        );
        assert_eq!((parts.fdatasync_leader_mean_us, parts.fdatasyncs_a_put), (Some(250.0), 2.0));
        assert_eq!(parts.fdatasync_followers_mean_us, None, "a cluster of one has none");
    }

    #[test]
    fn the_bound_is_two_commits_alone_and_half_a_millisecond() {
        let parts_within = parts(2_400);
        assert!((parts_within.bound_us - 2_460.0).abs() < 5.0, "{parts_within:?}");
        assert!(parts_within.bound_met && parts_within.table().contains("us: met"), "{parts_within:?}");
        let beyond = parts(2_500);
        assert!(!beyond.bound_met && beyond.table().contains("us: missed"), "{beyond:?}");
    }

    #[test]
    fn without_a_counted_commit_there_are_no_parts() {
        let alone = Alone { commits: latencies(980), fdatasyncs: Total::default() };
        let waits = Waits { start_us: 1.0, transfer_us: 1.0, end_us: 1.0 };
        assert!(Parts::new(&latencies(9), waits, Measured::default(), &alone).is_err());
    }
}
