//! Keys of the clients. The name of a key says how it is put, and how its value may go.

use mc_proto::v1;
use mc_tests::checker::Digest;
use mc_types::PutId;

use crate::pool::Pool;

/// Tenant with a quota.
pub(crate) const BOUND: &str = "bound";
/// Objects that it may have: fewer than its keys.
pub(crate) const BOUND_OBJECTS: u64 = 3;
const BOUND_KEYS: u64 = 6;
/// Tenant whose objects are removed all at once.
pub(crate) const SCRATCH: &str = "scratch";
const SCRATCH_KEYS: u64 = 4;
/// Keys of the default tenant that all clients write.
const HOT_KEYS: u64 = 3;
/// Entries of the table of keys and values.
const ENTRIES: u64 = 2;
/// Keys of the real clients.
const USER_KEYS: u64 = 8;
/// Objects of a group.
const MEMBERS: usize = 3;

/// Part of the keys of [`SCRATCH`].
pub(crate) const SOME_SCRATCH: &str = "^scratch-[01]$";

pub(crate) fn hot(draw: u64) -> String {
    format!("hot-{}", draw % HOT_KEYS)
}

pub(crate) fn is_hot(key: &str) -> bool {
    kind_of(key) == "hot"
}

/// From two hot keys to `most`.
pub(crate) fn several_hot(draw: u64, most: u64) -> Vec<String> {
    let count = 2 + (draw >> 8) % (most.min(HOT_KEYS) - 1);
    (0..count).map(|place| hot(draw % HOT_KEYS + place)).collect()
}

pub(crate) fn bound(draw: u64) -> String {
    format!("{BOUND}-{}", draw % BOUND_KEYS)
}

pub(crate) fn scratch(draw: u64) -> String {
    format!("{SCRATCH}-{}", draw % SCRATCH_KEYS)
}

/// A key of the table of keys and values.
pub(crate) fn entry(draw: u64) -> String {
    format!("entry-{}", draw % ENTRIES)
}

pub(crate) fn is_entry(key: &str) -> bool {
    kind_of(key) == "entry"
}

/// Keys that a removal from [`SCRATCH`] removes: all, or [`SOME_SCRATCH`].
pub(crate) fn scratch_keys(all: bool) -> impl Iterator<Item = String> {
    (0..if all { SCRATCH_KEYS } else { 2 }).map(scratch)
}

/// Key number `count` that client `number` puts once and leaves alone.
pub(crate) fn kept(draw: u64, number: u32, count: usize) -> String {
    let kind = match draw % 6 {
        0 | 1 => "kept",
        2 | 3 => "member",
        4 => "soft",
        _ => "pinned",
    };
    format!("{kind}-{number}-{count}")
}

pub(crate) fn tenant_of(key: &str) -> &'static str {
    match kind_of(key) {
        BOUND => BOUND,
        SCRATCH => SCRATCH,
        _ => "",
    }
}

/// The pin that a put of the key asks for. That of a hot key changes from put to put.
pub(crate) fn pin(key: &str, draw: u64) -> v1::PinAction {
    match (kind_of(key), draw % 8) {
        ("soft", _) | ("hot", 0) => v1::PinAction::PinSoft,
        ("pinned", _) | ("hot", 1 | 2) => v1::PinAction::PinHard,
        ("hot", 3 | 4) => v1::PinAction::PinDisable,
        _ => v1::PinAction::PinPreserve,
    }
}

/// Whether values of the key are small in any pool: they may be pinned for good, or are put when all else is leased.
pub(crate) fn stays_small(key: &str) -> bool {
    matches!(kind_of(key), "hot" | "pinned" | "last")
}

/// The group that a key joins; empty for none.
pub(crate) fn group_of(key: &str) -> String {
    let mut parts = key.split('-');
    match (parts.next(), parts.next(), parts.next().and_then(|count| count.parse::<usize>().ok())) {
        (Some("member"), Some(number), Some(count)) => format!("group-{number}-{}", count / MEMBERS),
        _ => String::new(),
    }
}

/// A key of the real clients, whose values have bytes.
pub(crate) fn user(draw: u64) -> String {
    format!("user-{}", draw % USER_KEYS)
}

pub(crate) fn all_user() -> impl Iterator<Item = String> {
    (0..USER_KEYS).map(user)
}

/// The digest of a value without bytes.
pub(crate) fn digest(put: PutId) -> Digest {
    Digest(put.0 as u64)
}

/// The digest of a value: of its bytes if it has any, else of the put that made it.
pub(crate) fn digest_of(key: &str, version: PutId, checksum: u64) -> Digest {
    if kind_of(key) == "user" { Digest(checksum) } else { digest(version) }
}

/// Whether clients remove the key at times.
pub(crate) fn may_be_removed(key: &str) -> bool {
    matches!(kind_of(key), "user" | "hot" | "entry" | SCRATCH)
}

/// Whether the key may be evicted: in any pool within a quota, else in a pool that evicts.
pub(crate) fn may_be_evicted(key: &str, pool: Pool) -> bool {
    kind_of(key) == BOUND || pool.evicts() && !matches!(kind_of(key), "pinned" | "entry")
}

fn kind_of(key: &str) -> &str {
    key.split('-').next().unwrap_or_default()
}
