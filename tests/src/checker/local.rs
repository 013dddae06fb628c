//! Reads that clients answered from their own caches while no leader was in reach.
//!
//! Such a read may be old, so no order of the pool's operations has to explain it. It must still return bytes that the
//! client's cache can hold: those of a put of that key that had begun and did not fail. A put that stayed in one
//! client's cache may be read by that client only.

use super::history::{Operation, Outcome};

/// Returns the first read from a cache that no put explains, among the operations of one key.
pub(super) fn unexplained(operations: &[Operation]) -> Option<&Operation> {
    operations.iter().find(|read| {
        let Outcome::LocalValue(digest) = read.outcome else { return false };
        !operations.iter().any(|put| put.action.writes() == Some(digest) && may_be_cached(put, read))
    })
}

/// Returns whether the cache that answered `read` may hold the value of `put`.
fn may_be_cached(put: &Operation, read: &Operation) -> bool {
    let begun = put.start <= read.end;
    begun
        && match put.outcome {
            Outcome::Failed | Outcome::Aborted => false,
            Outcome::LocalOnly => put.client == read.client,
            _ => true,
        }
}
