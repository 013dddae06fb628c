//! Memory that outlives its process: segments in files of a tmpfs or hugetlbfs, with a page that says what they hold. The next process of the
//! store takes them up as they are.
//!
//! **One process.** The directory is locked until the process ends, or has dropped all its segments. The system drops that lock with the
//! process's descriptors, and its queue pairs may end a moment later: so a process also waits until the one in the page is gone.
//!
//! **The page is true whenever its process dies.** Segments that hold nothing of worth are made, given up or emptied only while
//! the page says so: it says that they serve an epoch after all of them are there, and no longer before another epoch is served from
//! them. A further segment is in the page before it is served, and one that is unmounted is out of the page before a master hears of it.
//!
//! **The newest write.** The page has the highest order of all writes that were admitted, each noted before its first byte. An index that
//! is behind that order is not the one that these segments were written under, such as one that was restored from a copy.

mod process;
mod record;

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mc_durable::{DirectoryLock, DurableError};
use mc_types::{ByteSize, ClusterId, ClusterTime, MAX_SEGMENTS, SegmentEpoch, SegmentNumber, StoreId};
use parking_lot::Mutex;
use rustix::fs::FallocateFlags;

use self::process::ProcessId;
use self::record::{KeptFile, Record, Served};
use super::mapping::{HUGETLBFS_MAGIC, TMPFS_MAGIC};
use super::page::{PAGE_LEN, Page};
use super::segment::{AllocateError, Backing, Segment};

/// Version of the record in a page. A record of another one is not read.
const FORMAT: u8 = 1;
/// Pause between two looks at a process that is ending.
const LOOK: Duration = Duration::from_millis(10);

/// Memory that files of a directory are made of.
#[derive(Clone, Copy)]
struct MemoryKind {
    /// Bytes of a page.
    page: u64,
    /// Whether the pages are huge ones (hugetlbfs), which the machine has set apart.
    is_huge: bool,
}

/// A directory of segments, used by this process alone. It stays locked until all its segments are dropped, too.
pub struct SegmentDir {
    path: PathBuf,
    memory: MemoryKind,
    page: Arc<Page>,
    record: Mutex<Record>,
}

/// The memory that the previous process has left in a directory.
pub struct KeptMemory {
    /// Segments by number; `None` for one that was unmounted.
    pub segments: Vec<Option<Arc<Segment>>>,
    /// Bytes that the other process was asked to lend when it started. Segments may have come and gone since.
    pub asked: u64,
    /// Epoch of the objects in them.
    pub epoch: SegmentEpoch,
    /// Number of this process among those that have served the epoch.
    pub incarnation: u64,
    /// Cluster to whose leader the epoch was announced.
    pub cluster: Option<ClusterId>,
    /// The latest time of that cluster that was heard.
    pub time: ClusterTime,
}

/// Why a directory can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentDirError {
    /// It is on a disk, or on a file system that this build can't keep memory on.
    #[error(
        "{path} is neither on a tmpfs nor on a hugetlbfs: memory is kept in files of one, such as a directory in /dev/shm",
        path = path.display()
    )]
    NotMemory {
        /// The directory.
        path: PathBuf,
    },
    /// Other users may put files there.
    #[error("{path} is open to other users, or belongs to one: name a directory of this store's own in it", path = path.display())]
    Shared {
        /// The directory.
        path: PathBuf,
    },
    /// It can't be created or locked.
    #[error(transparent)]
    Lock(#[from] DurableError),
    /// There is nothing to release.
    #[error("{path} has no memory of a store", path = path.display())]
    Nothing {
        /// The directory.
        path: PathBuf,
    },
    /// It has what another store has left.
    #[error(
        "{path} has the memory of store {there}, and this is store {here}: choose another directory, or free that memory with \
         `mc-store --release {path}`",
        path = path.display()
    )]
    OtherStore {
        /// The directory.
        path: PathBuf,
        /// The store that has used it.
        there: StoreId,
        /// The store that is started.
        here: StoreId,
    },
    /// The previous process still runs.
    #[error("another process uses {path}, and has not ended within {patience:?}: stop it", path = path.display())]
    StillRuns {
        /// The directory.
        path: PathBuf,
        /// Time of the wait.
        patience: Duration,
    },
    /// The system refused an operation.
    #[error("cannot {action} {path}: {source}", path = path.display())]
    Io {
        /// The attempted step, such as `open`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Why the segments in a directory are of no use to this process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotKept {
    /// No process has used it.
    #[error("the directory is new")]
    New,
    /// The page has no intact record, or one of another build.
    #[error("its page has no record that this build reads")]
    Unreadable,
    /// The last process had not allocated its memory, or was giving up an epoch.
    #[error("the last process ended before it served the memory")]
    NotServed,
    /// The machine was rebooted.
    #[error("the machine was rebooted")]
    Rebooted,
    /// A file is not the one that the last process has used, or lacks bytes.
    #[error("segment {number} is not as it was left: {why}")]
    Changed {
        /// Number of the segment.
        number: SegmentNumber,
        /// The difference.
        why: String,
    },
}

impl NotKept {
    /// Returns a short name of the reason.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Unreadable => "unreadable",
            Self::NotServed => "not_served",
            Self::Rebooted => "rebooted",
            Self::Changed { .. } => "changed",
        }
    }

    /// Lists the names of all reasons.
    pub const NAMES: [&'static str; 5] = ["new", "unreadable", "not_served", "rebooted", "changed"];
}

impl SegmentDir {
    /// Locks a directory for `store`, and takes up the memory that another process of it has left there, of which it reads none.
    ///
    /// Creates the directory if it is missing. Waits up to `patience` until the previous process has ended. Blocks. If the memory is of
    /// no use, [`Self::begin`] comes next.
    ///
    /// # Errors
    /// [`SegmentDirError`]
    pub fn open(
        path: &Path,
        store: StoreId,
        patience: Duration,
    ) -> Result<(Self, Result<KeptMemory, NotKept>), SegmentDirError> {
        let until = Instant::now() + patience;
        let (lock, memory) = lock(path, patience)?;
        let io = |action| move |source| SegmentDirError::Io { action, path: path.to_owned(), source };
        let file = path.join(PAGE);
        let is_new = !file.exists();
        let file = options().create(true).truncate(false).open(&file).map_err(io("open the page of"))?;
        // All of it: an access to a page that the file system has no room for would end the process.
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, PAGE_LEN.next_multiple_of(memory.page))
            .map_err(|error| io("write the page of")(error.into()))?;
        let (page, body) = Page::open(&file, lock).map_err(io("map the page of"))?;
        let left = match body.as_deref().map(decode) {
            Some(Some(record)) if record.boot != boot() => Err(NotKept::Rebooted),
            Some(Some(record)) => Ok(record),
            None if is_new => Err(NotKept::New),
            _ => Err(NotKept::Unreadable),
        };
        if let Ok(left) = &left {
            if left.store != store {
                let (path, there) = (path.to_owned(), left.store);
                return Err(SegmentDirError::OtherStore { path, there, here: store });
            }
            while left.process.runs() {
                if Instant::now() >= until {
                    return Err(SegmentDirError::StillRuns { path: path.to_owned(), patience });
                }
                std::thread::sleep(LOOK);
            }
        }
        let record = Record {
            boot: boot(),
            store,
            process: ProcessId::own(),
            served: None,
            asked: 0,
            segments: Vec::new(),
        };
        let dir = Self { path: path.to_owned(), memory, page: Arc::new(page), record: Mutex::new(record) };
        let kept = left.and_then(|left| dir.take_up(left));
        Ok((dir, kept))
    }

    /// Removes all that a store has left in a directory. Waits up to `patience` until the last process has ended.
    ///
    /// # Errors
    /// [`SegmentDirError`], [`SegmentDirError::Nothing`] among them.
    pub fn release(path: &Path, patience: Duration) -> Result<(), SegmentDirError> {
        let page = path.join(PAGE);
        if !page.exists() {
            return Err(SegmentDirError::Nothing { path: path.to_owned() });
        }
        let _lock = lock(path, patience)?;
        remove_segments(path, |_| true)?;
        fs::remove_file(&page).map_err(|source| SegmentDirError::Io { action: "remove", path: page, source })
    }

    fn take_up(&self, left: Record) -> Result<KeptMemory, NotKept> {
        let served = left.served.ok_or(NotKept::NotServed)?;
        let mut segments = Vec::with_capacity(left.segments.len());
        for (number, file) in (0..).zip(&left.segments) {
            let open = |file| self.open_segment(number, file).map_err(|why| NotKept::Changed { number, why });
            segments.push(Some(file).filter(|file| file.bytes > 0).map(open).transpose()?);
        }
        let (incarnation, asked) = (served.incarnation + 1, left.asked);
        self.change(|record| {
            let served = Some(Served { incarnation, ..served });
            *record = Record { served, process: ProcessId::own(), ..left };
        });
        // Files that were being made or removed.
        let is_listed = |number: &str| segments.iter().flatten().any(|it| it.number().to_string() == number);
        if let Err(error) = remove_segments(&self.path, |number| !is_listed(number)) {
            tracing::warn!(%error, "a file of no use is left");
        }
        let time = ClusterTime(self.page.words().1);
        let Served { epoch, cluster, .. } = served;
        Ok(KeptMemory { segments, asked, epoch, incarnation, cluster, time })
    }

    /// Opens the file of a segment; returns why it is not the one that was left.
    fn open_segment(&self, number: SegmentNumber, kept: &KeptFile) -> Result<Arc<Segment>, String> {
        let file = options().open(self.segment_path(number)).map_err(|error| error.to_string())?;
        let there = file.metadata().map_err(|error| error.to_string())?;
        if (there.dev(), there.ino()) != (kept.device, kept.inode) {
            return Err("it is another file".to_owned());
        }
        if there.len() != kept.bytes {
            return Err(format!("it has {} bytes instead of {}", there.len(), kept.bytes));
        }
        // Pages that are missing read as zeros. To look for holes takes 10 ms a GiB on a tmpfs; a hugetlbfs tells none.
        let there = there.blocks().saturating_mul(512);
        if there < kept.bytes {
            return Err(format!("it lacks pages: {there} bytes are there"));
        }
        let segment = Segment::of_file(number, kept.bytes, file.into(), self.page.clone());
        segment.map_err(|error| format!("it can't be mapped: {error}"))
    }

    /// Removes all segments, before new ones are made for a process that is `asked` to lend so many bytes.
    ///
    /// # Errors
    /// [`SegmentDirError::Io`]
    pub fn begin(&self, asked: u64) -> Result<(), SegmentDirError> {
        self.change(|record| record.asked = asked);
        self.page.clear_words();
        remove_segments(&self.path, |_| true)
    }

    /// [`Segment::allocate_beside`] in a file of this directory. It outlives this process once it is [added](Self::add).
    ///
    /// # Errors
    /// [`AllocateError`]
    pub fn allocate_beside(
        &self,
        lent: u64,
        number: SegmentNumber,
        len: u64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Arc<Segment>, AllocateError> {
        if !len.is_multiple_of(self.memory.page) {
            return Err(AllocateError::Pages { asked: ByteSize(len), page: ByteSize(self.memory.page) });
        }
        self.check_fits(len)?;
        let path = self.segment_path(number);
        let created = || {
            // One that an attempt before has left.
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let file = options().create_new(true).open(&path)?;
            file.set_len(len)?;
            Ok(file)
        };
        let step = "creating its file";
        let file =
            created().map_err(|source| AllocateError::System { asked: ByteSize(len), step, source })?;
        let backing =
            Backing { file: file.into(), page: Some(self.page.clone()), has_own_pages: self.memory.is_huge };
        let allocated = Segment::fill(lent, number, len, backing, progress);
        if allocated.is_err() {
            let _ = fs::remove_file(&path);
        }
        allocated
    }

    /// Refuses a segment for which the file system has no room.
    fn check_fits(&self, len: u64) -> Result<(), AllocateError> {
        // If the file system does not report its size, the allocation itself fails.
        let Ok(there) = rustix::fs::statvfs(&self.path) else { return Ok(()) };
        let available = there.f_bavail.saturating_mul(there.f_frsize);
        // A tmpfs without a limit of its own has no blocks.
        if there.f_blocks == 0 || len <= available {
            return Ok(());
        }
        let (asked, available) = (ByteSize(len), ByteSize(available));
        Err(AllocateError::NoRoom { asked, path: self.path.clone(), available })
    }

    /// Returns the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Notes that the segments serve no epoch any more, or then a new one, under which nothing was written yet.
    pub fn note_epoch(&self, epoch: Option<SegmentEpoch>) {
        if epoch.is_some() {
            // While the page says that they serve none.
            self.page.clear_words();
        }
        self.change(|record| {
            record.served = epoch.map(|epoch| Served { epoch, incarnation: 1, cluster: None });
        });
    }

    /// Notes the cluster to whose leader the epoch is about to be announced.
    pub fn note_cluster(&self, cluster: Option<ClusterId>) {
        self.change(|record| {
            if let Some(served) = &mut record.served {
                served.cluster = cluster;
            }
        });
    }

    /// Notes a time of that cluster.
    pub fn note_time(&self, time: ClusterTime) {
        self.page.note_time(time.0);
    }

    /// Returns the highest order of all writes that were admitted under the epoch.
    #[must_use]
    pub fn highest_order(&self) -> u64 {
        self.page.words().0
    }

    /// Notes a segment that was made in this directory and is about to be served.
    ///
    /// # Errors
    /// When the system does not tell which file it is.
    ///
    /// # Panics
    /// When its number is not below [`MAX_SEGMENTS`].
    pub fn add(&self, segment: &Segment) -> io::Result<()> {
        let (device, inode) = segment.file_id()?;
        let place = segment.number() as usize;
        assert!(place < MAX_SEGMENTS, "segment {place}");
        self.change(|record| {
            record.segments.resize(record.segments.len().max(place + 1), KeptFile::default());
            record.segments[place] = KeptFile { bytes: segment.len(), device, inode };
        });
        Ok(())
    }

    /// Notes the bytes that this process was asked to lend when it started.
    pub fn note_asked(&self, asked: u64) {
        self.change(|record| record.asked = asked);
    }

    /// Notes that a segment is about to be unmounted, before any master hears of it: from then on its bytes may be given away, and
    /// another process must not mount it again.
    pub fn give_up(&self, number: SegmentNumber) {
        self.change(|record| {
            if let Some(file) = usize::try_from(number).ok().and_then(|place| record.segments.get_mut(place))
            {
                *file = KeptFile::default();
            }
        });
    }

    /// Removes a segment that the masters have unmounted. Its memory is released with the last user of the segment.
    pub fn remove(&self, number: SegmentNumber) {
        if let Err(error) = fs::remove_file(self.segment_path(number)) {
            tracing::warn!(segment = number, %error, dir = %self.path.display(), "cannot remove the file of a segment");
        }
    }

    /// Changes the record, and writes it. The lock keeps the order of changes.
    fn change(&self, change: impl FnOnce(&mut Record)) {
        let mut record = self.record.lock();
        change(&mut record);
        self.page.write(&encode(&record));
    }

    fn segment_path(&self, number: SegmentNumber) -> PathBuf {
        self.path.join(format!("{SEGMENT}{number}"))
    }
}

/// Name of the page's file, and first part of that of a segment's.
const PAGE: &str = "page";
const SEGMENT: &str = "segment-";

/// Locks a directory that this process may keep memory in.
fn lock(path: &Path, patience: Duration) -> Result<(DirectoryLock, MemoryKind), SegmentDirError> {
    check_place(path)?;
    let lock = match DirectoryLock::acquire(path) {
        Err(DurableError::Locked { .. }) if patience > Duration::ZERO => {
            tracing::info!(dir = %path.display(), "waiting for the process that uses this directory to end");
            DirectoryLock::acquire_within(path, patience)
        }
        outcome => outcome,
    };
    let lock = lock.map_err(|error| match error {
        DurableError::Locked { path } => SegmentDirError::StillRuns { path, patience },
        error => error.into(),
    })?;
    // Once more: somebody else may have created it meanwhile.
    Ok((lock, check_place(path)?))
}

/// Checks that a directory, or the one that it is to be created in, is made of memory, and that no other user can replace its files.
fn check_place(path: &Path) -> Result<MemoryKind, SegmentDirError> {
    let io = |source| SegmentDirError::Io { action: "open", path: path.to_owned(), source };
    let there = path.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(Path::new("."));
    let dir = File::open(there).map_err(io)?;
    let system = rustix::fs::fstatfs(&dir).map_err(|error| io(error.into()))?;
    let is_huge = system.f_type == HUGETLBFS_MAGIC;
    if !is_huge && system.f_type != TMPFS_MAGIC {
        return Err(SegmentDirError::NotMemory { path: path.to_owned() });
    }
    if there == path {
        let status = dir.metadata().map_err(io)?;
        let is_sticky = status.mode() & 0o1000 != 0;
        if is_sticky || ![rustix::process::geteuid().as_raw(), 0].contains(&status.uid()) {
            return Err(SegmentDirError::Shared { path: path.to_owned() });
        }
    }
    // On a tmpfs any size will do.
    let page = if is_huge { u64::try_from(system.f_bsize).unwrap_or(1).max(1) } else { 1 };
    Ok(MemoryKind { page, is_huge })
}

/// Removes the files of those segments whose number `goes` holds of.
fn remove_segments(dir: &Path, goes: impl Fn(&str) -> bool) -> Result<(), SegmentDirError> {
    let io = |action, path: &Path| {
        let path = path.to_owned();
        move |source| SegmentDirError::Io { action, path, source }
    };
    for entry in fs::read_dir(dir).map_err(io("list", dir))? {
        let entry = entry.map_err(io("list", dir))?;
        if entry.file_name().to_string_lossy().strip_prefix(SEGMENT).is_some_and(&goes) {
            fs::remove_file(entry.path()).map_err(io("remove", &entry.path()))?;
        }
    }
    Ok(())
}

fn options() -> fs::OpenOptions {
    let mut options = File::options();
    options.read(true).write(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options
}

fn encode(record: &Record) -> Vec<u8> {
    postcard::to_extend(record, vec![FORMAT]).expect("a record of plain values always encodes")
}

fn decode(body: &[u8]) -> Option<Record> {
    let (format, body) = body.split_first()?;
    (*format == FORMAT).then(|| postcard::from_bytes(body).ok()).flatten()
}

/// Returns the kernel's id of this run of the machine; 0 where it tells none.
fn boot() -> u128 {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    u128::from_str_radix(&id.trim().replace('-', ""), 16).unwrap_or(0)
}

impl fmt::Debug for SegmentDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SegmentDir")
            .field("path", &self.path)
            .field("record", &*self.record.lock())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for KeptMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.segments.iter().flatten().map(|segment| segment.len()).sum();
        f.debug_struct("KeptMemory")
            .field("epoch", &self.epoch)
            .field("incarnation", &self.incarnation)
            .field("bytes", &ByteSize(bytes))
            .finish_non_exhaustive()
    }
}
