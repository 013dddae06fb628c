//! Segments that come and go while the store serves.

use std::sync::Arc;
use std::time::Duration;

use mc_transfer::{AllocateError, Segment};
use mc_types::{ByteSize, MAX_SEGMENTS, SegmentNumber};

use crate::config::SMALLEST_SEGMENT;
use crate::state::StoreState;

/// Mounts further segments of a store and unmounts segments, while the store serves. Clones are handles of the same
/// store.
#[derive(Clone)]
pub struct Segments(pub(crate) Arc<StoreState>);

/// The reason why a segment was not mounted or unmounted.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// The store has just started.
    #[error("the store still allocates the memory of its start: try again")]
    Starting,
    /// The segment would be too small.
    #[error("a segment of {0} is too small: lend at least {SMALLEST_SEGMENT}")]
    Small(ByteSize),
    /// The store has used up its numbers.
    #[error(
        "the store has mounted {MAX_SEGMENTS} segments since it started, and numbers are not used again: restart it"
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
    #[error("no leader confirmed it within {0:?}: the store goes on asking until one does")]
    Pending(Duration),
    /// The system refused a resource.
    #[error("the system gives no memory: {0}")]
    System(String),
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
        let serving = self.0.serving().ok_or(SegmentError::Starting)?;
        let one = self.0.changing.lock().await;
        let place = serving.data.memory().sizes().len();
        let number = SegmentNumber::try_from(place).map_err(|_| SegmentError::TooMany)?;
        if place >= MAX_SEGMENTS {
            return Err(SegmentError::TooMany);
        }
        let lent = serving.data.memory().bytes();
        let allocate = move || Segment::allocate_beside(lent, number, size.0, &mut |_| {});
        let allocated = tokio::task::spawn_blocking(allocate);
        let segment = allocated.await.map_err(|failed| SegmentError::System(failed.to_string()))??;
        // It is served before the masters know it: they grant access to it as soon as they do.
        serving.data.add(segment);
        serving.link.want(|segments| {
            segments.push(size.0);
            Ok::<_, SegmentError>(())
        })?;
        drop(one);
        let mounted = tokio::time::timeout(within, serving.link.until_mounted(place, size.0)).await;
        mounted.map(|()| number).map_err(|_| SegmentError::Pending(within))
    }

    /// Has the masters unmount a segment, with all replicas in it, and releases its memory once a leader has confirmed
    /// that.
    ///
    /// # Errors
    /// [`SegmentError`]. After [`SegmentError::Pending`] the segment is there, and will be unmounted. After any other
    /// error it stays mounted.
    pub async fn unmount(&self, number: SegmentNumber, within: Duration) -> Result<(), SegmentError> {
        let serving = self.0.serving().ok_or(SegmentError::Starting)?;
        let place = usize::try_from(number).map_err(|_| SegmentError::Unknown(number))?;
        let one = self.0.changing.lock().await;
        serving.link.want(|segments| {
            let mounted = segments.iter().filter(|bytes| **bytes > 0).count();
            match segments.get_mut(place) {
                None | Some(0) => Err(SegmentError::Unknown(number)),
                Some(_) if mounted == 1 => Err(SegmentError::Last(number)),
                Some(bytes) => {
                    *bytes = 0;
                    Ok(())
                }
            }
        })?;
        drop(one);
        let unmounted = tokio::time::timeout(within, serving.link.until_mounted(place, 0)).await;
        unmounted.map_err(|_| SegmentError::Pending(within))
    }
}

impl std::fmt::Debug for Segments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Segments").field(&self.0.store).finish()
    }
}
