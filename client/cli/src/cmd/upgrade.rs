//! `mcctl upgrade status|finish`: shows and raises the cluster version.

use anyhow::Result;
use clap::Subcommand;
use mc_client::OutdatedCaller;
use mc_console::{Ended, Global, Output, columns, connect, or_dash, printable};
use serde::Serialize;

#[derive(Debug, Subcommand)]
pub(crate) enum UpgradeCommand {
    /// Show the build of every master, the cluster version that each supports, and clients and stores of older builds
    Status,
    /// Raise the cluster version to the highest that all masters support; older builds cannot join afterwards
    Finish {
        /// Raise it although clients or stores of older builds are in use: their puts may fail afterwards
        #[arg(long)]
        force: bool,
    },
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

/// A client or store of an older build.
#[derive(Serialize)]
struct Outdated {
    /// Name of the store; absent for a client.
    store: Option<String>,
    id: String,
    host: String,
    /// Newest protocol version that it speaks.
    protocol: u32,
    silent_ms: u64,
}

#[derive(Serialize)]
struct Status {
    /// Cluster version in effect; absent while no master answers.
    cluster_version: Option<u32>,
    /// Whether `upgrade finish` raises the cluster version, once the leader has led for a minute.
    can_finish: bool,
    masters: Vec<Master>,
    /// Stores of older builds, and clients of older builds that put something within the last minute.
    outdated: Vec<Outdated>,
}

#[derive(Serialize)]
struct Finished {
    before: u32,
    after: u32,
}

pub(crate) async fn upgrade(global: &Global, command: &UpgradeCommand, output: Output) -> Result<Ended> {
    match command {
        UpgradeCommand::Status => status(global, output).await,
        UpgradeCommand::Finish { force } => {
            let admin = connect::client_of(global).await?.admin();
            let (before, after) = admin.finish_upgrade(*force).await?;
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
    let outdated: Vec<_> = answers().flat_map(|status| &status.outdated).map(outdated).collect();
    let can_finish = all_answer && lowest > cluster_version && outdated.is_empty();
    let status = Status { cluster_version, can_finish, masters, outdated };
    output.result(&status, || table(&status));
    Ok(match status.cluster_version {
        None => Ended::Down,
        Some(_) if all_answer && status.outdated.is_empty() => Ended::Well,
        Some(_) => Ended::Negative,
    })
}

fn outdated(caller: &OutdatedCaller) -> Outdated {
    Outdated {
        store: Some(caller.store.clone()).filter(|name| !name.is_empty()),
        id: caller.client.to_string(),
        host: caller.host.clone(),
        protocol: caller.version_max,
        silent_ms: caller.silent.as_millis().try_into().unwrap_or(u64::MAX),
    }
}

fn table(status: &Status) -> String {
    let row = |master: &Master| {
        let Master { addr, software, supports, id, .. } = master;
        [addr.clone(), or_dash(software.as_ref()), or_dash(*supports), or_dash(id.as_ref())]
    };
    let rows = columns(["MASTER", "BUILD", "SUPPORTS", "ID"], status.masters.iter().map(row));
    let outdated = outdated_table(&status.outdated);
    let version = or_dash(status.cluster_version);
    let what = match (status.can_finish, status.outdated.is_empty()) {
        (true, _) => {
            "; all masters support more: `mcctl upgrade finish` raises it, and there is no way back then"
        }
        (false, true) => "",
        (false, false) => {
            "; puts of the older clients, and to the older stores, may fail once the upgrade is finished"
        }
    };
    format!("{rows}{outdated}\ncluster version {version}{what}")
}

fn outdated_table(callers: &[Outdated]) -> String {
    if callers.is_empty() {
        return String::new();
    }
    let row = |caller: &Outdated| {
        let store = caller.store.as_ref().map(|name| format!("store {}", printable(name)));
        let kind = store.unwrap_or_else(|| "client".to_owned());
        let Outdated { host, protocol, silent_ms, id, .. } = caller;
        [
            kind,
            printable(host).into_owned(),
            protocol.to_string(),
            format!("{} s ago", silent_ms / 1_000),
            id.clone(),
        ]
    };
    let rows = columns(["OLDER BUILD", "HOST", "PROTOCOL", "LAST SEEN", "ID"], callers.iter().map(row));
    format!("\n{rows}")
}
