//! The index as bytes: `mcstate`, a format byte, then chunks of at most 64 KiB.
//!
//! A chunk is a section number, a length, a CRC-32C over both and the payload, and the payload: whole records in
//! postcard. Sections come in a fixed order and records in the order of their keys, so two replicas with equal state
//! write equal bytes. The last chunk counts the records of each section.
//!
//! Derived data is not written: allocators are rebuilt from the layout of their runs and from the owners of all
//! allocations. This also proves that no two owners overlap and that every run has an owner.
//!
//! Reading is strict and bounded: every length is checked before it is used, bytes that do not fit are an error that
//! names the section, and no bytes cause a panic.

mod frame;
mod read;
mod record;
#[cfg(test)]
mod tests;
mod write;

use std::io;

use crate::key_values::{KEY_VALUE_KEY_MAX, KEY_VALUE_MAX};
use frame::CHUNK_MAX;

#[cfg(feature = "testing")]
pub use frame::seal_chunks;

// An entry of the key-value table is one record.
const _: () = assert!(KEY_VALUE_KEY_MAX + KEY_VALUE_MAX + 16 <= CHUNK_MAX);

const MAGIC: [u8; 7] = *b"mcstate";
/// Format of a state with something in its section about security, which no cluster version before 3 has.
pub(super) const FORMAT: u8 = 7;
/// Format of all other states, which builds before cluster version 3 read, too.
pub(super) const PLAIN_FORMAT: u8 = 6;

/// Error of reading a snapshot of the index.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Reading the source failed.
    #[error("reading the snapshot failed: {0}")]
    Io(#[from] io::Error),
    /// The bytes are not a snapshot at all.
    #[error("this is not a snapshot of the index: it does not start with `mcstate`")]
    NotASnapshot,
    /// The snapshot is in the format of another build.
    #[error(
        "its index is in format {0}, this build reads {PLAIN_FORMAT} and {FORMAT}: start the build of mc-master that wrote it"
    )]
    Format(u8),
    /// The snapshot is damaged, or was not written by this program.
    #[error(
        "the snapshot is damaged in its section `{section}`: {why}; take the one before it, or another master's"
    )]
    Corrupt {
        /// Section with the damage.
        section: &'static str,
        /// The contradiction that was found.
        why: String,
    },
}
