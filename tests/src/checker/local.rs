//! Answers of clients from their own caches while no leader is in reach.
//!
//! Such a read may be old, so no order of the pool's operations has to explain it. What it returns must still be bytes
//! that the client's cache can hold: those of a put of that key that had begun, and that did not fail. A put that stayed
//! in one client's cache is nobody else's to read.

use super::history::{Operation, Outcome};

/// The first read out of a cache, of one key's operations, that no put explains.
pub(super) fn unexplained(operations: &[Operation]) -> Option<&Operation> {
    operations.iter().find(|read| {
        let Outcome::LocalValue(digest) = read.outcome else { return false };
        !operations.iter().any(|put| put.action.writes() == Some(digest) && may_be_cached(put, read))
    })
}

/// Whether the cache that `read` was answered from may hold what `put` wrote.
fn may_be_cached(put: &Operation, read: &Operation) -> bool {
    let begun = put.start <= read.end;
    begun
        && match put.outcome {
            Outcome::Failed => false,
            Outcome::LocalOnly => put.client == read.client,
            _ => true,
        }
}
