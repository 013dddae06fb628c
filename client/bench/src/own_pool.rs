//! A pool of child processes that a bench starts for itself.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use mc_console::Global;
use mc_testbed::{Cluster, Shape};

use crate::machine::Machine;

/// Time limit until a pool is ready, and until a client has found its leader.
pub(crate) const READY_WITHIN: Duration = Duration::from_secs(30);

/// Fails if the command line names a pool, with the reason why the bench can't use it.
pub(crate) fn refuse_masters(global: &Global, why: &str) -> Result<()> {
    ensure!(global.masters_flag().is_none(), "{why}: leave --masters out");
    Ok(())
}

/// Starts a pool with its data below `data_dir`, waits until it is ready, and measures this machine with its disk.
pub(crate) async fn start(mut shape: Shape, data_dir: Option<&PathBuf>) -> Result<(Cluster, Machine)> {
    shape.data_dir = data_dir.cloned();
    let mut cluster = Cluster::start(&shape)?;
    cluster.wait_ready(READY_WITHIN).await?;
    let machine = Machine::measure(cluster.dir().to_owned()).await?;
    Ok((cluster, machine))
}
