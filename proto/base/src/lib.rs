//! What every mc process shares and none of them owns.
//!
//! - [`ids`]: the identifiers that travel on the wire and stand in logs.
//! - [`Grant`]: the short-lived permission that a master gives a client for ranges of a store's memory.
//! - [`net`]: listeners and channels, each made in one place.
//! - [`ByteSize`], [`Span`]: sizes and durations as people write them.
//! - [`HostPort`]: addresses as people write them.
//! - [`config`]: flags over environment over file over default, and where each value came from.
//! - [`crashsafe`]: small files and directories that survive a crash.
//! - [`http`], [`metrics`], [`telemetry`]: how a process is watched.
//! - [`blocking`], [`aside`], [`Aside`]: work that waits for a disk, or takes long.
//! - [`raise_descriptor_limit`]: room for many connections.
//! - [`ClusterTime`], [`Clock`]: the cluster's time and the injected monotonic clock beneath it.

pub mod addr;
mod blocking;
mod clock;
pub mod config;
pub mod crashsafe;
mod descriptors;
mod grant;
pub mod http;
pub mod ids;
pub mod metrics;
pub mod net;
mod size;
mod stdin;
pub mod telemetry;

pub use addr::{HostPort, ParseAddressError};
pub use blocking::{Aside, aside, blocking};
pub use clock::{Clock, ClusterTime};
pub use descriptors::raise_descriptor_limit;
pub use grant::{Access, Grant, GrantError, GrantKey, GrantedRange, SealedGrant};
pub use ids::{ClientId, ClusterId, NodeId, PutId, SegmentEpoch, SegmentNumber, StoreId};
pub use size::{ByteSize, ParseSizeError, ParseSpanError, Span};
pub use stdin::stdin_eof;

/// Longest key, in bytes.
pub const MAX_KEY_LEN: usize = 4096;
/// Longest tenant name, in bytes. The empty name is the default tenant.
pub const MAX_TENANT_LEN: usize = 64;
/// Most items in one call on the wire; the client library splits longer ones.
pub const MAX_ITEMS: usize = 4096;
/// Most bytes in one replicated command. A larger request is refused before it is proposed.
pub const MAX_COMMAND_BYTES: usize = 1 << 20;
/// Longest life of a grant. Masters issue none that lives longer, and stores remember the order of a range's owners for
/// twice as long, so that every grant that is older than what they have forgotten has expired.
pub const MAX_GRANT_LIFETIME: std::time::Duration = std::time::Duration::from_secs(60);
/// Alignment of every allocation in a segment, in bytes.
pub const ALLOCATION_ALIGN: u64 = 64;
