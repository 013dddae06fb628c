//! Copy-on-write containers: a clone costs a few reference counts, and a later write copies only the nodes it touches.
//!
//! So a snapshot can be taken between two log entries and encoded on another thread: the clone that the encoder holds
//! never changes, and no single write copies more than a few small nodes. Nothing here hashes or depends on addresses;
//! the order of iteration is the order of keys.
//!
//! `triomphe` counts the references because it has no weak ones: checking whether a node is shared takes a load there
//! and a compare-and-swap in std, and each put checks some 25 times.

mod map;
mod table;

pub(crate) use map::CowMap;
pub(crate) use table::CowTable;
