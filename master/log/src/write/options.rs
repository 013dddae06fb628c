//! Options of the log: syncs, sizes and intervals.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::observe::LogObserver;
use crate::disk::pace::SyncPace;

/// Guarantee of an acknowledged entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogSync {
    /// It survives a loss of power, by `fdatasync`, if the drive tells the truth about it.
    #[default]
    Fdatasync,
    /// It survives the death of the process only. A power failure may lose acknowledged entries. The mark, which is
    /// always synced, then makes this master refuse to start, unless only the last second was lost. Votes are synced
    /// all the same, so that no term has two leaders.
    None,
}

impl fmt::Display for LogSync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fdatasync => "fdatasync",
            Self::None => "none",
        })
    }
}

impl FromStr for LogSync {
    type Err = LogSyncError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "fdatasync" => Ok(Self::Fdatasync),
            "none" => Ok(Self::None),
            other => Err(LogSyncError(other.to_owned())),
        }
    }
}

/// Error of a text that names no [`LogSync`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--log-sync is `{0}`: it can be `fdatasync` or `none`")]
pub struct LogSyncError(pub String);

/// Options of an open log. None of them is fixed when the log is created.
#[derive(Clone)]
pub struct LogOptions {
    /// Guarantee of an acknowledgement.
    pub sync: LogSync,
    /// Memory for the newest entries, in bytes. Followers that are further behind are served from the disk.
    pub tail_bytes: usize,
    /// Maximum bytes that one limited read returns; it returns one entry at least. This caps an append message.
    pub read_bytes: usize,
    /// Interval at which the last durable index is written as the mark; longer on a disk whose syncs are slow. Each
    /// mark costs a sync. A shorter interval notices smaller losses.
    pub mark_every: Duration,
    /// Time after which a disk operation counts as failed, and the log stops with an error that says so. A leader whose
    /// disk is merely slow hands over long before.
    pub stuck_after: Duration,
    /// Observer of the timings.
    pub observer: Arc<dyn LogObserver>,
    /// Durations of the writer's syncs.
    pub pace: Arc<SyncPace>,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            sync: LogSync::default(),
            tail_bytes: 64 << 20,
            read_bytes: 2 << 20,
            mark_every: Duration::from_secs(1),
            stuck_after: Duration::from_secs(60),
            observer: Arc::new(()),
            pace: Arc::default(),
        }
    }
}
