//! The pool: how full it is, and how it gets room again.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use mc_client::Admin;
use mc_console::connect;
use mc_testbed::Cluster;

use crate::masters::Masters;

/// Pause between two looks at the pool.
const LOOK: Duration = Duration::from_millis(5);
/// Longest wait for the leader to evict most objects.
const PATIENCE: Duration = Duration::from_secs(60);
/// Share of the pool that is in use after it was emptied, at most. Objects that were just read are leased and stay.
const EMPTIED: f64 = 0.3;

/// Watermarks of the pool: the low one, then the high one.
pub(super) const WATERMARKS: [&str; 2] = ["0.92", "0.95"];
/// Watermarks that empty the pool to below [`EMPTIED`].
const EMPTYING: [&str; 2] = ["0.1", "0.2"];

/// Figures from the metrics of the leader.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// Share of the pool's bytes that is allocated.
    pub(super) used: f64,
    /// Objects evicted in this term.
    pub(super) evicted: f64,
    /// Calls of puts that had to wait for an eviction.
    pub(super) waited: f64,
}

/// The masters of a pool.
pub(super) struct Pool {
    masters: Masters,
    admin: Admin,
}

impl Pool {
    pub(super) async fn of(cluster: &Cluster) -> Result<Self> {
        let addresses = cluster.addresses();
        Ok(Self { masters: Masters::find(&addresses).await?, admin: connect::admin(&addresses).await? })
    }

    pub(super) async fn look(&self) -> Result<Seen> {
        let names = [
            "mc_pool_used_bytes",
            "mc_pool_capacity_bytes",
            "mc_evicted_objects_total",
            "mc_master_puts_waited_total",
        ];
        let [used, capacity, evicted, waited] = self.masters.leader_values(names).await?;
        ensure!(capacity > 0.0, "the leader knows of no store's memory");
        Ok(Seen { used: used / capacity, evicted, waited })
    }

    /// Lets the leader evict most objects, and waits until it has.
    pub(super) async fn empty(&self) -> Result<Seen> {
        self.set_watermarks(EMPTYING).await?;
        let begun = Instant::now();
        let seen = loop {
            let seen = self.look().await?;
            if seen.used <= EMPTIED {
                break seen;
            }
            ensure!(
                begun.elapsed() < PATIENCE,
                "{:.0} % of the pool are still in use {PATIENCE:?} after eviction was told to leave 10 %",
                100.0 * seen.used
            );
            tokio::time::sleep(LOOK).await;
        };
        self.set_watermarks(WATERMARKS).await?;
        Ok(seen)
    }

    pub(super) async fn set_watermarks(&self, [low, high]: [&str; 2]) -> Result<()> {
        // The low one must be below the high one at any time.
        self.admin.set_config("eviction-low-watermark", "0.01").await?;
        self.admin.set_config("eviction-high-watermark", high).await?;
        self.admin.set_config("eviction-low-watermark", low).await?;
        Ok(())
    }
}
