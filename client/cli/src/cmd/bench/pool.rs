//! The pool that a bench runs against: the one that `--masters` names, or its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use crate::args::Global;
use crate::children::{Cluster, Shape};
use crate::output::{human_bytes, note};

const READY_WITHIN: Duration = Duration::from_secs(30);

/// A pool to measure.
#[derive(Debug)]
pub(crate) enum Pool {
    /// Child processes, gone when this is dropped.
    Own(Box<Cluster>),
    /// Somebody's.
    Given(String),
}

impl Pool {
    /// The pool that `--masters` names. Without the flag, one of child processes in `shape`: a load test never goes to
    /// a pool just because an environment variable names it.
    pub(crate) async fn open(global: &Global, shape: &Shape) -> Result<Self> {
        if let Some(masters) = global.masters_flag() {
            return Ok(Self::Given(masters.to_owned()));
        }
        if std::env::var_os("MC_MASTERS").is_some_and(|masters| !masters.is_empty()) {
            note("measuring a pool of its own; --masters \"$MC_MASTERS\" measures that one");
        }
        note(&format!(
            "starting {} masters and {} stores of {}",
            shape.masters,
            shape.stores,
            human_bytes(shape.segment.0)
        ));
        let mut cluster = Cluster::start(shape)?;
        cluster.wait_ready(READY_WITHIN).await?;
        Ok(Self::Own(Box::new(cluster)))
    }

    /// Addresses of the masters.
    pub(crate) fn masters(&self) -> String {
        match self {
            Self::Own(cluster) => cluster.addresses(),
            Self::Given(masters) => masters.clone(),
        }
    }

    /// Where the disk is measured: beside the masters' data where that is here.
    pub(crate) fn disk(&self, wanted: Option<&Path>) -> PathBuf {
        match self {
            Self::Own(cluster) => cluster.dir().to_owned(),
            Self::Given(_) => wanted.map_or_else(std::env::temp_dir, Path::to_owned),
        }
    }
}
