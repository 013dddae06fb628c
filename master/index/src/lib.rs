//! The index: a pure, deterministic, synchronous state machine.
//!
//! `State::apply(index, term, &Command) -> Response`, and read-only queries. No clock, no random numbers, no I/O, no
//! log lines: whatever is not in the state (time, a seed, the stores to avoid) the leader stamps into the command.
//! Determinism: no iteration over hash maps, no floats, no `usize` in hashes, and no panic: a panic here would kill
//! every master at the same entry, so bad input is a result code.
//!
//! All containers are copy-on-write in small pieces, so a clone is cheap and can be written as a snapshot
//! ([`State::write_snapshot`]) on another thread while entries are applied.
//!
//! Each room uses the ones before it: `work`, `bounds`, `key`, `command`, `cow`, `alloc`; the tables `stores`, `tenants`, `objects`, `puts`,
//! `groups`, `key_values` and `security`, and `state`, which owns them; `query`; `apply`; `snapshot`.

pub mod alloc;
mod apply;
mod bounds;
mod command;
#[cfg(test)]
mod constants;
mod cow;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod fuzz;
mod groups;
mod key;
mod key_values;
mod objects;
mod puts;
mod query;
mod random;
mod security;
mod snapshot;
mod state;
mod stores;
mod tenants;
mod work;

pub use apply::{RESCUE_GAP, allocation_order, known_from};
pub use bounds::bound;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use bounds::use_small_bounds;
pub use command::{
    AUDIT_SINCE, AuditedCall, AuditedResult, CLUSTER_VERSION, Change, Command, DecodeError, Endpoint,
    EvictItem, KEY_CHANGES_SINCE, MountStore, OWN_STORES_SINCE, Op, PROOFS_SINCE, Pin, PlacedReplica,
    PrincipalRecord, ProvenEnd, PutEndItem, PutEnded, PutStartItem, PutStarted, Quota, RESTARTS_SINCE,
    ReadPolicy, ReadPolicyError, RemoveItem, Request, Response, SECURITY_SINCE, SecurityChange, Settings,
    Stamp, StartKey, TenantPolicy, TenantPolicyError, reuse_epoch,
};
pub use key::{GroupId, KeyHash, TenantName};
pub use key_values::{KEY_VALUE_KEY_MAX, KEY_VALUE_MAX, KEY_VALUES_BYTES_MAX, KEY_VALUES_MAX};
pub use query::{
    Clearing, ClearingObject, EvictionUnit, Fit, GroupView, HashedObject, HeldRange, KeyPage, ListedObject,
    Memory, ObjectAge, ObjectView, PutView, SegmentRange, SegmentView, StoreView, TenantView, Usage,
};
pub use security::{
    PRINCIPAL_CERTIFICATE_MAX, PRINCIPAL_CERTIFICATES_MAX, PRINCIPAL_NAME_MAX, PRINCIPALS_MAX, Security,
    StoredPrincipal,
};
pub use snapshot::SnapshotError;
pub use state::State;
pub use tenants::{Share, TenantUsage};
pub use work::count_work;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use work::steps_of;
