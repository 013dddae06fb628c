//! Bytes of the log: entries, memberships, packs of entries, and the records beside them, each with format and checksum.
//! Encodings only, without I/O.

pub(crate) mod entry;
pub(crate) mod hard_state;
pub(crate) mod membership;
pub(crate) mod pack;
pub(crate) mod wire;
