//! Copy-on-write containers: a clone costs a few reference counts, a write after it copies what it touches.
//!
//! This is what lets a snapshot be taken between two log entries and encoded on another thread: the clone that the
//! encoder holds never changes, and no single write copies more than a few small nodes. Nothing here hashes or
//! depends on addresses; the order of iteration is the order of keys.
//!
//! References are counted by `triomphe`, which knows no weak ones: whether a node is shared is a load there, a
//! compare-and-swap in std, and each put asks some 25 times.

mod map;
mod table;

pub(super) use map::CowMap;
pub(super) use table::CowTable;
