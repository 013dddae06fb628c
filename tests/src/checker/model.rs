use std::ops::Range;

use super::history::{Action, Digest, Operation, Outcome};

/// Value of a key, if it has one.
pub(super) type State = Option<Digest>;

/// The ways in which values may disappear without a remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Losses {
    /// Nothing disappears without an [eviction](super::Action::Evict) in the history, because there is no dead or suspect
    /// store: a miss of an acknowledged value is a violation.
    None,
    /// Values are never lost, but may be out of reach for a while because their stores are suspect. A put-if-absent
    /// makes a new version of a value that it could not see. A miss of an acknowledged value is a violation.
    Hidden,
    /// Values may disappear, for a while or for good. A miss is always allowed, and so is a put-if-absent that makes a
    /// new version of a value that it could not see. Wrong bytes are never allowed, nor is a value that was removed or
    /// replaced.
    Allowed,
    /// [`Losses::Allowed`] for operations that overlap one of these spans of the history's time, [`Losses::None`] for
    /// all others.
    ///
    /// While a store is suspect, a put-if-absent makes a new version of a value that it cannot see there. That is no
    /// loss, but the history looks the same if the old value was lost. The shorter the spans, the fewer losses they
    /// hide.
    Within(Vec<Range<u64>>),
}

impl Losses {
    fn allowed_for(&self, operation: &Operation) -> bool {
        match self {
            Self::None | Self::Hidden => false,
            Self::Allowed => true,
            Self::Within(spans) => {
                spans.iter().any(|span| operation.start < span.end && span.start <= operation.end)
            }
        }
    }
}

/// Returns the state after `operation` took effect in `state`, or `None` if its answer contradicts `state`.
pub(super) fn apply(state: State, operation: &Operation, losses: &Losses) -> Option<State> {
    let lossy = losses.allowed_for(operation);
    let unseen = *losses == Losses::Hidden;
    let here = |condition: bool, next: State| condition.then_some(next);
    match (operation.action, operation.outcome) {
        (Action::PutIfAbsent(value), Outcome::Stored) => {
            here(state.is_none() || lossy || unseen, Some(value))
        }
        (Action::PutIfAbsent(_), Outcome::Exists) => here(state.is_some(), state),
        // If it changes nothing, that is the same as never taking effect, which the search covers.
        (Action::PutIfAbsent(value), Outcome::Unknown) if unseen => Some(Some(value)),
        (Action::PutIfAbsent(value), Outcome::Unknown) => Some(state.or(Some(value))),
        (Action::Upsert(value) | Action::UpsertPinned(value, _), Outcome::Stored | Outcome::Unknown) => {
            Some(Some(value))
        }
        (Action::Get, Outcome::Value(value)) => here(state == Some(value), state),
        (Action::Get, Outcome::Miss) | (Action::Exist, Outcome::Absent) => {
            here(state.is_none() || lossy, state)
        }
        (Action::Exist, Outcome::Present) => here(state.is_some(), state),
        (Action::Remove, Outcome::Removed) => here(state.is_some(), None),
        (Action::Remove, Outcome::NothingToRemove) => here(state.is_none() || lossy, state),
        (Action::Remove, Outcome::Cleared | Outcome::Unknown) => Some(None),
        (Action::Evict(value), Outcome::Evicted | Outcome::Unknown) => here(state == Some(value), None),
        (Action::Get | Action::Exist, Outcome::Unknown) => Some(state),
        // The answer does not belong to the question, so nothing explains it.
        _ => None,
    }
}
