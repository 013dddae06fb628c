//! Pins of values, and evictions of those with a hard one, which nothing may evict.

use super::history::{Action, Digest, Operation, Pin};

/// Returns the first eviction of a value with a hard pin, among the operations of one key.
pub(super) fn evicted(operations: &[Operation]) -> Option<&Operation> {
    operations.iter().find(|operation| is_hard_pinned(operations, operation))
}

/// Returns whether an operation of a history is the eviction of a value that certainly had a hard pin.
pub(super) fn is_hard_pinned(history: &[Operation], eviction: &Operation) -> bool {
    let Action::Evict(value) = eviction.action else { return false };
    pin_of(history.iter().filter(|it| it.key == eviction.key), value) == Some(Pin::Hard)
}

/// Returns the pin of a value, by the operations of its key; `None` if it is not certain.
///
/// A put without a pin of its own keeps that of the value which it replaces. That value is known if it is still there when the
/// put begins, and if nothing else can have changed the key meanwhile.
pub(crate) fn pin_of<'a>(of_key: impl Iterator<Item = &'a Operation> + Clone, value: Digest) -> Option<Pin> {
    let changes = |it: &&Operation| it.mutates() && !it.is_no_news() && !it.only_looked();
    let of_clients = of_key.clone().filter(changes).filter(|it| !matches!(it.action, Action::Evict(_)));
    let mut put = of_clients.clone().find(|it| it.action.writes() == Some(value))?;
    loop {
        match put.action {
            Action::UpsertPinned(_, pin) => return Some(pin),
            Action::Upsert(_) if put.outcome.is_open() => return None,
            Action::Upsert(_) => {}
            _ => return Some(Pin::Off),
        }
        let others = of_clients.clone().filter(|it| !std::ptr::eq(*it, put) && it.start <= put.end);
        let Some(before) = others.clone().max_by_key(|it| it.start) else { return Some(Pin::Off) };
        let is_last = |it: &Operation| std::ptr::eq(it, before) || it.end < before.start;
        let is_gone =
            |it: &Operation| matches!(it.action, Action::Evict(gone) if Some(gone) == before.action.writes());
        let is_certain = others.clone().all(|it| !it.outcome.is_open() && it.end < put.start && is_last(it));
        if !is_certain || of_key.clone().any(is_gone) {
            return None;
        }
        put = before;
    }
}
