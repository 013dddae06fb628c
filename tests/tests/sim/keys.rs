//! Keys of the clients. The name of a key says how it is put, and how its value may go.

use mc_proto::v1;

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
/// Objects of a group.
const MEMBERS: usize = 3;

/// Part of the keys of [`SCRATCH`].
pub(crate) const SOME_SCRATCH: &str = "^scratch-[01]$";

pub(crate) fn hot(draw: u64) -> String {
    format!("hot-{}", draw % HOT_KEYS)
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

pub(crate) fn pin_of(key: &str) -> v1::PinAction {
    match kind_of(key) {
        "soft" => v1::PinAction::PinSoft,
        "pinned" => v1::PinAction::PinHard,
        _ => v1::PinAction::PinPreserve,
    }
}

/// The group that a key joins; empty for none.
pub(crate) fn group_of(key: &str) -> String {
    let mut parts = key.split('-');
    match (parts.next(), parts.next(), parts.next().and_then(|count| count.parse::<usize>().ok())) {
        (Some("member"), Some(number), Some(count)) => format!("group-{number}-{}", count / MEMBERS),
        _ => String::new(),
    }
}

/// Whether clients remove the key at times.
pub(crate) fn may_be_removed(key: &str) -> bool {
    matches!(kind_of(key), "hot" | "entry" | SCRATCH)
}

/// Whether the key may be evicted: in any pool within a quota, else in a pool that is small.
pub(crate) fn may_be_evicted(key: &str, small_pool: bool) -> bool {
    kind_of(key) == BOUND || small_pool && !matches!(kind_of(key), "pinned" | "entry")
}

fn kind_of(key: &str) -> &str {
    key.split('-').next().unwrap_or_default()
}
