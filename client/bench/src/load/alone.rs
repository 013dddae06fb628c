//! Measurement of single commits on an idle pool, each timed by the leader.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use mc_net::{ChannelOptions, Network, TcpNetwork};
use mc_proto::v1::{BatchPutRevokeRequest, Caller, master_client::MasterClient};
use mc_types::{ClientId, PutId};

use crate::latencies::Latencies;
use crate::masters::{Masters, Total};

/// Number of measured commits, after `WARM` commits that warm up the connection.
const COMMITS: u64 = 300;
const WARM: u64 = 20;

/// Results of commits measured alone.
#[derive(Clone, Debug)]
pub(super) struct Alone {
    /// Time of each commit from its proposal until it was applied, without the call around it.
    pub(super) commits: Latencies,
    /// Fdatasyncs of the leader's log during these commits.
    pub(super) fdatasyncs: Total,
}

/// Measures commits of the smallest entry, the revoke of an unknown put, one at a time. It reads the leader's histogram
/// after each commit: the growth of the sum is the time of that commit.
pub(super) async fn measure(masters: &Masters) -> Result<Alone> {
    let options = ChannelOptions { call_timeout: Some(Duration::from_secs(5)), ..ChannelOptions::default() };
    let channel = TcpNetwork.channel(&masters.leader, options).context("the leader's address")?;
    let mut leader = MasterClient::new(channel);
    let caller = caller();
    let mut commits = Latencies::new();
    let mut seen = masters.leader_measured().await?;
    let mut first = seen;
    for commit in 0..WARM + COMMITS {
        if commit == WARM {
            first = seen;
        }
        let request = BatchPutRevokeRequest {
            caller: Some(caller.clone()),
            put_ids: vec![Bytes::copy_from_slice(&PutId::random().to_bytes())],
            ..BatchPutRevokeRequest::default()
        };
        leader.batch_put_revoke(request).await.context("revoke of a put that nobody started")?;
        let now = masters.leader_measured().await?;
        let one = now.since(seen).revoke_commits;
        seen = now;
        // With more than one commit, another client's was counted too, and their times can't be told apart.
        if commit >= WARM && one.count == 1 {
            commits.record(Duration::try_from_secs_f64(one.seconds).unwrap_or_default());
        }
    }
    ensure!(
        commits.count() >= COMMITS / 2,
        "only {} of {COMMITS} commits could be told apart from other clients': measure an idle pool",
        commits.count()
    );
    Ok(Alone { commits, fdatasyncs: seen.since(first).leader_fdatasyncs })
}

fn caller() -> Caller {
    let versions = mc_proto::VERSIONS;
    Caller {
        client_id: Bytes::copy_from_slice(&ClientId::random().to_bytes()),
        version_min: *versions.start(),
        version_max: *versions.end(),
        ..Caller::default()
    }
}
