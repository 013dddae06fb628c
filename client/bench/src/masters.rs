//! Measurements by the masters: sums and counts of their histograms, read from their `/metrics`.

use anyhow::{Context, Result, ensure};
use mc_client::{MasterStatus, Member};
use mc_console::connect;
use mc_process::http;

/// Sum and count of a histogram of seconds, or their growth between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Total {
    pub(super) seconds: f64,
    pub(super) count: u64,
}

/// Sums over all masters, at one moment, or their growth between two.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Measured {
    /// Commits of put starts, from the proposal until the leader has applied them.
    pub(super) start_commits: Total,
    /// Commits of put ends, from the proposal until the leader has applied them.
    pub(super) end_commits: Total,
    /// Commits of put revokes, from the proposal until the leader has applied them.
    pub(super) revoke_commits: Total,
    /// fdatasyncs of the leader's log.
    pub(super) leader_fdatasyncs: Total,
    /// fdatasyncs of all other logs.
    pub(super) followers_fdatasyncs: Total,
}

/// Addresses of a pool's masters, while one of them leads.
#[derive(Clone, Debug)]
pub(super) struct Masters {
    /// The leader's client address.
    pub(super) leader: String,
    leader_http: String,
    followers_http: Vec<String>,
}

impl Total {
    fn since(self, before: Self) -> Self {
        Self {
            seconds: self.seconds - before.seconds,
            // A smaller count means that the master was restarted. Its difference is useless and becomes 0.
            count: self.count.saturating_sub(before.count),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self { seconds: self.seconds + other.seconds, count: self.count + other.count }
    }

    /// Returns the mean in microseconds; `None` when nothing was counted.
    pub(super) fn mean_us(self) -> Option<f64> {
        (self.count > 0).then(|| self.seconds * 1e6 / self.count as f64)
    }
}

impl Measured {
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            start_commits: self.start_commits.since(before.start_commits),
            end_commits: self.end_commits.since(before.end_commits),
            revoke_commits: self.revoke_commits.since(before.revoke_commits),
            leader_fdatasyncs: self.leader_fdatasyncs.since(before.leader_fdatasyncs),
            followers_fdatasyncs: self.followers_fdatasyncs.since(before.followers_fdatasyncs),
        }
    }

    fn of_leader(text: &str) -> Self {
        let commits = |op: &str| total(text, "mc_raft_commit_seconds", &format!("{{op=\"{op}\"}}"));
        Self {
            start_commits: commits("put_start"),
            end_commits: commits("put_end"),
            revoke_commits: commits("put_revoke"),
            leader_fdatasyncs: fdatasyncs(text),
            followers_fdatasyncs: Total::default(),
        }
    }
}

impl Masters {
    /// Asks the masters at `addresses` who leads and where each serves its metrics.
    pub(super) async fn find(addresses: &str) -> Result<Self> {
        let status = connect::admin(addresses).await?.status().await;
        let leader = status.leader.context("no master leads")?;
        let authority = status.authority.and_then(|at| status.masters[at].status.as_ref().ok());
        let members = authority.map(|status: &MasterStatus| status.members.as_slice()).unwrap_or_default();
        let http = |member: &Member| member.http_address.clone();
        let (leaders, followers): (Vec<_>, Vec<_>) =
            members.iter().partition(|member| member.node == leader.node);
        let leader_http = leaders.first().map(|member| http(member));
        Ok(Self {
            leader: leader.address,
            leader_http: leader_http.context("the leader is not among the members that it names")?,
            followers_http: followers.into_iter().map(http).collect(),
        })
    }

    /// Reads the sums over all masters.
    pub(super) async fn measured(&self) -> Result<Measured> {
        let mut measured = self.leader_measured().await?;
        for follower in &self.followers_http {
            let synced = fdatasyncs(&scrape(follower).await?);
            measured.followers_fdatasyncs = measured.followers_fdatasyncs.plus(synced);
        }
        Ok(measured)
    }

    /// Reads the leader's values of counters and gauges, each the sum over its labels; 0 for one that is absent.
    pub(super) async fn leader_values<const N: usize>(&self, names: [&str; N]) -> Result<[f64; N]> {
        let text = scrape(&self.leader_http).await?;
        Ok(names.map(|name| sum(&text, name)))
    }

    /// Reads the leader's sums.
    pub(super) async fn leader_measured(&self) -> Result<Measured> {
        Ok(Measured::of_leader(&scrape(&self.leader_http).await?))
    }
}

async fn scrape(address: &str) -> Result<String> {
    let answer = http::request("GET", address, "/metrics").await;
    let (code, text) =
        answer.with_context(|| format!("cannot read the metrics of the master at {address}"))?;
    ensure!(code == 200, "the master at {address} answers {code} instead of its metrics");
    Ok(text)
}

fn fdatasyncs(text: &str) -> Total {
    total(text, "mc_raft_log_fsync_seconds", "")
}

/// Reads sum and count of one series from a Prometheus text; 0 if it is absent.
fn total(text: &str, name: &str, labels: &str) -> Total {
    let value = |part: &str| value(text, &format!("{name}_{part}{labels} "));
    Total { seconds: value("sum"), count: value("count") as u64 }
}

/// Sums up the series of a metric.
fn sum(text: &str, name: &str) -> f64 {
    let value = |line: &str| {
        let rest = line.strip_prefix(name)?;
        rest.starts_with(['{', ' ']).then(|| rest.rsplit_once(' ')?.1.parse::<f64>().ok())?
    };
    text.lines().filter_map(value).sum()
}

/// Reads the value of the line that begins with `series`; 0 if there is none.
fn value(text: &str, series: &str) -> f64 {
    text.lines().find_map(|line| line.strip_prefix(series)?.parse().ok()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use mc_process::metrics::Registry;

    use super::*;

    #[test]
    fn what_a_registry_renders_is_read_back_and_told_apart_by_label() {
        let registry = Registry::new();
        let op = |op| registry.histogram("mc_raft_commit_seconds", "Commits", &[("op", op)]);
        op("put_start").record(0.001_25);
        let before = Measured::of_leader(&registry.render());
        for seconds in [0.002, 0.004] {
            op("put_start").record(seconds);
        }
        op("put_end").record(0.5);
        registry.histogram("mc_raft_log_fsync_seconds", "Syncs", &[]).record(0.000_25);
        let during = Measured::of_leader(&registry.render()).since(before);
        assert_eq!((during.start_commits.count, during.end_commits.count), (2, 1));
        assert!((during.start_commits.mean_us().unwrap() - 3_000.0).abs() < 1e-6, "{during:?}");
        assert_eq!(during.leader_fdatasyncs.mean_us(), Some(250.0));
        assert_eq!(during.revoke_commits.mean_us(), None, "nobody revoked");
        registry.gauge("mc_pool_used_bytes", "Bytes", &[]).set(4096.0);
        assert_eq!(value(&registry.render(), "mc_pool_used_bytes "), 4_096.0);
    }

    #[test]
    fn a_master_that_restarted_meanwhile_has_no_mean() {
        let total = |seconds, count| Total { seconds, count };
        assert_eq!(total(0.1, 3).since(total(5.0, 40)).mean_us(), None);
    }
}
