use std::sync::Arc;

use mc_log::{LogOptions, LogStore, OpenLog};
use tokio::time::Instant;

use super::error::StartError;
use crate::config::MasterArgs;
use crate::metrics::MasterMetrics;

/// The opened log, and whether it holds anything.
pub(crate) struct Log {
    pub(crate) store: LogStore,
    pub(super) has_state: bool,
}

impl Log {
    pub(super) async fn open(
        log: &dyn OpenLog,
        args: &MasterArgs,
        metrics: Arc<MasterMetrics>,
    ) -> Result<Self, StartError> {
        let options = LogOptions { sync: args.log_sync, observer: metrics.clone(), ..LogOptions::default() };
        let begun = Instant::now();
        let (store, recovered) = log.open(&args.data_dir.join("log"), options).await?;
        if let Some(last) = recovered.last {
            let first = store.stats().first;
            tracing::info!(first, last = last.index, took = ?begun.elapsed(), "the Raft log has been read");
        }
        if let Some(truncated) = &recovered.truncated {
            metrics.log_truncations.increment(1);
            tracing::warn!("{truncated}");
        }
        let has_state = recovered.vote.is_some() || recovered.last.is_some() || recovered.purged.is_some();
        Ok(Self { store, has_state })
    }
}
