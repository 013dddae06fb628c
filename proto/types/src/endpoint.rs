//! Attributes of the endpoints of stores: names and values, which a store sends with its mount.

/// Name that the certificate of the store is for. Masters say it of stores that have shown them their certificates.
pub const STORE_NAME: &str = "name";

/// Tenant whose memory the store is, which gets no other tenant's objects. Masters say it of stores that have shown them that
/// tenant's credential.
pub const STORE_TENANT: &str = "tenant";

/// Number of the process that serves the store's memory, among those that have served this epoch one after the other. A store
/// without it is served by the process that drew the epoch, which is number 1.
pub const STORE_INCARNATION: &str = "incarnation";

/// Newest format of grants that the store reads, as a number. A store without it reads the older format alone.
pub const GRANT_FORMAT: &str = "grant-format";
