//! Bytes of the log: entries, memberships, packs of entries, and the records beside them, each with format and checksum.
//! Encodings only, without I/O. From below: the format and its errors, fields on the wire, memberships, entries, packs.

pub(crate) mod entry;
pub(crate) mod format;
pub(crate) mod hard_state;
pub(crate) mod membership;
pub(crate) mod pack;
pub(crate) mod wire;
