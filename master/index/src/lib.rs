//! The index: a pure, deterministic, synchronous state machine.
//!
//! `State::apply(index, term, &Command) -> Response`, and read-only queries. No clock, no random numbers, no I/O, no
//! log lines: whatever is not in the state (time, a seed, the stores to avoid) the leader stamps into the command.
//! Determinism: no iteration over hash maps, no floats, no `usize` in hashes, and no panic: a panic here would kill
//! every master at the same entry, so bad input is a result code.
//!
//! All containers are copy-on-write in small pieces, so a clone is cheap and can be written as a snapshot
//! ([`State::write_snapshot`]) on another thread while entries are applied.

pub mod alloc;
mod changes;
mod clearing;
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
mod limits;
mod list;
mod machine;
mod mount;
mod objects;
mod pin;
mod place;
mod put;
mod puts;
mod query;
mod removal;
mod request;
mod segment;
mod segments;
mod settings;
mod snapshot;
mod stores;
mod tenants;

pub use changes::Change;
pub use clearing::{Cleared, Clearing, Fit, Stretch};
pub use command::{
    Command, DecodeError, Endpoint, EvictItem, MountStore, Op, PlacedReplica, PutEndItem, PutEnded, PutMode,
    PutStartItem, PutStarted, RemoveItem, Replication, Response, Stamp, StartKey, reuse_epoch,
};
pub use groups::GroupId;
pub use key::KeyHash;
pub use key_values::{KEY_VALUE_KEY_MAX, KEY_VALUE_MAX, KEY_VALUES_BYTES_MAX, KEY_VALUES_MAX};
pub use limits::TenantView;
pub use list::{KeyPage, ListedObject};
pub use machine::{RESCUE_GAP, State, allocation_order, known_from};
pub use pin::{Pin, PinAction, SOFT_PIN_MAX};
pub use query::{
    GroupView, HashedObject, HeldRange, ObjectAge, ObjectView, PutView, SegmentView, StoreView, UnitOf, Usage,
};
pub use request::{Answer, Request};
pub use settings::{CLUSTER_VERSION, ReadPolicy, ReadPolicyError, Settings, TenantPolicy, TenantPolicyError};
pub use snapshot::SnapshotError;
pub use tenants::{Quota, Share, TenantName, TenantUsage};
