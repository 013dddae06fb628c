//! `mcctl upgrade status|finish`: shows and raises the cluster version.

use anyhow::Result;
use clap::Subcommand;
use mc_console::{Ended, Global, Output, columns, connect, or_dash};
use serde::Serialize;

#[derive(Debug, Subcommand)]
pub(crate) enum UpgradeCommand {
    /// Show the build of every master and the cluster version that each supports
    Status,
    /// Raise the cluster version to the highest that all masters support; older builds cannot join afterwards
    Finish,
}

#[derive(Serialize)]
struct Master {
    addr: String,
    id: Option<String>,
    /// Name and version of its build; absent while it does not answer.
    software: Option<String>,
    /// Highest cluster version that its build supports.
    supports: Option<u32>,
}

#[derive(Serialize)]
struct Status {
    /// Cluster version in effect; absent while no master answers.
    cluster_version: Option<u32>,
    /// Whether `upgrade finish` would raise the cluster version.
    can_finish: bool,
    masters: Vec<Master>,
}

#[derive(Serialize)]
struct Finished {
    before: u32,
    after: u32,
}

pub(crate) async fn upgrade(global: &Global, command: &UpgradeCommand, output: Output) -> Result<Ended> {
    match command {
        UpgradeCommand::Status => status(global, output).await,
        UpgradeCommand::Finish => {
            let admin = connect::client_of(global).await?.admin();
            let (before, after) = admin.finish_upgrade().await?;
            let finished = Finished { before, after };
            output.result(&finished, || match finished.before == finished.after {
                true => format!("the cluster version is {} already", finished.after),
                false => format!("cluster version: {} -> {}", finished.before, finished.after),
            });
            Ok(Ended::Well)
        }
    }
}

async fn status(global: &Global, output: Output) -> Result<Ended> {
    let admin = connect::admin(&global.masters()).await?;
    let cluster = admin.status().await;
    let answers = || cluster.masters.iter().filter_map(|master| master.status.as_ref().ok());
    let masters: Vec<_> = cluster
        .masters
        .iter()
        .map(|master| {
            let status = master.status.as_ref().ok();
            Master {
                addr: master.address.clone(),
                id: status.map(|status| status.node.to_string()),
                software: status.map(|status| status.software.clone()),
                supports: status.map(|status| status.cluster_version_max),
            }
        })
        .collect();
    let authority = cluster.authority.and_then(|at| cluster.masters[at].status.as_ref().ok());
    let cluster_version = authority.map(|status| status.cluster_version);
    let all_answer = masters.iter().all(|master| master.supports.is_some());
    let lowest = answers().map(|status| status.cluster_version_max).min();
    let status = Status { cluster_version, can_finish: all_answer && lowest > cluster_version, masters };
    output.result(&status, || table(&status));
    Ok(match (status.cluster_version, all_answer) {
        (None, _) => Ended::Down,
        (Some(_), true) => Ended::Well,
        (Some(_), false) => Ended::Negative,
    })
}

fn table(status: &Status) -> String {
    let row = |master: &Master| {
        let Master { addr, software, supports, id, .. } = master;
        [addr.clone(), or_dash(software.as_ref()), or_dash(*supports), or_dash(id.as_ref())]
    };
    let rows = columns(["MASTER", "BUILD", "SUPPORTS", "ID"], status.masters.iter().map(row));
    let version = or_dash(status.cluster_version);
    let what = match status.can_finish {
        true => "; all masters support more: `mcctl upgrade finish` raises it, and there is no way back then",
        false => "",
    };
    format!("{rows}\ncluster version {version}{what}")
}
