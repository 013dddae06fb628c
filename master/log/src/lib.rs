//! The Raft log: [`LogStore`] is openraft's log storage over a [`LogDisk`], which is sled ([`SledDisk`]) or a model of
//! a disk in memory ([`MemoryDisk`]).
//!
//! One writer owns the disk. It takes all that is queued, writes it in order, syncs once and acknowledges it all
//! ([`LogWriter`] argues why that is durable); entries are packed into values of a few KiB, each with a checksum; the
//! newest are kept in memory. What may be used after a crash, and what is refused, is in [`Recovered`] and
//! [`OpenError`]. Why sled, and how: docs/adr/0003-log-on-sled.md.
//!
//! Each room imports only those before it: `record`, `disk`, `write`, `recover`, `store`.

mod disk;
mod error;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod fuzz;
mod record;
mod recover;
mod store;
mod types;
mod write;

pub use disk::inspect::{WrittenEntries, entries_on, is_on, purged_from, vote_on};
pub use disk::memory::{Faults, MemoryDisk};
pub use disk::pace::{Pace, SyncPace};
pub use disk::panics::keep_caught_panics_quiet;
pub use disk::sled::{SledDisk, SledOptions};
pub use disk::{KeyValue, LogDisk, LogView, Mark, Visit};
pub use error::{Damage, LogFailure, OpenError};
pub use openraft::EntryPayload;
pub use openraft::storage::{RaftLogReader, RaftLogStorage};
pub use record::entry::{decode_entry, decode_entry_bytes, encode_payload};
pub use record::format::RecordError;
pub use record::membership::{decode_membership, encode_membership};
pub use recover::{Recovered, Truncated};
pub use store::LogStore;
pub use store::open::{OnSled, OpenLog};
pub use store::reader::LogReader;
pub use types::{
    CommittedLeaderId, Entry, LogId, MasterNode, Membership, Proposal, Raft, SnapshotMeta, StoredMembership,
    TypeConfig, Vote,
};
pub use write::observe::{BatchTimes, LogObserver, LogStats};
pub use write::options::{LogOptions, LogSync, LogSyncError};
pub use write::vote_timing::VoteTiming;
pub use write::writer::LogWriter;
