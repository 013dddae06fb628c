//! `mcctl monitoring`: writes the dashboards and alerts of this build, which are the files in deploy.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;

use mc_console::{Ended, Output};

#[derive(Debug, Args)]
pub(crate) struct MonitoringArgs {
    /// Folder for `grafana/*.json` and `prometheus/alerts.yml`; existing files of these names are replaced
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
}

/// Includes a file of deploy, with its path below that folder.
macro_rules! deployed {
    ($path:literal) => {
        ($path, include_str!(concat!("../../../../deploy/", $path)))
    };
}

/// Each file with its path below the folder.
const FILES: [(&str, &str); 5] = [
    deployed!("grafana/overview.json"),
    deployed!("grafana/raft.json"),
    deployed!("grafana/pool.json"),
    deployed!("grafana/stores.json"),
    deployed!("prometheus/alerts.yml"),
];

#[derive(Serialize)]
struct Document {
    files: Vec<PathBuf>,
}

pub(crate) fn monitoring(args: &MonitoringArgs, output: Output) -> Result<Ended> {
    let mut written = Vec::new();
    for (path, text) in FILES {
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
