use std::time::Duration;

/// Longest key, in bytes.
pub const MAX_KEY_LEN: usize = 4096;
/// Longest tenant name, in bytes. The empty name is the default tenant.
pub const MAX_TENANT_LEN: usize = 64;
/// Longest name of a group, in bytes.
pub const MAX_GROUP_LEN: usize = 256;
/// Most members of a group, puts in flight included: a group is evicted in one entry.
pub const MAX_GROUP_MEMBERS: usize = 1024;
/// Most stores that a put prefers, most that it avoids, and most names of stores that a call prefers.
pub const MAX_NAMED_STORES: usize = 64;
/// Most items in one call on the wire; the client library splits longer ones.
pub const MAX_ITEMS: usize = 4096;
/// Most bytes in one replicated command. A larger request is refused before it is proposed.
pub const MAX_COMMAND_BYTES: usize = 1 << 20;
/// Longest lifetime of a grant.
///
/// Masters issue none that lives longer. Stores remember the order of a range's owners for twice as long, so every
/// grant older than what a store has forgotten has expired.
pub const MAX_GRANT_LIFETIME: Duration = Duration::from_secs(60);
/// Most segments that a store mounts under one epoch, those included that it has unmounted since.
pub const MAX_SEGMENTS: usize = 1024;
/// Alignment of every allocation in a segment, in bytes.
pub const ALLOCATION_ALIGN: u64 = 64;
