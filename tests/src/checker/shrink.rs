//! Finds the few operations that contradict each other.
//!
//! Only weaker histories are tried, which any explanation of the full history would also explain. An operation that
//! only looked is left out; one that changed something gets an unknown outcome. So the remaining contradiction is one
//! of the full history, and does not come from leaving out a writer.

use super::history::{Action, Operation, Outcome};
use super::model::Losses;
use super::search::{Found, search};

/// Bound on the steps of each try; a weaker history that takes longer is not worth the wait.
const TRY: usize = 5_000;

/// Returns the operations that contradict each other: without any one of them there would be an order.
pub(super) fn shrink(operations: &[Operation], stuck_at: usize, losses: &Losses) -> Vec<Operation> {
    let stuck = &operations[stuck_at];
    let evicted = |value| operations.iter().any(|operation| operation.action == Action::Evict(value));
    // An operation that was called after the contradiction has no part in it. But an eviction without its put would be
    // another contradiction.
    let has_part = |it: &&Operation| it.start <= stuck.end || it.action.writes().is_some_and(evicted);
    let mut rest: Vec<Operation> = operations.iter().filter(has_part).cloned().collect();
    let contradictory = |rest: &[Operation]| matches!(search(rest, losses, TRY), Found::NoOrder { .. });
    let mut size = rest.len();
    while size > 0 {
        let mut from = 0;
        while from < rest.len() {
            let to = rest.len().min(from + size);
            let mut weaker = rest.clone();
            for operation in &mut weaker[from..to] {
                operation.outcome = Outcome::Unknown;
            }
            if weaker[from..to] != rest[from..to] && contradictory(&weaker) {
                rest = weaker;
            }
            from = to;
        }
        size /= 2;
    }
    rest.retain(|operation| operation.outcome != Outcome::Unknown && !operation.is_no_news());
    rest.sort_by_key(|operation| operation.start);
    rest
}
