use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// Sleep of the thread that watches the CPU; a longer one shows a stall.
const NAP: Duration = Duration::from_millis(10);
const BETWEEN_SYNCS: Duration = Duration::from_millis(50);
/// Shortest stall that is noted.
const SHORTEST: Duration = Duration::from_millis(50);

/// Records stalls of this machine: times in which nothing ran, or in which its disk stood still.
///
/// During a stall no process can count on having run, or on a sync. Threads of this value's own watch the machine until
/// it is dropped.
#[derive(Debug)]
pub struct Machine {
    stalls: Stalls,
}

/// The end and the duration of each stall.
type Stalls = Arc<Mutex<Vec<(Instant, Duration)>>>;

impl Machine {
    /// Watches the machine, and the disk that `folder` is on.
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

    /// Returns the longest stall that has ended since `since`, and the sum of all of them.
    pub fn stalls_since(&self, since: Instant) -> (Duration, Duration) {
        let stalls = self.stalls.lock().unwrap();
        let of_these = || stalls.iter().filter(|(end, _)| *end > since).map(|(_, took)| *took);
        (of_these().max().unwrap_or_default(), of_these().sum())
    }
}

fn sync(probe: &mut File) {
    let synced = probe.seek(SeekFrom::Start(0)).and_then(|_| probe.write_all(b"probe"));
    // A full disk is not a stalled one.
    let _ = synced.and_then(|()| probe.sync_data());
}

/// Records how much longer `work` took than it `should`; returns `false` once the [`Machine`] is dropped.
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
