//! Evictions of values that were put with a hard pin, which nothing may evict.

use super::history::{Action, Operation};

/// Returns the first eviction of a pinned value, among the operations of one key.
pub(super) fn evicted(operations: &[Operation]) -> Option<&Operation> {
    operations.iter().find(|operation| is_pinned(operations, operation))
}

/// Returns whether an operation is the eviction of a value that one of `puts` pinned.
pub(super) fn is_pinned(puts: &[Operation], eviction: &Operation) -> bool {
    let Action::Evict(value) = eviction.action else { return false };
    puts.iter().any(|put| put.action == Action::UpsertPinned(value))
}
