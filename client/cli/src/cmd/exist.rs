//! `mcctl exist`: checks whether an object exists.

use anyhow::Result;
use clap::Args;
use mc_client::{Mode, Presence};
use mc_console::{Ended, Global, NoLeader, Output, Unavailable, connect, printable};
use serde::Serialize;

#[derive(Debug, Args)]
pub(crate) struct ExistArgs {
    /// Key of the object, 1 to 4,096 bytes
    pub(crate) key: String,
}

#[derive(Serialize)]
struct Document<'a> {
    key: &'a str,
    exists: bool,
}

pub(crate) async fn exist(global: &Global, args: &ExistArgs, output: Output) -> Result<Ended> {
    let client = connect::client_of(global).await?;
    let exists = match client.presence(&args.key).await? {
        Presence::Present(_) => true,
        Presence::Unavailable => return Err(Unavailable { key: args.key.clone() }.into()),
        Presence::BeingWritten | Presence::Absent => false,
    };
    if !exists && client.mode() == Mode::LocalOnly {
        let why = format!(
            "the leader was lost before it answered, so it is unknown whether {} exists; try again",
            printable(&args.key)
        );
        return Err(NoLeader(why).into());
    }
    output.result(&Document { key: &args.key, exists }, || {
        format!("{} is {}there", printable(&args.key), if exists { "" } else { "not " })
    });
    Ok(if exists { Ended::Well } else { Ended::Negative })
}
