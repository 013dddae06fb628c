//! Segments that come and go while the store serves.

use std::sync::Arc;
use std::time::Duration;

use mc_transfer::AllocateError;
use mc_types::{ByteSize, MAX_SEGMENTS, SegmentNumber};
use tracing::info;

use crate::config::SMALLEST_SEGMENT;
use crate::start::allocate;
use crate::state::{Serving, StoreState};

/// Mounts further segments of a store and unmounts segments, while the store serves. Clones are handles of the same
/// store.
#[derive(Clone)]
pub struct Segments(pub(crate) Arc<StoreState>);

/// The reason why a segment was not mounted or unmounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// The store has just started.
    #[error("the store still allocates the memory of its start: try again")]
    Starting,
    /// The segment would be too small.
    #[error("a segment of {0} is too small: lend at least {SMALLEST_SEGMENT}")]
    Small(ByteSize),
    /// The store has used up its numbers.
    #[error(
        "the store has mounted {MAX_SEGMENTS} segments, and numbers are not used again: restart it with \
         empty memory"
    )]
    TooMany,
    /// The memory cannot be allocated.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// There is no segment of this number.
    #[error("the store has no segment {0}")]
    Unknown(SegmentNumber),
    /// It is the last segment.
    #[error("segment {0} is the only one that is left: stop the store instead")]
    Last(SegmentNumber),
    /// No leader has confirmed the change in time.
    #[error(
        "no leader confirmed the change of segment {number} within {within:?}: the store goes on asking until one does"
    )]
    Pending {
        /// Number of the segment.
        number: SegmentNumber,
        /// Time of the wait.
        within: Duration,
    },
    /// The store has stopped.
    #[error("the store has stopped")]
    Stopped,
    /// The allocation failed.
    #[error("cannot allocate the segment: {0}")]
    Failed(String),
}

impl Segments {
    /// Returns the bytes of each segment by number, 0 for one that was unmounted; empty until the store serves.
    #[must_use]
    pub fn list(&self) -> Vec<u64> {
        self.0.serving().map(|serving| serving.data.memory().sizes()).unwrap_or_default()
    }

    /// Allocates a further segment, serves it, and has the masters mount it. Returns its number once a leader has
    /// confirmed that.
    ///
    /// # Errors
    /// [`SegmentError`]. After [`SegmentError::Pending`] the segment is there, and will be mounted. After any other
    /// error it is not.
    pub async fn mount(&self, size: ByteSize, within: Duration) -> Result<SegmentNumber, SegmentError> {
        if size < SMALLEST_SEGMENT {
            return Err(SegmentError::Small(size));
        }
        let serving = self.serving()?;
        let adding = self.0.adding.lock().await;
        let memory = serving.data.memory();
        let place = memory.sizes().len();
        let number = SegmentNumber::try_from(place).map_err(|_| SegmentError::TooMany)?;
        if place >= MAX_SEGMENTS {
            return Err(SegmentError::TooMany);
        }
        let (lent, dir, bytes) = (memory.bytes(), serving.data.dir(), size.0);
        let allocate = move || allocate(dir.as_deref(), lent, number, bytes, &mut |_| {});
        let allocated = tokio::task::spawn_blocking(allocate).await;
        let segment = allocated.map_err(|failed| SegmentError::Failed(failed.to_string()))??;
        self.serving()?;
        // It is served before the masters know it: they grant access to it as soon as they do.
        serving.data.add(segment).map_err(|error| SegmentError::Failed(error.to_string()))?;
        serving.link.want_mounted(bytes);
        info!(segment = number, bytes, "serving a further segment");
        drop(adding);
        let mounted = tokio::time::timeout(within, serving.link.until_mounted(place, bytes)).await;
        mounted.map(|()| number).map_err(|_| SegmentError::Pending { number, within })
    }

    /// Has the masters unmount a segment, with all replicas in it, and releases its memory once a leader has confirmed
    /// that. Repeated while that is pending, it waits again.
    ///
    /// # Errors
    /// [`SegmentError`]. After [`SegmentError::Pending`] the segment is there, and will be unmounted. After any other
    /// error it stays mounted.
    pub async fn unmount(&self, number: SegmentNumber, within: Duration) -> Result<(), SegmentError> {
        let serving = self.serving()?;
        let place = usize::try_from(number).map_err(|_| SegmentError::Unknown(number))?;
        let is_there = serving.data.memory().segment(number).is_some();
        serving.link.want_unmounted(place, |segments| {
            let others = segments.iter().enumerate().filter(|(other, bytes)| *other != place && **bytes > 0);
            match segments.get(place) {
                // An unmount that is pending.
                Some(0) if is_there => Ok(()),
                None | Some(0) => Err(SegmentError::Unknown(number)),
                Some(_) if others.count() == 0 => Err(SegmentError::Last(number)),
                Some(_) => {
                    serving.data.give_up(number);
                    Ok(())
                }
            }
        })?;
        info!(segment = number, "unmounting a segment");
        let unmounted = tokio::time::timeout(within, serving.link.until_mounted(place, 0)).await;
        unmounted.map_err(|_| SegmentError::Pending { number, within })
    }

    fn serving(&self) -> Result<&Serving, SegmentError> {
        match self.0.is_stopped() {
            true => Err(SegmentError::Stopped),
            false => self.0.serving().ok_or(SegmentError::Starting),
        }
    }
}

impl std::fmt::Debug for Segments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Segments").field(&self.0.store).finish()
    }
}
