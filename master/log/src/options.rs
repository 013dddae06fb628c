//! How a log is run.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::observe::LogObserver;
use super::pace::SyncPace;

/// Guarantee of an acknowledged entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogSync {
    /// `fdatasync`: the loss of power, as far as the drive tells the truth.
    #[default]
    Fdatasync,
    /// Only the death of the process. A power failure may lose acknowledged entries; the mark, which is always synced,
    /// then makes this master refuse to start rather than vote without them, unless they are of the last moment. Votes
    /// are synced all the same, so that no term has two leaders.
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

/// Text that names no [`LogSync`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--log-sync is `{0}`: it can be `fdatasync` or `none`")]
pub struct LogSyncError(pub String);

/// How a log is run. None of this is fixed when the log is made.
#[derive(Clone)]
pub struct LogOptions {
    /// Guarantee of an acknowledgement.
    pub sync: LogSync,
    /// Memory for the newest entries, in bytes. Followers further behind than this are served from the disk.
    pub tail_bytes: usize,
    /// The most that one limited read returns, in bytes; one entry at least. Caps an append message.
    pub read_bytes: usize,
    /// How often the last durable index is noted; less often on a disk whose syncs are slow. A shorter interval notices
    /// smaller losses and costs one sync each.
    pub mark_every: Duration,
    /// A disk operation that takes longer than this has failed: the log stops with an error that says so. A disk that
    /// is merely slow is the leader's matter, long before.
    pub stuck_after: Duration,
    /// Takes the timings.
    pub observer: Arc<dyn LogObserver>,
    /// Where the writer notes how long its syncs take.
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
