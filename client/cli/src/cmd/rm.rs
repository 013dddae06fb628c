//! `mcctl rm`: removes an object, a replica, or many objects.

use anyhow::Result;
use clap::Args;
use mc_client::{Client, Code, Error, Removed};
use mc_console::{Ended, Global, Output, connect, printable};
use serde::Serialize;

#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// Key of the object
    #[arg(required_unless_present_any = ["all", "regex"])]
    pub(crate) key: Option<String>,
    /// Remove all objects of the tenant, pinned ones included
    #[arg(long, conflicts_with = "key")]
    pub(crate) all: bool,
    /// Remove the objects whose keys match a regular expression, which is not anchored; pinned ones included
    #[arg(long, value_name = "PATTERN", conflicts_with_all = ["key", "all"])]
    pub(crate) regex: Option<String>,
    /// Drop only the replica on this store, given by its address as `status` shows it, or by its name
    #[arg(long, value_name = "NAME", requires = "key")]
    pub(crate) replica_on: Option<String>,
    /// Remove objects even while clients read them
    #[arg(long, conflicts_with = "replica_on")]
    pub(crate) force: bool,
}

#[derive(Serialize)]
struct Document<'a> {
    key: &'a str,
    /// removed, not_found, or leased.
    result: &'static str,
}

#[derive(Serialize)]
struct Many {
    removed: u64,
    /// Objects that stay because clients read them.
    leased: u64,
}

pub(crate) async fn rm(global: &Global, args: &RmArgs, output: Output) -> Result<Ended> {
    let client = connect::client_of(global).await?;
    match (&args.key, &args.regex) {
        (Some(key), _) => one(&client, key, args, output).await,
        (None, Some(pattern)) => Ok(many(client.remove_by_regex(pattern, args.force).await?, output)),
        (None, None) => Ok(many(client.remove_all(args.force).await?, output)),
    }
}

async fn one(client: &Client, key: &str, args: &RmArgs, output: Output) -> Result<Ended> {
    let removed = match &args.replica_on {
        None => client.remove(key, args.force).await,
        Some(store) => drop_replica(client, key, store).await,
    };
    let shown = printable(key);
    let (result, text, ended) = match removed {
        Ok(true) => ("removed", format!("removed {shown}"), Ended::Well),
        Ok(false) => ("not_found", format!("{shown} is not there"), Ended::Negative),
        Err(error) if error.code == Code::ObjectHasLease => (
            "leased",
            format!("{shown} was read a moment ago and stays (--force removes it)"),
            Ended::Negative,
        ),
        Err(error) => return Err(error.into()),
    };
    output.result(&Document { key, result }, || text);
    Ok(ended)
}

async fn drop_replica(client: &Client, key: &str, store: &str) -> Result<bool, Error> {
    let mut dropped = client.batch_drop_replicas(&[key], store).await;
    dropped.pop().unwrap_or(Ok(false))
}

fn many(Removed { objects, leased, .. }: Removed, output: Output) -> Ended {
    output.result(&Many { removed: objects, leased }, || match leased {
        0 => format!("removed objects: {objects}"),
        _ => format!("removed objects: {objects}; read a moment ago, so they stay (--force): {leased}"),
    });
    if leased == 0 { Ended::Well } else { Ended::Negative }
}
