//! The log's disk: an ordered map of small values. Packs, recovery, truncation and purging are written once above it
//! ([`super::packs`], [`super::recover`]), so that the simulated disk tests the code that runs on the real one.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

/// An ordered map that survives crashes, with one writer.
///
/// The contract that recovery rests on: after a crash the map holds every write up to the last [`sync`](Self::sync)
/// and of the later ones **a prefix** in the order they were made. Never a later write without an earlier one.
pub trait LogDisk: Send + 'static {
    /// Sets a key. May stay in memory until [`Self::flush`].
    ///
    /// # Errors
    /// Any error of a writing method is final: the log stops, and the process should exit.
    fn put(&mut self, key: &[u8], value: &[u8]) -> io::Result<()>;

    /// Removes a key; one that is absent is no error.
    ///
    /// # Errors
    /// As [`Self::put`].
    fn delete(&mut self, key: &[u8]) -> io::Result<()>;

    /// Hands all earlier writes to the kernel: they survive the death of the process.
    ///
    /// # Errors
    /// As [`Self::put`].
    fn flush(&mut self) -> io::Result<()>;

    /// Makes all flushed writes survive the loss of power.
    ///
    /// # Errors
    /// As [`Self::put`]. It must not be tried again: the kernel may have dropped the pages that failed.
    fn sync(&mut self) -> io::Result<()>;

    /// Replaces the mark, durably when it returns, apart from the map and in no order with it.
    ///
    /// # Errors
    /// As [`Self::put`].
    fn write_mark(&mut self, mark: Mark) -> io::Result<()>;

    /// The mark that was last written; the zero mark on a new disk.
    fn mark(&self) -> Mark;

    /// Reading, from any thread.
    fn view(&self) -> Arc<dyn LogView>;

    /// The largest value this disk takes well, in bytes; larger entries are written in parts.
    fn value_cap(&self) -> usize;

    /// Bytes that may be written between two syncs, keys and values counted and a deleted key as a value of full size.
    ///
    /// A disk that uses its space again may put new bytes where old ones lay as soon as newer ones have replaced those. A
    /// loss of power that keeps the new bytes and takes the replacement then loses what had been synced long ago. Such a
    /// disk says here how often it needs a sync so that the replacement is on stable storage first.
    fn sync_every(&self) -> u64;

    /// Where this disk is, for messages.
    fn place(&self) -> String;
}

/// A key and its value.
pub type KeyValue = (Bytes, Bytes);

/// Takes a key and its value, and says whether to go on.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// Reads a [`LogDisk`], beside its writer; sees each write as soon as it has been made.
pub trait LogView: Send + Sync + 'static {
    /// The value of a key.
    ///
    /// # Errors
    /// When the disk cannot be read.
    fn get(&self, key: &[u8]) -> io::Result<Option<Bytes>>;

    /// The greatest key that is not above `key`, and its value.
    ///
    /// # Errors
    /// When the disk cannot be read.
    fn floor(&self, key: &[u8]) -> io::Result<Option<KeyValue>>;

    /// Visits keys and values from `from` on, in order, until told to stop.
    ///
    /// # Errors
    /// When the disk cannot be read.
    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> io::Result<()>;
}

/// Position up to which a log is known to be durable, noted beside it about once a second: a log found shorter than its
/// mark has lost what it acknowledged. It may lag behind the truth, never run ahead of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mark {
    /// Entries below this index were durable (0: none).
    pub next: u64,
    /// The term of a vote that was durable (0: none).
    pub term: u64,
}
