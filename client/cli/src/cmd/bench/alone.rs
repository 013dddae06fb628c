//! One replicated commit after the other on a pool that does nothing else, each timed by the leader.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use mc_net::{ChannelOptions, Network, TcpNetwork};
use mc_proto::v1::{BatchPutRevokeRequest, Caller, master_client::MasterClient};
use mc_types::{ClientId, PutId};

use super::masters::{Masters, Total};
use super::report::Latencies;

/// Commits that count; those before them warm the connection.
const COMMITS: u64 = 300;
const WARM: u64 = 20;

/// Commits measured alone.
#[derive(Clone, Debug)]
pub(super) struct Alone {
    /// Each from its proposal until it was applied, without the call around it.
    pub(super) commits: Latencies,
    /// The fdatasyncs of the leader's log in that time.
    pub(super) fdatasyncs: Total,
}

/// Commits the smallest entry there is, the revoke of a put that nobody started, again and again. The leader's
/// histogram is read after each, so its sum has grown by that one commit's time.
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
        // More than one: another client's was committed as well, and whose time is whose cannot be told.
        if commit >= WARM && one.count == 1 {
            commits.record(Duration::try_from_secs_f64(one.seconds).unwrap_or_default());
        }
    }
    ensure!(
        commits.count() >= COMMITS / 2,
        "only {} of {COMMITS} commits could be told from other clients': measure an idle pool",
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
