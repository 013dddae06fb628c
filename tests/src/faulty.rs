use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[path = "../faulty/page.rs"]
pub(crate) mod page;

/// Syncs that say that they have done what they have not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Of files.
    Files,
    /// Of folders, which make the names in them durable.
    Folders,
}

/// An error of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskError {
    /// `EIO`: it is broken.
    Io,
    /// `ENOSPC`: it is full.
    Full,
}

/// Makes the disk, the clocks and the connections of one process misbehave, from outside and while it runs: the process
/// is the real executable, with the library of `faulty/` loaded in front of the C library.
#[derive(Debug)]
pub struct Faulty {
    page: File,
    path: PathBuf,
}

impl Faulty {
    /// A process that behaves. `path` is a file that is made.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        let page = File::options().create_new(true).read(true).write(true).open(path).expect("a new file");
        page.set_len(page::BYTES as u64).expect("room for a page");
        Self { page, path: path.to_owned() }
    }

    /// Environment of the process at its start.
    #[must_use]
    pub fn env(&self) -> [(String, String); 2] {
        let path = self.path.to_str().expect("a temporary folder with a plain name");
        [("FAULTY_PAGE", path), ("LD_PRELOAD", env!("FAULTY_LIBRARY"))]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
    }

    /// The same for a process whose changes of files are noted in a journal at `path`, which [`crate::Power`] makes: on
    /// the device of its data.
    #[must_use]
    pub fn journal_env(&self, path: &Path) -> [(String, String); 3] {
        let [page, library] = self.env();
        let path = path.to_str().expect("a temporary folder with a plain name").to_owned();
        [page, library, ("FAULTY_JOURNAL".to_owned(), path)]
    }

    /// A process with a journal ends instead of making the `n`-th call from now on that changes a file or syncs one, or,
    /// `at_a_sync`, the first call after that which syncs one.
    pub fn end_at_call(&self, n: u64, at_a_sync: bool) {
        self.set(page::LAST_IS_A_SYNC, u64::from(at_a_sync));
        self.set(page::LAST_CALL, self.calls() + n.max(1));
    }

    /// A process with a journal does not end at a call any more.
    pub fn end_at_no_call(&self) {
        self.set(page::LAST_CALL, 0);
    }

    /// Calls so far that changed a file or synced one, of a process with a journal.
    ///
    /// # Panics
    /// When the page cannot be read.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.get(page::CALLS)
    }

    /// From now on the syncs of a process with a journal lie.
    pub fn lie(&self, lie: Lie) {
        self.set(if lie == Lie::Files { page::LIE_ON_FILES } else { page::LIE_ON_FOLDERS }, 1);
    }

    /// Each sync of a file takes so much longer.
    pub fn slow_syncs(&self, by: Duration) {
        self.set(page::SYNC_DELAY_MS, u64::try_from(by.as_millis()).expect("a sensible delay"));
    }

    /// No sync of a file returns, or all do again.
    pub fn stick_syncs(&self, stuck: bool) {
        self.set(page::SYNC_STUCK, u64::from(stuck));
    }

    /// Syncs of files fail, or do not any more.
    pub fn fail_syncs(&self, error: Option<DiskError>) {
        self.set(page::SYNC_ERRNO, errno(error));
    }

    /// No look-up of a name returns, or all do again.
    pub fn stick_lookups(&self, stuck: bool) {
        self.set(page::LOOKUP_STUCK, u64::from(stuck));
    }

    /// Writes to files fail, or do not any more.
    pub fn fail_writes(&self, error: Option<DiskError>) {
        self.set(page::WRITE_ERRNO, errno(error));
    }

    /// The wall clock is off by so many seconds.
    pub fn wall_clock(&self, offset_s: i64) {
        self.set(page::WALL_OFFSET_S, offset_s.cast_unsigned());
    }

    /// From the next start of the process on, its monotonic clock is faster by so many millionths.
    pub fn clock_rate(&self, ppm: i64) {
        self.set(page::CLOCK_RATE_PPM, ppm.cast_unsigned());
    }

    /// Connections to the first port of a pair go to the second.
    ///
    /// # Panics
    /// When there are more than fit.
    pub fn routes(&self, routes: &[(u16, u16)]) {
        assert!(routes.len() < page::MAX_ROUTES, "{} routes do not fit", routes.len());
        for (n, (from, to)) in routes.iter().enumerate() {
            self.set(page::ROUTES + 2 * n + 1, u64::from(*to));
            self.set(page::ROUTES + 2 * n, u64::from(*from));
        }
    }

    /// How often the process has met a fault of its disk or its look-ups, or looked at a wall clock that is off.
    ///
    /// # Panics
    /// When the page cannot be read.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.get(page::STRUCK)
    }

    fn get(&self, word: usize) -> u64 {
        let mut value = [0; 8];
        self.page.read_exact_at(&mut value, (word * 8) as u64).expect("a page that can be read");
        u64::from_le_bytes(value)
    }

    fn set(&self, word: usize, value: u64) {
        self.page.write_all_at(&value.to_le_bytes(), (word * 8) as u64).expect("a page that can be written");
    }
}

fn errno(error: Option<DiskError>) -> u64 {
    let errno = match error {
        None => 0,
        Some(DiskError::Io) => rustix::io::Errno::IO.raw_os_error(),
        Some(DiskError::Full) => rustix::io::Errno::NOSPC.raw_os_error(),
    };
    u64::from(errno.unsigned_abs())
}
