//! The log's disk: an ordered map of small values. Packs, recovery, truncation and purging are written once above it
//! ([`packs`], [`crate::recover`]), so that the simulated disk tests the code that runs on the real one.

pub(crate) mod busy;
pub(crate) mod inspect;
pub(crate) mod mark_file;
pub(crate) mod memory;
pub(crate) mod pace;
pub(crate) mod packs;
mod page_table;
pub(crate) mod panics;
pub(crate) mod sled;

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
    fn delete(&mut self, key: &[u8]) -> io::Result<()>;

    /// Hands all earlier writes to the kernel, so that they survive the death of the process.
    fn flush(&mut self) -> io::Result<()>;

    /// Makes all flushed writes survive the loss of power.
    ///
    /// # Errors
    /// As [`Self::put`]. It must not be tried again: the kernel may have dropped the pages that failed.
    fn sync(&mut self) -> io::Result<()>;

    /// Replaces the mark. It is durable when this returns. It is not part of the map, and not ordered with its writes.
    fn write_mark(&mut self, mark: Mark) -> io::Result<()>;

    /// Returns the mark that was last written; the zero mark on a new disk.
    fn mark(&self) -> Mark;

    /// Returns a reader of this disk, for use on any thread.
    fn view(&self) -> Arc<dyn LogView>;

    /// Returns the maximum size of a value, in bytes. Larger entries are written in parts.
    fn value_cap(&self) -> usize;

    /// Returns the number of bytes that may be written between two syncs: keys, values, and a full value for each
    /// delete.
    ///
    /// A disk that reuses its space may write new bytes over old ones once a replacement of those was written. If a
    /// loss of power keeps the new bytes and takes the replacement, then data that was synced long ago is lost. A sync
    /// after this many bytes puts the replacement on stable storage first.
    fn sync_every(&self) -> u64;

    /// Returns the place of this disk, for messages.
    fn place(&self) -> String;
}

/// A key and its value.
pub type KeyValue = (Bytes, Bytes);

/// Callback of a scan: takes a key and its value, and returns whether to go on.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// Reader of a [`LogDisk`], beside its writer. It sees each write as soon as it has been made.
pub trait LogView: Send + Sync + 'static {
    /// Returns the value of a key.
    fn get(&self, key: &[u8]) -> io::Result<Option<Bytes>>;

    /// Returns the greatest key that is not above `key`, and its value.
    fn floor(&self, key: &[u8]) -> io::Result<Option<KeyValue>>;

    /// Visits keys and values from `from` on, in order, until told to stop.
    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> io::Result<()>;
}

/// Position up to which a log is known to be durable, written beside it about once a second.
///
/// A log that is shorter than its mark has lost entries that it acknowledged. The mark may be behind the durable end of
/// the log, never ahead of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mark {
    /// Entries below this index were durable (0: none).
    pub next: u64,
    /// The term of a vote that was durable (0: none).
    pub term: u64,
}
