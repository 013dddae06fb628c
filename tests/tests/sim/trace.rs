use std::sync::Arc;

use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A hash of all that happened, in order: two runs of a seed that print the same one were the same run.
#[derive(Clone, Default)]
pub(crate) struct Trace(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    hash: u64,
    events: u64,
}

impl Trace {
    /// Adds an event.
    pub(crate) fn note(&self, event: &[u64]) {
        let mut inner = self.0.lock();
        inner.events += 1;
        for part in event {
            inner.hash = xxh3_64_with_seed(&part.to_le_bytes(), inner.hash);
        }
        if let Some(out) = TRACE.get() {
            let _ = std::io::Write::write_all(&mut &*out, format!("{event:?}\n").as_bytes());
        }
    }

    /// Adds an event in words.
    pub(crate) fn note_text(&self, event: &str) {
        self.note(&[xxh3_64_with_seed(event.as_bytes(), 0)]);
    }

    /// The hash so far, and of how many events.
    pub(crate) fn sum(&self) -> (u64, u64) {
        let inner = self.0.lock();
        (inner.hash, inner.events)
    }
}

/// Where the events are written one by one, to compare two runs that differ.
pub(crate) static TRACE: std::sync::OnceLock<std::fs::File> = std::sync::OnceLock::new();
