//! Evictions in the masters' log, judged by the order of the log: no clock is compared with another.

use std::collections::HashMap;
use std::time::Duration;

use crate::checker::{Action, Digest, Operation, Outcome, Pin, pin_of};

/// Puts that are this far apart have an order in which their values are evicted, if nothing has used them.
const CLEARLY_OLDER: Duration = Duration::from_secs(1);

/// Effect of an entry of the masters' log on a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Logged {
    /// Ends its put.
    Written(Digest),
    /// Evicts it, under this key.
    Evicted(String, Digest),
}

/// Evictions that were judged by [`overtaken`], and those that came too early.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overtaken {
    /// Evictions of values of which nothing but their put is known, while such values could be older.
    pub judged: usize,
    /// Evictions of values with a soft pin.
    pub soft: usize,
    /// Evictions of a value while one stayed that must go before, in words.
    pub too_early: Vec<String>,
}

/// The put of each value.
fn puts(operations: &[Operation]) -> HashMap<Digest, &Operation> {
    operations.iter().filter_map(|it| Some((it.action.writes()?, it))).collect()
}

/// Places the evictions of a log in a history.
///
/// Each took effect after the start of every put that the log ends before it, and before the answer to every put that was
/// acknowledged and that the log ends after it.
pub(crate) fn evictions(log: &[Logged], operations: &[Operation]) -> Vec<Operation> {
    let puts = puts(operations);
    let put_at = |at: usize| match &log[at] {
        Logged::Written(value) => puts.get(value).copied(),
        Logged::Evicted(..) => None,
    };
    let end = operations.iter().map(|it| it.end).max().map_or(0, |last| last + 1);
    // Backwards: the end of a put counts where it is logged first, since it may be acknowledged by then.
    let mut first: HashMap<&Digest, usize> = HashMap::new();
    for (at, logged) in log.iter().enumerate() {
        if let Logged::Written(value) = logged {
            first.entry(value).or_insert(at);
        }
    }
    let mut latest = vec![end; log.len()];
    let mut bound = end;
    for at in (0..log.len()).rev() {
        latest[at] = bound;
        if let Logged::Written(value) = &log[at]
            && first[value] == at
            && let Some(put) = put_at(at).filter(|put| put.outcome == Outcome::Stored)
        {
            bound = bound.min(put.end);
        }
    }
    let mut earliest = 0;
    let mut evictions = Vec::new();
    for (at, logged) in log.iter().enumerate() {
        match logged {
            Logged::Written(_) => earliest = put_at(at).map_or(earliest, |put| earliest.max(put.start)),
            Logged::Evicted(key, value) => {
                evictions.push(Operation::eviction(key, *value, earliest, latest[at].max(earliest)));
            }
        }
    }
    evictions
}

/// Judges the order of evictions: nothing is evicted while a clearly older value stays, and nothing with a soft pin while a value
/// without a pin stays.
///
/// The masters' order weighs recency against frequency, so the first is so for values that were used alike. Here these are values of
/// keys that were put once and never asked for: all enter the queue of what was seen once, which is evicted in the order of
/// the puts. Puts of one moment may be logged in any order, so only a second or more counts. Nobody has leased these values
/// either, so they also show that a soft pin was not honoured, whatever was used how. Tenants may have orders of their own, and a
/// group is used through any member, so only values of one tenant and of no group are compared. For pools of one store.
#[must_use]
pub fn overtaken(log: &[Logged], operations: &[Operation]) -> Overtaken {
    let evictions = evictions(log, operations);
    let mut of_key: HashMap<&str, Vec<&Operation>> = HashMap::new();
    for operation in operations.iter().chain(&evictions) {
        of_key.entry(&operation.key).or_default().push(operation);
    }
    let mut ends: HashMap<Digest, usize> = HashMap::new();
    for logged in log {
        if let Logged::Written(value) = logged {
            *ends.entry(*value).or_default() += 1;
        }
    }
    // Until when a key's only call was the put of its value. A client that lost the answer ends its put again, which counts as a use.
    let untouched_until = |put: &Operation| {
        if put.action.writes().is_none_or(|value| ends.get(&value) != Some(&1)) {
            return 0;
        }
        let calls = of_key[&*put.key].iter().filter(|it| !matches!(it.action, Action::Evict(_)));
        calls.filter(|it| **it != put).map(|it| it.start).min().unwrap_or(u64::MAX)
    };
    let pin = |put: &Operation| pin_of(of_key[&*put.key].iter().copied(), put.action.writes()?);
    let tenant = |put: &Operation| put.key.split_once(':').map(|(tenant, _)| tenant.to_owned());
    let is_alone = |put: &Operation| !put.key.contains('/');
    let puts = puts(operations);
    let mut placed = evictions.iter();
    let mut there: Vec<&Operation> = Vec::new();
    let mut found = Overtaken::default();
    for logged in log {
        match logged {
            Logged::Written(value) => {
                let put = puts.get(value).filter(|put| put.outcome == Outcome::Stored);
                there.extend(put.filter(|put| !there.contains(put)));
            }
            Logged::Evicted(_, value) => {
                let at = placed.next().map_or(0..0, |it| it.start..it.end);
                let Some(place) = there.iter().position(|put| put.action.writes() == Some(*value)) else {
                    continue;
                };
                let put = there.remove(place);
                // Values that were put by then must go first.
                let by = if !is_alone(put) {
                    continue;
                } else if pin(put) == Some(Pin::Soft) {
                    found.soft += 1;
                    at.start
                } else if untouched_until(put) > at.end {
                    found.judged += 1;
                    put.start
                } else {
                    continue;
                };
                let by = by.saturating_sub(CLEARLY_OLDER.as_nanos() as u64);
                let stayed = there.iter().find(|it| {
                    let is_free = it.end < by && untouched_until(it) > at.end && pin(it) == Some(Pin::Off);
                    is_free && is_alone(it) && tenant(it) == tenant(put)
                });
                found
                    .too_early
                    .extend(stayed.map(|stayed| format!("{put}\n  was evicted, and stayed:\n  {stayed}")));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn put(value: u64, start: u64, end: u64) -> Operation {
        let action = Action::PutIfAbsent(Digest(value));
        Operation { client: 0, key: format!("k{value}"), action, outcome: Outcome::Stored, start, end }
    }

    fn written(value: u64) -> Logged {
        Logged::Written(Digest(value))
    }

    fn evicted(value: u64) -> Logged {
        Logged::Evicted(format!("k{value}"), Digest(value))
    }

    #[test]
    fn an_eviction_lies_between_the_puts_around_it_in_the_log() {
        let operations = [put(1, 10, 20), put(2, 30, 40), put(3, 35, 60), put(4, 70, 80)];
        let log = [written(1), written(2), evicted(1), written(3), written(4), evicted(2)];
        let spans: Vec<_> = evictions(&log, &operations).iter().map(|it| (it.start, it.end)).collect();
        assert_eq!(spans, [(30, 60), (70, 81)]);
        // A put of unknown outcome began before its entry, and its answer says nothing; one that is ended twice may have been
        // acknowledged after the first.
        let mut unknown = operations;
        unknown[2].outcome = Outcome::Unknown;
        let again = [written(1), written(2), evicted(1), written(2), written(3), written(4)];
        let span = evictions(&again, &unknown)[0].clone();
        assert_eq!((span.start, span.end), (30, 80));
    }

    #[test]
    fn values_that_nothing_has_used_are_evicted_in_the_order_of_their_puts() {
        let operations = [put(1, 0, S), put(2, 3 * S, 4 * S), put(3, 4 * S, 5 * S)];
        let written_all = [written(1), written(2), written(3)];
        let judge = |evictions: &[Logged], operations: &[Operation]| {
            overtaken(&[&written_all[..], evictions].concat(), operations)
        };
        let in_order = judge(&[evicted(1), evicted(3), evicted(2)], &operations);
        assert_eq!((in_order.judged, in_order.too_early.len()), (3, 0), "2 is not clearly older than 3");
        let too_early = judge(&[evicted(2), evicted(1)], &operations);
        assert_eq!((too_early.judged, too_early.too_early.len()), (2, 1));
        // One that was read stays longer, and says nothing of itself.
        let read = Operation {
            action: Action::Get,
            outcome: Outcome::Miss,
            start: 2 * S,
            end: 3 * S,
            ..put(1, 0, 0)
        };
        let used = [&operations[..], &[read]].concat();
        assert_eq!(judge(&[evicted(2), evicted(1)], &used), Overtaken { judged: 1, ..Default::default() });
    }

    #[test]
    fn a_value_with_a_soft_pin_is_evicted_after_those_without_one() {
        let soft = Operation { action: Action::UpsertPinned(Digest(1), Pin::Soft), ..put(1, 0, S) };
        let read = Operation { action: Action::Get, outcome: Outcome::Value(Digest(1)), ..put(1, S, 2 * S) };
        let operations = [soft, read, put(2, 2 * S, 3 * S), put(3, 9 * S, 10 * S)];
        let log = [written(1), written(2), written(3), evicted(1), evicted(2)];
        let found = overtaken(&log, &operations);
        assert_eq!((found.soft, found.too_early.len()), (1, 1), "2 had to go before");
        let log = [written(1), written(2), evicted(2), written(3), evicted(1)];
        assert_eq!(overtaken(&log, &operations).too_early, [""; 0]);
        // So may a value whose put was ended again: it was used twice.
        let log = [written(1), written(2), written(2), written(3), evicted(1)];
        assert_eq!(overtaken(&log, &operations).too_early, [""; 0]);
        // Another tenant's values may stay.
        let log = [written(1), written(2), written(3), evicted(1)];
        let of_another = |it: Operation| Operation { key: format!("red:{}", it.key), ..it };
        let [soft, read, other, last] = operations;
        let operations = [soft, read, of_another(other), last];
        assert_eq!(overtaken(&log, &operations), Overtaken { soft: 1, ..Default::default() });
    }
}
