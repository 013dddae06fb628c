//! Watch over the free space on the disk of the data directory.
//!
//! A master whose log cannot be written ends, and the disks of a cluster tend to fill at the same time. So a leader
//! stops starting puts while there is still room for what it must write anyway: two snapshots and the log. Calls that
//! end puts, free memory or read are still served.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use arc_swap::ArcSwapOption;
use mc_durable::FreeSpace;
use tokio_util::sync::CancellationToken;

use crate::metrics::MasterMetrics;

/// Time between two looks at the free space. A disk writes a fraction of the default reserve in that time.
const INTERVAL: Duration = Duration::from_millis(500);

/// Sizes of the files in a data directory that may have to be written once more.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Holdings {
    /// Bytes of the newest snapshot.
    pub(crate) snapshot: u64,
    /// Bytes of the log that have not been purged.
    pub(crate) log: u64,
}

/// A disk that has less free space than the master needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskShortage {
    free: u64,
    needed: u64,
    /// Reason for the need, for messages.
    needed_for: &'static str,
}

impl fmt::Display for DiskShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (free, needed) = (self.free >> 20, self.needed.div_ceil(1 << 20));
        write!(f, "{free} MiB are free and {needed} MiB are needed ({})", self.needed_for)
    }
}

/// Returns the space that is needed, and the shortage if there is one.
///
/// A shortage ends only when an eighth more than needed is free. Otherwise a disk at the edge would make the leader
/// accept and refuse puts in turns.
fn judge(was_short: bool, free: u64, reserve: u64, holdings: Holdings) -> (u64, Option<DiskShortage>) {
    let writes = holdings.snapshot.saturating_mul(2).saturating_add(holdings.log);
    let (needed, needed_for) = match writes > reserve {
        true => (writes, "two snapshots and the log"),
        false => (reserve, "--disk-reserve"),
    };
    let enough = if was_short { needed.saturating_add(needed / 8) } else { needed };
    (needed, (free < enough).then_some(DiskShortage { free, needed, needed_for }))
}

/// The disk of one data directory, as the last look found it, so that no call waits for a file system.
#[derive(Debug)]
pub(crate) struct DataDisk {
    dir: PathBuf,
    /// Free bytes that must remain at least (`--disk-reserve`).
    reserve: u64,
    space: Arc<dyn FreeSpace>,
    shortage: ArcSwapOption<DiskShortage>,
}

impl DataDisk {
    pub(crate) fn new(dir: &Path, reserve: u64, space: Arc<dyn FreeSpace>) -> Arc<Self> {
        // An absolute path: a reader of the log may not know the directory where this process was started.
        let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
        Arc::new(Self { dir, reserve, space, shortage: ArcSwapOption::empty() })
    }

    /// The data directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The shortage that the last look found, if any.
    pub(crate) fn shortage(&self) -> Option<DiskShortage> {
        self.shortage.load().as_deref().copied()
    }

    /// Looks at the free space once. Logs when a shortage begins and when it ends.
    pub(crate) async fn look(
        self: &Arc<Self>,
        holdings: Holdings,
        metrics: &MasterMetrics,
    ) -> io::Result<()> {
        let this = self.clone();
        let asked = mc_durable::blocking(move || this.space.free_bytes(&this.dir));
        let free = asked.await.map_err(io::Error::other)??;
        let was_short = self.shortage().is_some();
        let (needed, shortage) = judge(was_short, free, self.reserve, holdings);
        metrics.data_dir(free, needed);
        self.shortage.store(shortage.map(Arc::new));
        let dir = self.dir.display();
        match (was_short, shortage) {
            (false, Some(shortage)) => tracing::warn!(
                "the disk of the data directory {dir} is nearly full: {shortage}; make room there: while this master \
                 leads, no puts are started"
            ),
            (true, None) => tracing::info!(
                "the disk of the data directory {dir} has room again: {} MiB are free",
                free >> 20
            ),
            _ => {}
        }
        Ok(())
    }

    /// Looks at the free space repeatedly until `stop`. Logs the first of several failures in a row; a failure leaves
    /// the last result in place.
    pub(crate) async fn keep_watch(
        self: Arc<Self>,
        holdings: impl Fn() -> Holdings,
        metrics: Arc<MasterMetrics>,
        stop: CancellationToken,
    ) {
        let watch = async {
            let mut known = true;
            loop {
                let looked = self.look(holdings(), &metrics).await;
                if let Err(error) = &looked
                    && known
                {
                    let dir = self.dir.display();
                    tracing::warn!("cannot read the free space of the data directory {dir}: {error}");
                }
                known = looked.is_ok();
                tokio::time::sleep(INTERVAL).await;
            }
        };
        // A file system that hangs must not keep this master from ending.
        stop.run_until_cancelled(watch).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn shortage(was_short: bool, free: u64, holdings: Holdings) -> Option<String> {
        judge(was_short, free, GIB, holdings).1.map(|shortage| shortage.to_string())
    }

    #[test]
    fn two_snapshots_and_the_log_must_fit_and_the_reserve_at_least() {
        let small = Holdings { snapshot: 100 << 20, log: 64 << 20 };
        assert_eq!(shortage(false, GIB, small), None);
        let said = shortage(false, GIB - 1, small).unwrap();
        assert_eq!(said, "1023 MiB are free and 1024 MiB are needed (--disk-reserve)");

        let large = Holdings { snapshot: 2 * GIB, log: GIB };
        assert_eq!(shortage(false, 5 * GIB, large), None);
        let said = shortage(false, 5 * GIB - 1, large).unwrap();
        assert_eq!(said, "5119 MiB are free and 5120 MiB are needed (two snapshots and the log)");
        assert!(shortage(false, u64::MAX - 1, Holdings { snapshot: u64::MAX, log: 1 }).is_some());
    }

    #[test]
    fn a_shortage_ends_with_an_eighth_to_spare() {
        let nothing = Holdings::default();
        assert!(shortage(true, GIB + GIB / 8 - 1, nothing).is_some());
        assert_eq!(shortage(true, GIB + GIB / 8, nothing), None);
    }

    #[test]
    fn the_file_system_tells_its_free_space() {
        assert!(mc_durable::FileSystem.free_bytes(&std::env::temp_dir()).unwrap() > 0);
        assert!(mc_durable::FileSystem.free_bytes(Path::new("/nowhere/at/all")).is_err());
    }
}
