//! `mcctl members rescue`: makes a cluster of one from a survivor's data directory.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use mc_console::{Ended, Output};
use mc_log::OnSled;
use mc_master::{Prepared, Rescue, Rescued};
use serde::Serialize;

#[derive(Debug, Args)]
pub(crate) struct RescueArgs {
    /// Data directory of the surviving master, which must be stopped
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
    /// Make the changes; without this flag the command only prints them
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Serialize)]
struct Document {
    done: bool,
    /// The surviving master; absent when this run completes an earlier attempt that was cut short.
    survivor: Option<Survivor>,
    /// Id of the new cluster; absent until the rescue is done.
    new_cluster: Option<String>,
    /// Directory with the previous contents of the data directory.
    backup: Option<String>,
}

#[derive(Serialize)]
struct Survivor {
    node: String,
    cluster: String,
    keys: u64,
    last_index: u64,
}

pub(crate) async fn rescue(args: &RescueArgs, output: Output) -> Result<Ended> {
    mc_log::keep_caught_panics_quiet();
    mc_process::keep_files_private();
    let rescue = match Rescue::prepare(&args.data_dir, Arc::new(OnSled::default())).await? {
        Prepared::Survivor(rescue) => *rescue,
        Prepared::Finished(rescued) => {
            done(None, &rescued, output);
            return Ok(Ended::Well);
        }
    };
    let survivor = Survivor {
        node: rescue.node().to_string(),
        cluster: rescue.cluster().to_string(),
        keys: rescue.keys(),
        last_index: rescue.last_index(),
    };
    if args.yes {
        let rescued = rescue.carry_out().await?;
        done(Some(survivor), &rescued, output);
        return Ok(Ended::Well);
    }
    let Survivor { node, cluster, keys, last_index } = &survivor;
    let text = format!(
        "master {node} of cluster {cluster} has {keys} keys, up to log index {last_index}.\n\
         With --yes it becomes a cluster of one, with a new cluster id. What the other masters acknowledged and this one \
         never received is lost, and the others must not run again with what they have: empty their data directories \
         first. Nothing has been changed."
    );
    output
        .result(&Document { done: false, survivor: Some(survivor), new_cluster: None, backup: None }, || {
            text
        });
    Ok(Ended::Negative)
}

fn done(survivor: Option<Survivor>, rescued: &Rescued, output: Output) {
    let Rescued { cluster, backup } = rescued;
    let backup = backup.display();
    let document = Document {
        done: true,
        survivor,
        new_cluster: Some(cluster.to_string()),
        backup: Some(backup.to_string()),
    };
    output.result(&document, || {
        format!(
            "a cluster of one now, {cluster}; what was there before is in {backup}.\n\
             Start this master as before and the other masters with empty data directories, and take those in with \
             `mcctl members add`. Leave the stores running: they follow once most of their --masters report the new cluster."
        )
    });
}
