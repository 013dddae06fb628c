//! The Raft log: [`LogStore`] is openraft's log storage over a [`LogDisk`], which is sled ([`SledDisk`]) or a model of
//! a disk in memory ([`MemoryDisk`]).
//!
//! One writer owns the disk. It takes all that is queued, writes it in order, syncs once and acknowledges it all
//! ([`LogWriter`] argues why that is durable); entries are packed into values of a few KiB, each with a checksum; the
//! newest are kept in memory. What may be used after a crash, and what is refused, is in [`Recovered`] and
//! [`OpenError`]. Why sled, and how: docs/adr/0003-log-on-sled.md.

mod disk;
mod error;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod fuzz;
mod inspect;
mod ledger;
mod mark_file;
mod marks;
mod membership;
mod memory_disk;
mod observe;
mod open;
mod options;
mod pace;
mod pack;
mod packs;
mod panics;
mod reader;
mod record;
mod recover;
mod shared;
mod sled_disk;
mod store;
mod tail;
mod types;
mod vote_timing;
mod wire;
mod writer;

pub use disk::{KeyValue, LogDisk, LogView, Mark, Visit};
pub use error::{Damage, LogFailure, OpenError};
pub use inspect::{is_on, purged_from, vote_on};
pub use membership::{decode_membership, encode_membership};
pub use memory_disk::{Faults, MemoryDisk};
pub use observe::{BatchTimes, LogObserver, LogStats};
pub use open::{OnSled, OpenLog};
pub use openraft::EntryPayload;
pub use openraft::storage::{RaftLogReader, RaftLogStorage};
pub use options::{LogOptions, LogSync, LogSyncError};
pub use pace::{Pace, SyncPace};
pub use panics::keep_caught_panics_quiet;
pub use reader::LogReader;
pub use record::{RecordError, decode_entry, decode_entry_bytes, encode_payload};
pub use recover::{Recovered, Truncated};
pub use sled_disk::{SledDisk, SledOptions};
pub use store::LogStore;
pub use types::{
    CommittedLeaderId, Entry, LogId, MasterNode, Membership, Proposal, Raft, SnapshotMeta, StoredMembership,
    TypeConfig, Vote,
};
pub use vote_timing::VoteTiming;
pub use writer::LogWriter;
