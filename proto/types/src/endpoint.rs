//! Attributes of the endpoints of stores: names and values, which a store sends with its mount.

/// Newest format of grants that the store reads, as a number. A store without it reads the older format alone.
pub const GRANT_FORMAT: &str = "grant-format";
