//! Pool that a bench runs against: the one named by `--masters`, or one of its own.

use std::path::{Path, PathBuf};

use anyhow::Result;
use mc_console::{Global, human_bytes, note};
use mc_testbed::{Cluster, Shape};

use crate::own_pool::READY_WITHIN;

/// A pool to measure.
#[derive(Debug)]
pub(crate) enum Pool {
    /// Child processes, which end when this is dropped.
    Own(Box<Cluster>),
    /// Addresses of a pool that the user named.
    Given(String),
}

impl Pool {
    /// Opens the pool that `--masters` names, or else starts child processes in `shape`. An environment variable alone
    /// does not select a pool, so that a load test does not hit one by accident.
    pub(crate) async fn open(global: &Global, shape: &Shape) -> Result<Self> {
        if let Some(masters) = global.masters_flag() {
            return Ok(Self::Given(masters.to_owned()));
        }
        if std::env::var_os("MC_MASTERS").is_some_and(|masters| !masters.is_empty()) {
            note("measuring a new pool; add --masters \"$MC_MASTERS\" to measure the one in MC_MASTERS");
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

    /// Returns the addresses of the masters.
    pub(crate) fn masters(&self) -> String {
        match self {
            Self::Own(cluster) => cluster.addresses(),
            Self::Given(masters) => masters.clone(),
        }
    }

    /// Returns the directory where the disk is measured: that of an own pool, else `wanted`, else the system's
    /// temporary one.
    pub(crate) fn disk(&self, wanted: Option<&Path>) -> PathBuf {
        match self {
            Self::Own(cluster) => cluster.dir().to_owned(),
            Self::Given(_) => wanted.map_or_else(std::env::temp_dir, Path::to_owned),
        }
    }
}
