use std::fmt;
use std::sync::{Arc, Weak};

use mc_types::SegmentNumber;
use parking_lot::RwLock;

use super::served::ServedMemory;
use crate::memory::Segment;
use crate::transport::Peer;

/// A data server, as far as this process's own calls use it.
pub(crate) type OwnServer = dyn AsRef<ServedMemory> + Send + Sync;

/// The memory of a store: its segments, which come and go while it serves.
#[derive(Default)]
pub struct Memory {
    /// Segments by number. `None` marks a segment that was unmounted; its number is not used again.
    segments: RwLock<Vec<Option<Arc<Segment>>>>,
    /// The present server, or one that has ended.
    server: RwLock<Option<Weak<OwnServer>>>,
}

impl Memory {
    /// Returns the memory of segments numbered from 0.
    #[must_use]
    pub fn of(segments: Vec<Arc<Segment>>) -> Self {
        Self { segments: RwLock::new(segments.into_iter().map(Some).collect()), server: RwLock::default() }
    }

    /// Returns the memory of segments by number; `None` for one that was unmounted.
    #[must_use]
    pub fn of_kept(segments: Vec<Option<Arc<Segment>>>) -> Self {
        Self { segments: RwLock::new(segments), server: RwLock::default() }
    }

    /// Sets the server that serves this memory: see [`DataServer::admit_own_calls`](crate::DataServer::admit_own_calls).
    pub(crate) fn set_server(&self, server: Weak<OwnServer>) {
        *self.server.write() = Some(server);
    }

    /// Returns the server of this memory if `peer` names this store and its present epoch.
    pub(crate) fn server(&self, peer: &Peer) -> Option<Arc<OwnServer>> {
        let server = self.server.read().as_ref()?.upgrade()?;
        (*server).as_ref().is_of(peer).then_some(server)
    }

    /// Returns a segment; `None` when it was unmounted or never there.
    #[must_use]
    pub fn segment(&self, number: SegmentNumber) -> Option<Arc<Segment>> {
        self.segments.read().get(usize::try_from(number).ok()?)?.clone()
    }

    /// Returns all segments, by number.
    #[must_use]
    pub fn segments(&self) -> Vec<Arc<Segment>> {
        self.segments.read().iter().flatten().cloned().collect()
    }

    /// Returns the bytes of each segment by number, 0 for one that was unmounted.
    #[must_use]
    pub fn sizes(&self) -> Vec<u64> {
        self.segments
            .read()
            .iter()
            .map(|segment| segment.as_ref().map_or(0, |segment| segment.len()))
            .collect()
    }

    /// Bytes of all segments.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.sizes().iter().sum()
    }

    /// Adds a segment, whose number must be the next one: the length of [`Self::sizes`].
    ///
    /// # Panics
    /// When it has another number.
    pub fn add(&self, segment: Arc<Segment>) {
        let mut segments = self.segments.write();
        assert_eq!(usize::try_from(segment.number()), Ok(segments.len()), "segments are numbered in order");
        segments.push(Some(segment));
    }

    /// Removes a segment and returns it. Its memory is released with the last holder, which takes a while for gigabytes.
    pub fn remove(&self, number: SegmentNumber) -> Option<Arc<Segment>> {
        let place = usize::try_from(number).unwrap_or(usize::MAX);
        self.segments.write().get_mut(place)?.take()
    }

    /// Removes all segments, as [`Self::remove`] does.
    pub fn clear(&self) {
        let removed = std::mem::take(&mut *self.segments.write());
        drop(removed);
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("segments", &self.segments()).finish_non_exhaustive()
    }
}
