//! `mcctl exist`.

use anyhow::{Result, bail};
use mc_client::Mode;
use serde::Serialize;

use crate::Ended;
use crate::args::{Global, KeyArgs};
use crate::connect;
use crate::output::Output;

#[derive(Serialize)]
struct Document<'a> {
    key: &'a str,
    exists: bool,
}

pub(crate) async fn exist(global: &Global, args: &KeyArgs, output: Output) -> Result<Ended> {
    let client = connect::client_with_leader(&global.masters(), global.timeout.0).await?;
    let exists = client.exist(&args.key).await?;
    if !exists && client.mode() == Mode::LocalOnly {
        bail!("the leader was lost before it answered: whether {} is there is not known", args.key);
    }
    output.result(&Document { key: &args.key, exists }, || {
        format!("{} is {}there", args.key, if exists { "" } else { "not " })
    });
    Ok(if exists { Ended::Well } else { Ended::Negative })
}
