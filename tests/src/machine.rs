use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// Sleep of each thread between two looks.
const NAP: Duration = Duration::from_millis(10);
const BETWEEN_SYNCS: Duration = Duration::from_millis(50);
/// Shorter ones are of no interest.
const SHORTEST: Duration = Duration::from_millis(50);

/// Notes when nothing on this machine ran, and when its disk stood still: for so long no process of it can count on having
/// run, or on a sync. Threads of its own do, until it is dropped.
#[derive(Debug)]
pub struct Machine {
    stalls: Stalls,
}

/// The end of each stall, and how long it took.
type Stalls = Arc<Mutex<Vec<(Instant, Duration)>>>;

impl Machine {
    /// Watches it, and the disk that `folder` is on.
    ///
    /// # Panics
    /// When no file can be made there.
    #[must_use]
    pub fn watch(folder: &Path) -> Self {
        let stalls = Stalls::default();
        let says = Arc::downgrade(&stalls);
        std::thread::spawn(move || while note(&says, || std::thread::sleep(NAP), NAP) {});
        let mut probe = tempfile::tempfile_in(folder).expect("a temporary file");
        let says = Arc::downgrade(&stalls);
        std::thread::spawn(move || {
            while note(&says, || sync(&mut probe), Duration::ZERO) {
                std::thread::sleep(BETWEEN_SYNCS);
            }
        });
        Self { stalls }
    }

    /// The longest stall that has ended since then, and all of them together.
    ///
    /// # Panics
    /// When a thread that watches has panicked.
    #[must_use]
    pub fn stalls_since(&self, since: Instant) -> (Duration, Duration) {
        let stalls = self.stalls.lock().unwrap();
        let of_these = || stalls.iter().filter(|(end, _)| *end > since).map(|(_, took)| *took);
        (of_these().max().unwrap_or_default(), of_these().sum())
    }
}

fn sync(probe: &mut File) {
    let synced = probe.seek(SeekFrom::Start(0)).and_then(|_| probe.write_all(b"probe"));
    // A disk that is full is not one that stands still.
    let _ = synced.and_then(|()| probe.sync_data());
}

/// Notes how much longer `work` took than it should; `false` when nobody wants to know any more.
fn note(stalls: &Weak<Mutex<Vec<(Instant, Duration)>>>, work: impl FnOnce(), should: Duration) -> bool {
    let began = Instant::now();
    work();
    let late = began.elapsed().saturating_sub(should);
    let Some(stalls) = stalls.upgrade() else { return false };
    if late >= SHORTEST {
        stalls.lock().unwrap().push((Instant::now(), late));
    }
    true
}
