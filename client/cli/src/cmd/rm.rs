//! `mcctl rm`: removes an object.

use anyhow::Result;
use mc_client::Code;
use serde::Serialize;

use crate::Ended;
use crate::args::{Global, RmArgs};
use crate::connect;
use crate::output::Output;

#[derive(Serialize)]
struct Document<'a> {
    key: &'a str,
    /// removed, not_found, or leased.
    result: &'static str,
}

pub(crate) async fn rm(global: &Global, args: &RmArgs, output: Output) -> Result<Ended> {
    let client = connect::client_with_leader(&global.masters(), global.timeout.0).await?;
    let key = &args.key;
    let (result, text, ended) = match client.remove(key, args.force).await {
        Ok(true) => ("removed", format!("removed {key}"), Ended::Well),
        Ok(false) => ("not_found", format!("{key} is not there"), Ended::Negative),
        Err(error) if error.code == Code::ObjectHasLease => {
            ("leased", format!("{key} was read a moment ago and stays (--force removes it)"), Ended::Negative)
        }
        Err(error) => return Err(error.into()),
    };
    output.result(&Document { key, result }, || text);
    Ok(ended)
}
