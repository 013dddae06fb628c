//! `mcctl monitoring`: writes deploy/grafana and deploy/prometheus/alerts.yml, the dashboards and alerts of this build.

mod alerts;
mod board;
mod grafana;
mod overview;
mod pool;
mod raft;
mod stores;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;

use board::Board;
use mc_console::{Ended, Output};

#[derive(Debug, Args)]
pub(crate) struct MonitoringArgs {
    /// Folder for `grafana/*.json` and `prometheus/alerts.yml`; existing files of these names are replaced
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
}

const BOARDS: [&Board; 4] = [&overview::BOARD, &raft::BOARD, &pool::BOARD, &stores::BOARD];

#[derive(Serialize)]
struct Document {
    files: Vec<PathBuf>,
}

pub(crate) fn monitoring(args: &MonitoringArgs, output: Output) -> Result<Ended> {
    let mut written = Vec::new();
    for (path, text) in files()? {
        let path = args.dir.join(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        written.push(path);
    }
    let document = Document { files: written };
    output.result(&document, || {
        document.files.iter().map(|file| format!("wrote {}\n", file.display())).collect()
    });
    Ok(Ended::Well)
}

/// Returns each file with its path below the folder.
fn files() -> Result<Vec<(String, String)>> {
    let mut files = Vec::new();
    for board in BOARDS {
        let text =
            serde_json::to_string_pretty(&grafana::model(board)).context("cannot write a board as JSON")?;
        files.push((format!("grafana/{}.json", board.name), text + "\n"));
    }
    files.push(("prometheus/alerts.yml".to_owned(), alerts::rules()));
    Ok(files)
}
