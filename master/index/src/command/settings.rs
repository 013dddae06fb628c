//! Settings that all masters of a cluster share.

use std::fmt;
use std::str::FromStr;

use mc_types::Ratio;
use serde::{Deserialize, Serialize};

/// The highest cluster version that this build supports: the format of log entries and the behaviour of `apply`.
///
/// A cluster runs at the version that all its members support. `mcctl upgrade finish` raises it; until then, the old
/// build can be started again.
///
/// - 1: the first version.
/// - 2: fixes of what `apply` answers, each beside the code that asks for the version.
/// - 3: a put becomes visible only if its stores have proven that they wrote it ([`PROOFS_SINCE`]), and the state has access
///   settings ([`SECURITY_SINCE`](super::SECURITY_SINCE)). Entries may name their calls ([`AUDIT_SINCE`](super::AUDIT_SINCE)). A
///   mounted store may change the key of its grants ([`KEY_CHANGES_SINCE`]), and a store may be the memory of one tenant
///   ([`OWN_STORES_SINCE`]).
/// - 4: a store that was restarted may mount the memory that its last process has left ([`RESTARTS_SINCE`]).
pub const CLUSTER_VERSION: u32 = 4;

/// Cluster version from which leaders end a put only if its stores have proven that they wrote it, by an
/// [`Op::PutEndProven`](super::Op::PutEndProven).
pub const PROOFS_SINCE: u32 = 3;

/// Cluster version from which a store that is mounted may mount the same epoch with another grant key.
pub const KEY_CHANGES_SINCE: u32 = 3;

/// Cluster version from which a store may be the memory of one tenant, and gets that tenant's objects alone.
pub const OWN_STORES_SINCE: u32 = 3;

/// Cluster version from which one process of a store after the other may serve the same epoch: a mount by an earlier one, which
/// arrives late, is refused.
pub const RESTARTS_SINCE: u32 = 4;

/// Replicated settings: everything that changes the answers of `apply` or of a leader. Formation seeds them from flags.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Longest deadline of a put, in ms; at most [`mc_types::MAX_GRANT_LIFETIME`].
    pub put_deadline_max_ms: u64,
    /// Length of a read lease, in ms.
    pub read_lease_ms: u64,
    /// Time without a heartbeat after which a store is dropped, in ms.
    pub store_ttl_ms: u64,
    /// Interval between heartbeats of a store, in ms.
    pub store_heartbeat_ms: u64,
    /// Time without a heartbeat after which a store is suspect, in ms.
    pub store_suspect_ms: u64,
    /// How a leader makes sure that it still leads before it answers a read.
    pub read_policy: ReadPolicy,
    /// Share of the pool's bytes, live and in flight, at which eviction starts.
    pub eviction_high_watermark: Ratio,
    /// Share of the pool's bytes down to which eviction frees; below the high watermark.
    pub eviction_low_watermark: Ratio,
    /// Longest wait of a put for space that an eviction is about to free, in ms.
    pub put_space_wait_ms: u64,
    /// Share of the pool's bytes that may be hard-pinned, and of the bytes in a tenant's quota.
    pub hard_pin_limit: Ratio,
    /// Which tenants may put.
    pub tenants: TenantPolicy,
    /// Quota of each tenant that is not registered.
    pub default_quota: Quota,
    /// Most objects in the pool, puts in flight included; 0 for no limit.
    pub max_objects: u64,
    /// Most memory that the index may take, by its own estimate ([`crate::State::index_bytes`]); 0 for no limit.
    pub max_index_bytes: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            put_deadline_max_ms: 60_000,
            read_lease_ms: 10_000,
            store_ttl_ms: 600_000,
            store_heartbeat_ms: 200,
            store_suspect_ms: 800,
            read_policy: ReadPolicy::Lease,
            eviction_high_watermark: Ratio::of_ten_thousandths(9_500),
            eviction_low_watermark: Ratio::of_ten_thousandths(9_200),
            put_space_wait_ms: 500,
            hard_pin_limit: Ratio::of_ten_thousandths(5_000),
            tenants: TenantPolicy::Any,
            default_quota: Quota::NONE,
            max_objects: 50_000_000,
            max_index_bytes: 16 << 30,
        }
    }
}

/// Which tenants may put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TenantPolicy {
    /// All. Those that are not registered have the default quota.
    #[default]
    Any,
    /// Registered ones, and the default tenant, whose name is empty.
    Registered,
}

impl fmt::Display for TenantPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Any => "any",
            Self::Registered => "registered",
        })
    }
}

impl FromStr for TenantPolicy {
    type Err = TenantPolicyError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "any" => Ok(Self::Any),
            "registered" => Ok(Self::Registered),
            other => Err(TenantPolicyError(other.to_owned())),
        }
    }
}

/// Text that names no [`TenantPolicy`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a tenant policy: it can be `any` or `registered`")]
pub struct TenantPolicyError(pub String);

/// How a read makes sure that it sees every acknowledged write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReadPolicy {
    /// By the leader's lease, else by asking a quorum. The lease needs monotonic clocks of nearly the same rate.
    #[default]
    Lease,
    /// By asking a quorum each time, for machines that are suspended or migrated while they run.
    ReadIndex,
}

impl fmt::Display for ReadPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lease => "lease",
            Self::ReadIndex => "read-index",
        })
    }
}

impl FromStr for ReadPolicy {
    type Err = ReadPolicyError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "lease" => Ok(Self::Lease),
            "read-index" => Ok(Self::ReadIndex),
            other => Err(ReadPolicyError(other.to_owned())),
        }
    }
}

/// Text that names no [`ReadPolicy`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a read policy: it can be `lease` or `read-index`")]
pub struct ReadPolicyError(pub String);

/// Limits of what a tenant may have in the pool, puts in flight included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// Bytes of all replicas, each rounded up to [`mc_types::ALLOCATION_ALIGN`]; 0 for no limit.
    pub bytes: u64,
    /// Objects; 0 for no limit.
    pub objects: u64,
}

impl Quota {
    /// No limit.
    pub const NONE: Self = Self { bytes: 0, objects: 0 };

    /// Whether it limits nothing.
    #[must_use]
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }
}
