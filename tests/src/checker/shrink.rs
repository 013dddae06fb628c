//! Finds the few operations that contradict each other.
//!
//! Only weaker histories are tried, ones that any explanation of the full history would explain, too: an operation that
//! only looked is left out, one that changed something gets an unknown outcome. So what remains contradictory was so
//! in the full history, and not because its writer was left out.

use super::history::{Operation, Outcome};
use super::model::Losses;
use super::search::{Found, search};

/// Steps of each try: a weaker history that takes longer is not worth the wait.
const TRY: usize = 5_000;

/// The operations without which there would be an order.
pub(super) fn shrink(operations: &[Operation], stuck_at: usize, losses: &Losses) -> Vec<Operation> {
    let stuck = &operations[stuck_at];
    // What was called after the contradiction has no part in it.
    let mut rest: Vec<Operation> =
        operations.iter().filter(|operation| operation.start <= stuck.end).cloned().collect();
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
