//! The version of the log's encodings, and the errors of reading them.

/// The format of all that this build writes to the log. It reads no other.
pub(crate) const FORMAT: u8 = 2;

/// Error of decoding a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The bytes end inside a field.
    #[error("the record is cut short: {need} bytes needed, {have} left")]
    Short {
        /// Bytes the field needs.
        need: usize,
        /// Bytes that are left.
        have: usize,
    },
    /// Bytes follow the last field.
    #[error("{left} bytes follow the end of the record")]
    Trailing {
        /// Number of bytes that follow.
        left: usize,
    },
    /// Written by another build.
    #[error(
        "record format {found} is {} than this build's {FORMAT}: start the build of mc-master that wrote it",
        than_ours(*.found)
    )]
    Format {
        /// The format found.
        found: u8,
    },
    /// A kind of payload, or a flag, that does not exist.
    #[error("the record has a field of kind {found}, which does not exist in format {FORMAT}")]
    Kind {
        /// The kind found.
        found: u8,
    },
    /// The bytes do not match their checksum.
    #[error("the checksum does not match")]
    Checksum,
    /// Indexes out of order.
    #[error("the record has indexes out of order")]
    Order,
    /// A membership in other bytes than its one encoding.
    #[error("the record holds a membership that is not in its canonical encoding")]
    NotCanonical,
    /// Bytes that are no membership, or one that Raft does not allow.
    #[error("the record holds an impossible membership: {0}")]
    Membership(String),
}

fn than_ours(format: u8) -> &'static str {
    if format > FORMAT { "newer" } else { "older" }
}

pub(crate) fn check_format(found: u8) -> Result<(), RecordError> {
    if found == FORMAT { Ok(()) } else { Err(RecordError::Format { found }) }
}
