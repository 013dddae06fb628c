//! The memory of a store at its start: allocated, or taken up as the last process has left it.

use std::sync::Arc;
use std::time::Duration;

use mc_transfer::{AllocateError, KeptMemory, Memory, NotKept, Segment, SegmentDir};
use mc_types::{ByteSize, MAX_SEGMENTS, SegmentNumber, StoreId};
use tracing::{info, warn};

use crate::config::{Config, InvalidConfig, SMALLEST_SEGMENT};
use crate::error::StartError;
use crate::link::{Announced, Registration};
use crate::state::{MemoryStart, StoreState};

/// Longest wait for the end of a process that uses the same data directory. One that has kept its memory is worth a longer one: the new
/// process goes on with it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
pub(crate) const KEEPING_PATIENCE: Duration = Duration::from_secs(60);

/// The memory, and the registration under which it is to be served.
pub(crate) struct StartMemory {
    pub(crate) memory: Arc<Memory>,
    pub(crate) dir: Option<Arc<SegmentDir>>,
    pub(crate) registration: Registration,
    /// State of the memory at the masters, as the previous process knew it.
    pub(crate) announced: Option<Announced>,
}

/// Reports the bytes that are ready and the bytes in total.
type Progress = Box<dyn FnMut(ByteSize, ByteSize) + Send>;

/// Brings about the memory, and notes in `state` how. Runs apart from the runtime's threads.
pub(crate) async fn start_memory(
    config: &Config,
    store: StoreId,
    state: Arc<StoreState>,
    progress: Progress,
) -> Result<StartMemory, StartError> {
    let mut start = Start { config: config.clone(), store, state, progress };
    let started = mc_durable::blocking(move || start.run()).await;
    started.unwrap_or_else(|failed| {
        Err(StartError::System { what: "memory", source: std::io::Error::other(failed.to_string()) })
    })
}

/// Allocates a segment for a store that lends `lent` bytes already, in a directory if it has one.
pub(crate) fn allocate(
    dir: Option<&SegmentDir>,
    lent: u64,
    number: SegmentNumber,
    len: u64,
    progress: &mut dyn FnMut(u64),
) -> Result<Arc<Segment>, AllocateError> {
    match dir {
        Some(dir) => dir.allocate_beside(lent, number, len, progress),
        None => Segment::allocate_beside(lent, number, len, progress),
    }
}

struct Start {
    config: Config,
    store: StoreId,
    state: Arc<StoreState>,
    progress: Progress,
}

impl Start {
    fn run(&mut self) -> Result<StartMemory, StartError> {
        let Some(path) = self.config.segment_dir.clone() else {
            let memory = Memory::of(self.allocate_all(None)?);
            self.state.note_start(MemoryStart::Allocated);
            let registration = Registration::draw();
            return Ok(StartMemory { memory: Arc::new(memory), dir: None, registration, announced: None });
        };
        let (dir, kept) = SegmentDir::open(&path, self.store, KEEPING_PATIENCE)?;
        match kept {
            Ok(kept) => self.go_on(kept, dir),
            Err(why) => self.begin(why, dir),
        }
    }

    /// Goes on with the memory of the last process, with the segments that came and went while it ran. If more is asked for than it was
    /// asked for, the difference is one segment more.
    fn go_on(&mut self, kept: KeptMemory, dir: SegmentDir) -> Result<StartMemory, StartError> {
        let KeptMemory { mut segments, asked: asked_before, epoch, incarnation, cluster, time, .. } = kept;
        let lent: u64 = segments.iter().flatten().map(|segment| segment.len()).sum();
        let asked = self.config.lent_bytes();
        if asked < asked_before.min(lent) {
            let (path, kept, asked) = (dir.path().to_owned(), ByteSize(lent), ByteSize(asked));
            return Err(StartError::Smaller { path, kept, asked });
        }
        self.state.set_allocated(lent);
        let more = ByteSize(asked.saturating_sub(asked_before.max(lent)));
        if more >= SMALLEST_SEGMENT {
            let number = SegmentNumber::try_from(segments.len()).ok();
            let number =
                number.filter(|_| segments.len() < MAX_SEGMENTS).ok_or(InvalidConfig::TooManySegments)?;
            segments.push(Some(self.allocate(Some(&dir), lent, number, more)?));
        } else if more.0 > 0 {
            return Err(InvalidConfig::SmallSegment(more).into());
        }
        dir.note_asked(asked);
        info!(dir = %dir.path().display(), bytes = lent, %epoch, incarnation, "warm start: serving the memory that the last process left");
        self.state.note_start(MemoryStart::Warm);
        Ok(StartMemory {
            memory: Arc::new(Memory::of_kept(segments)),
            registration: Registration { epoch, incarnation, ..Registration::draw() },
            announced: Some(Announced { cluster, time, order: dir.highest_order() }),
            dir: Some(Arc::new(dir)),
        })
    }

    fn begin(&mut self, why: NotKept, dir: SegmentDir) -> Result<StartMemory, StartError> {
        match why {
            NotKept::New => info!(dir = %dir.path().display(), "cold start: {why}"),
            _ => warn!(dir = %dir.path().display(), "cold start: what the store held is lost: {why}"),
        }
        dir.begin(self.config.lent_bytes())?;
        let memory = Arc::new(Memory::of(self.allocate_all(Some(&dir))?));
        let registration = Registration::draw();
        dir.note_epoch(Some(registration.epoch));
        self.state.note_start(MemoryStart::Cold(why));
        Ok(StartMemory { memory, dir: Some(Arc::new(dir)), registration, announced: None })
    }

    fn allocate_all(&mut self, dir: Option<&SegmentDir>) -> Result<Vec<Arc<Segment>>, StartError> {
        let sizes = self.config.segment.clone();
        let mut before = 0;
        let allocate = |(number, size): (SegmentNumber, ByteSize)| {
            let segment = self.allocate(dir, before, number, size)?;
            before += size.0;
            Ok(segment)
        };
        (0..).zip(sizes).map(allocate).collect()
    }

    fn allocate(
        &mut self,
        dir: Option<&SegmentDir>,
        before: u64,
        number: SegmentNumber,
        size: ByteSize,
    ) -> Result<Arc<Segment>, StartError> {
        let (state, progress) = (&self.state, &mut self.progress);
        let mut told = |ready: u64| {
            state.set_allocated(before + ready);
            progress(state.allocated(), state.capacity);
        };
        let segment = allocate(dir, before, number, size.0, &mut told)?;
        if let Some(dir) = dir {
            dir.add(&segment).map_err(|source| StartError::System { what: "file of a segment", source })?;
        }
        Ok(segment)
    }
}
