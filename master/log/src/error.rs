//! Errors of opening a log, and of a log that stopped.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::record::format::RecordError;

/// Error of opening a log. Nothing on the disk has been changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error(
        "the Raft log at {place} is in use by another process: two masters can't share a data directory. Stop the \
         other one, or give this one a --data-dir of its own"
    )]
    Locked {
        /// The log's directory.
        place: String,
    },
    /// The file system returned an error.
    #[error("the Raft log at {place} can't be opened: {attempt}: {source}")]
    Io {
        /// The log's directory.
        place: String,
        /// The attempted step.
        attempt: &'static str,
        /// The file system's error.
        source: io::Error,
    },
    /// A newer version wrote it.
    #[error(
        "the Raft log at {place} was written by a newer mc-master: {found}. Start that version, nothing is lost"
    )]
    Newer {
        /// The log's directory.
        place: String,
        /// The defect of the record.
        found: RecordError,
    },
    /// The log lost data that it had acknowledged, or may have.
    #[error(
        "refusing to start from the Raft log at {place}: {found}. A master counts its log when it votes and \
         acknowledges: with entries or a vote missing it could help to elect a leader without writes that clients \
         were told are safe, so they would be lost in the whole cluster. Fix, while the other masters run: move this \
         master's data directory away and start it again; it joins as a new member and copies the index from them"
    )]
    Refused {
        /// The log's directory.
        place: String,
        /// The damage.
        found: Damage,
    },
}

/// Damage of a log that must not be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Damage {
    /// Entries are missing between others.
    Hole {
        /// The first index that is missing.
        expected: u64,
        /// The next that is there.
        found: u64,
    },
    /// A record is damaged and intact ones follow it.
    Middle {
        /// The damaged record's first index.
        index: u64,
        /// Description of the defect.
        what: String,
        /// The index of an intact record after it.
        intact: u64,
    },
    /// The log ends before what was known to be durable.
    EndsEarly {
        /// Index after the last entry that is present.
        next: u64,
        /// Entries below this index were durable.
        durable: u64,
    },
    /// The log ends before an entry it had noted as committed.
    Uncommitted {
        /// Index after the last entry that is present.
        next: u64,
        /// The index that was committed.
        committed: u64,
    },
    /// The log holds another entry where it had noted one as committed.
    Conflict {
        /// The entry's index.
        index: u64,
        /// The term of the entry that is there.
        term: u64,
        /// The term of the entry that was committed.
        committed: u64,
    },
    /// The vote is older than a record that can only have been written after a newer one.
    Vote {
        /// The term of the vote that is there (0: none).
        term: u64,
        /// The term of a later vote that had been durable.
        needed: u64,
    },
    /// A record beside the entries can't be read.
    Record {
        /// Name of the record.
        name: &'static str,
        /// Description of the defect.
        what: String,
    },
    /// The database under the log does not open.
    Engine {
        /// Error message of the database.
        what: String,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hole { expected, found } => {
                write!(f, "entries from index {expected} on are missing, the next that is there is {found}")
            }
            Self::Middle { index, what, intact } => write!(
                f,
                "the record at index {index} is damaged ({what}) and intact ones follow it (index {intact}), so this \
                 is no write that a crash cut off"
            ),
            Self::EndsEarly { next, durable } => write!(
                f,
                "it holds the entries below index {next}, but had durably written those below index {durable}: the \
                 disk lost data, or an older copy was put back"
            ),
            Self::Uncommitted { next, committed } => {
                write!(f, "it holds the entries below index {next}, but index {committed} had been committed")
            }
            Self::Conflict { index, term, committed } => write!(
                f,
                "its entry at index {index} is of term {term}, but one of term {committed} had been committed there"
            ),
            Self::Vote { term: 0, needed } => {
                write!(f, "its vote is gone; it had one of term {needed} or later")
            }
            Self::Vote { term, needed } => {
                write!(f, "its vote is of term {term}, but it had one of term {needed} or later")
            }
            Self::Record { name, what } => write!(f, "its record of {name} is damaged ({what})"),
            Self::Engine { what } => write!(f, "its database does not open ({what})"),
        }
    }
}

/// Whether the error means that the database read damaged data, rather than that a system call failed.
pub(super) fn says_damaged(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, Other, UnexpectedEof};
    error.raw_os_error().is_none()
        && matches!(error.kind(), InvalidData | InvalidInput | Other | UnexpectedEof)
}

/// I/O error that stopped an open log. Nothing is written or acknowledged after it.
///
/// The process should report it and exit. After a restart the log holds all that was durable.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "the Raft log at {place} failed: {attempt}: {source}. Nothing more is acknowledged by this master; it must exit. \
     Check the disk (space, kernel messages) and start it again"
)]
pub struct LogFailure {
    /// The log's directory.
    pub place: Arc<str>,
    /// The attempted step.
    pub attempt: &'static str,
    /// Why it failed.
    pub source: Arc<io::Error>,
}

impl LogFailure {
    /// Converts the failure to openraft's error.
    pub fn to_io(&self) -> io::Error {
        io::Error::new(self.source.kind(), self.clone())
    }
}
