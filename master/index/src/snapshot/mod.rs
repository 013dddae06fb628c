//! The index as bytes: `mcstate`, a format byte, then chunks of at most 64 KiB.
//!
//! A chunk is a section number, a length, a CRC-32C over both and the payload, and the payload: records in postcard,
//! none of them cut. Sections stand in a fixed order and records in the order of their keys, so two replicas with
//! equal state write equal bytes. The last chunk counts the records of each section.
//!
//! Derived data is not written: allocators are rebuilt from the layout of their runs and from the owners of
//! every allocation, which proves at the same time that no two owners overlap and that nothing is unowned.
//!
//! Reading is strict and bounded: every length is checked before it is used, whatever does not fit is an error that
//! names the section, and no bytes make it panic.

mod frame;
mod read;
mod record;
#[cfg(test)]
mod tests;
mod write;

use std::io;

#[cfg(feature = "testing")]
pub use frame::seal_chunks;

const MAGIC: [u8; 7] = *b"mcstate";
const FORMAT: u8 = 1;

/// Why bytes are not a snapshot of the index.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The source failed.
    #[error("reading the snapshot failed: {0}")]
    Io(#[from] io::Error),
    /// Something else altogether.
    #[error("this is not a snapshot of the index: it does not start with `mcstate`")]
    NotASnapshot,
    /// Written by a newer build.
    #[error("its index is in format {0}, this build reads {FORMAT}")]
    Format(u8),
    /// Damaged, or not written by this program.
    #[error(
        "the snapshot is damaged in its section `{section}`: {why}; take the one before it, or another master's"
    )]
    Corrupt {
        /// Where.
        section: &'static str,
        /// The contradiction.
        why: String,
    },
}
