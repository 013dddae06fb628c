//! Decides whether a history is linearizable: whether each operation can have taken effect at one instant between its
//! start and its end, so that all answers are explained.
//!
//! Keys are independent, so each is decided alone. The model of a key is a register that is absent or holds one value;
//! values are told apart by their digests. An operation whose outcome is unknown stays open to the end of the history:
//! it may take effect at any time after its start, or never.
//!
//! An eviction is an operation of its own, which the masters' log tells of. It takes effect exactly once, and needs
//! exactly its value to be there. So a miss of an acknowledged value needs an eviction of that value.
//!
//! Operations of a client without a leader are judged apart. A put that stayed in the client's cache counts as failed;
//! a read from the cache is judged on its own (see `local`).

mod history;
mod local;
mod model;
mod pins;
mod search;
mod shrink;
#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "one span of time")]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

pub use history::{Action, Digest, Operation, Outcome, Pin};
pub use model::Losses;
pub(crate) use pins::pin_of;

use search::Found;

/// Bound on the steps of the search for one key.
const BOUND: usize = 5_000_000;

/// Verdict on a history.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// Every key's operations can be put in an order that explains them.
    Linearizable {
        /// Number of operations that were checked.
        operations: usize,
        /// Number of keys.
        keys: usize,
    },
    /// No order explains this key's operations.
    Violation(Violation),
    /// The search for this key took too many steps.
    Unknown {
        /// The key.
        key: String,
    },
}

/// An impossible history of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The key.
    pub key: String,
    /// The contradiction that the last operation below shows, in words.
    pub why: String,
    /// Whether an acknowledged value is gone. If not, an answer is wrong in another way.
    pub lost: bool,
    /// The operations that contradict each other, ordered by their starts. Without any one of them there would be an
    /// explanation.
    pub operations: Vec<Operation>,
    /// Number of that key's operations that were left out because the contradiction stands without them.
    pub left_out: usize,
}

impl Verdict {
    /// Returns whether it is a [violation](Violation) that shows a loss.
    pub fn is_loss(&self) -> bool {
        matches!(self, Self::Violation(violation) if violation.lost)
    }

    /// Panics unless the history is linearizable.
    #[track_caller]
    pub fn assert_ok(&self) {
        assert!(matches!(self, Self::Linearizable { .. }), "{self}");
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Linearizable { operations, keys } => {
                write!(f, "{operations} operations on {keys} keys are linearizable")
            }
            Self::Unknown { key } => write!(f, "key {key}: undecided after {BOUND} steps"),
            Self::Violation(violation) => violation.fmt(f),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "key {}: {}", self.key, self.why)?;
        for operation in &self.operations {
            writeln!(f, "  {operation}")?;
        }
        write!(f, "  ({} other operations of this key do not matter)", self.left_out)
    }
}

/// Checks a history, given in any order, and stops at the first key that no order explains.
pub fn check(history: &[Operation], losses: Losses) -> Verdict {
    let keys = by_key(history);
    let mut found = keys.iter().filter_map(|(key, operations)| judge(history, key, operations, &losses));
    found.next().unwrap_or(Verdict::Linearizable { operations: history.len(), keys: keys.len() })
}

/// Returns the verdict on each key that no order explains, or whose search was given up. `losses` says what may have happened to
/// the values of a key.
#[must_use]
pub fn check_each(history: &[Operation], losses: impl Fn(&str) -> Losses) -> Vec<Verdict> {
    let keys = by_key(history);
    keys.iter().filter_map(|(key, operations)| judge(history, key, operations, &losses(key))).collect()
}

fn by_key(history: &[Operation]) -> BTreeMap<&str, Vec<Operation>> {
    let mut keys: BTreeMap<&str, Vec<Operation>> = BTreeMap::new();
    for operation in history {
        // The search needs no reason why an outcome is unknown.
        let outcome = match operation.outcome {
            Outcome::Untold => Outcome::Unknown,
            told => told,
        };
        keys.entry(&operation.key).or_default().push(Operation { outcome, ..operation.clone() });
    }
    keys
}

/// Judges one key; returns `None` if an order explains its operations.
fn judge(history: &[Operation], key: &str, operations: &[Operation], losses: &Losses) -> Option<Verdict> {
    let alone = local::unexplained(operations).or_else(|| pins::evicted(operations));
    let (stuck, operations, left_out) = if let Some(alone) = alone {
        (alone, vec![alone.clone()], operations.len() - 1)
    } else {
        match search::search(operations, losses, BOUND) {
            Found::Order => return None,
            Found::Bound => return Some(Verdict::Unknown { key: key.to_owned() }),
            Found::NoOrder { stuck_at } => {
                let essential = shrink::shrink(operations, stuck_at, losses);
                let left_out = operations.len() - essential.len();
                (&operations[stuck_at], essential, left_out)
            }
        }
    };
    let why = explain(history, key, stuck, losses);
    let lost = is_loss(stuck, losses);
    Some(Verdict::Violation(Violation { key: key.to_owned(), why, lost, operations, left_out }))
}

/// Returns whether an operation that nothing explains shows that a value is gone: a read found none, or a put-if-absent stored.
fn is_loss(stuck: &Operation, losses: &Losses) -> bool {
    let stored_if_absent = matches!(stuck.action, Action::PutIfAbsent(_)) && stuck.outcome == Outcome::Stored;
    let missed = matches!(stuck.outcome, Outcome::Miss | Outcome::Absent | Outcome::NothingToRemove);
    (missed || stored_if_absent) && *losses != Losses::Allowed
}

/// Describes the violation as a person would.
fn explain(history: &[Operation], key: &str, stuck: &Operation, losses: &Losses) -> String {
    let writers = |digest: Digest| history.iter().filter(move |op| op.action.writes() == Some(digest));
    match &stuck.outcome {
        Outcome::Value(digest) | Outcome::LocalValue(digest) => {
            let here = writers(*digest).any(|operation| operation.key == key);
            match writers(*digest).next() {
                None => "a read returned bytes that nobody ever put (torn or damaged)".to_owned(),
                Some(other) if !here => {
                    format!("a read returned the value of another key, {}", other.key)
                }
                Some(_) if matches!(stuck.outcome, Outcome::LocalValue(_)) => {
                    "a read without a leader returned a value that its client's cache cannot hold \
                     (of a put that failed, had not begun, or stayed in another client's cache)"
                        .to_owned()
                }
                Some(_) => "a read returned a value that was not there at any time during the read \
                            (removed, replaced, or not yet put)"
                    .to_owned(),
            }
        }
        _ if is_loss(stuck, losses) => {
            "an acknowledged value is gone, though it was neither removed nor evicted".to_owned()
        }
        Outcome::Evicted if pins::is_hard_pinned(history, stuck) => {
            "a value with a hard pin was evicted".to_owned()
        }
        Outcome::Evicted => "the eviction of a value that was never there, or went in another way".to_owned(),
        _ => "an answer that no order of the operations explains".to_owned(),
    }
}
