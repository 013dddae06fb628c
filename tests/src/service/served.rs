use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use crate::checker::{Action, Operation, Outcome};

/// Kind of call that a client makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallKind {
    /// A put of either mode.
    Put,
    /// A get.
    Get,
    /// A question whether a key exists.
    Exist,
    /// A remove.
    Remove,
}

/// Answers that one client got to its calls of one kind within a window of a history's time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// The client.
    pub client: u32,
    /// Kind of the calls.
    pub call: CallKind,
    /// Calls that began and ended in the window, as far as they are [counted](Counted). The next four count some of these.
    pub calls: usize,
    /// Calls that failed: they certainly had no effect, and their answers tell nothing.
    pub failed: usize,
    /// Calls of unknown outcome.
    pub unknown: usize,
    /// Calls that the client answered by itself, without a leader.
    pub local_only: usize,
    /// Misses of a key whose value was certainly there, wherever the answer came from.
    pub false_misses: usize,
    /// Longest time without a good answer: from the first call after one to the next one. The client's pause before the call that
    /// was answered well does not count: nobody asked meanwhile.
    ///
    /// After its last good answer a client is waited for to the end of the window, since its last call of any kind: it hangs, or
    /// has given up. Long calls of another kind that were answered well do not count: the client could not call meanwhile.
    pub longest_gap: Duration,
}

/// Calls of a client that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// All that began in the window.
    All,
    /// Those that began after the client's first good answer in the window: before, it has no leader yet, and says so at once.
    OnceBack,
}

impl CallKind {
    /// Returns the kind of an action; `None` for that of the pool.
    pub fn of(action: Action) -> Option<Self> {
        match action {
            Action::PutIfAbsent(_) | Action::Upsert(_) | Action::UpsertPinned(..) => Some(Self::Put),
            Action::Get => Some(Self::Get),
            Action::Exist => Some(Self::Exist),
            Action::Remove => Some(Self::Remove),
            Action::Evict(_) => None,
        }
    }
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "client {}, {} calls of {:?}: {:?} without a good answer, {} failed, {} of unknown outcome, {} without a leader, \
             {} false misses",
            self.client,
            self.calls,
            self.call,
            self.longest_gap,
            self.failed,
            self.unknown,
            self.local_only,
            self.false_misses
        )
    }
}

/// Least duration of a call, in nanoseconds, that keeps a client from making others.
const LONG: u64 = 100_000_000;

/// An answer, and whether it was a false miss.
struct Answer<'a> {
    operation: &'a Operation,
    false_miss: bool,
}

impl Answer<'_> {
    fn is_good(&self) -> bool {
        let no_answer =
            matches!(self.operation.outcome, Outcome::Failed | Outcome::Unknown | Outcome::Untold);
        !no_answer && !self.is_local() && !self.false_miss
    }

    fn is_local(&self) -> bool {
        matches!(self.operation.outcome, Outcome::LocalOnly | Outcome::LocalValue(_) | Outcome::LocalMiss)
    }
}

/// Returns what each client got in a window of a history's time, kind by kind; clients and kinds without a call in the whole
/// history are left out.
#[must_use]
pub fn served(operations: &[Operation], window: &Range<u64>, counted: Counted) -> Vec<Served> {
    let mut of_key: HashMap<&str, Vec<&Operation>> = HashMap::new();
    for operation in operations {
        of_key.entry(&operation.key).or_default().push(operation);
    }
    let mut by_client: BTreeMap<u32, BTreeMap<CallKind, Vec<Answer<'_>>>> = BTreeMap::new();
    // Nothing was answered to a call that its caller dropped.
    let answered = |it: &&Operation| it.outcome != Outcome::Untold;
    for operation in operations.iter().filter(|it| it.end <= window.end).filter(answered) {
        let Some(call) = CallKind::of(operation.action) else { continue };
        let false_miss = operation.end >= window.start && is_false_miss(operation, &of_key[&*operation.key]);
        let kinds = by_client.entry(operation.client).or_default();
        kinds.entry(call).or_default().push(Answer { operation, false_miss });
    }
    let mut all = Vec::new();
    for (client, kinds) in by_client {
        let last_call = kinds.values().flatten().map(|answer| answer.operation.end).max().unwrap_or(0);
        let good =
            kinds.values().flatten().filter(|answer| answer.is_good()).map(|answer| answer.operation.end);
        let from = match counted {
            Counted::All => window.start,
            Counted::OnceBack => good.filter(|end| *end >= window.start).min().unwrap_or(window.end),
        };
        let busy: BTreeMap<CallKind, Vec<Range<u64>>> =
            kinds.keys().map(|call| (*call, busy(&kinds, *call))).collect();
        for (call, mut answers) in kinds {
            answers.sort_by_key(|answer| answer.operation.end);
            let within = || answers.iter().filter(|answer| answer.operation.start >= from);
            let count = |wanted: fn(&Answer<'_>) -> bool| within().filter(|answer| wanted(answer)).count();
            all.push(Served {
                client,
                call,
                calls: within().count(),
                failed: count(|answer| answer.operation.outcome == Outcome::Failed),
                unknown: count(|answer| answer.operation.outcome == Outcome::Unknown),
                local_only: count(|answer| answer.is_local()),
                false_misses: count(|answer| answer.false_miss),
                longest_gap: longest_gap(&answers, &busy[&call], window, last_call),
            });
        }
    }
    all
}

/// Returns whether a call missed a key whose value was certainly there: acknowledged before the call began, and removed or
/// evicted by nothing that may have taken effect since.
fn is_false_miss(miss: &Operation, of_key: &[&Operation]) -> bool {
    if !matches!(miss.outcome, Outcome::Miss | Outcome::Unread | Outcome::Absent | Outcome::LocalMiss) {
        return false;
    }
    // A call of unknown outcome may take effect at any time after its start.
    let last = |it: &Operation| if it.outcome.is_open() { u64::MAX } else { it.end };
    let may_take = |it: &Operation, put: &Operation| {
        let is_in_time = it.start <= miss.end && last(it) >= put.start;
        is_in_time
            && match it.action {
                Action::Remove => !matches!(it.outcome, Outcome::Failed | Outcome::NothingToRemove),
                // An older value was replaced by this one, or gone by then.
                Action::Evict(value) => of_key
                    .iter()
                    .any(|other| other.action.writes() == Some(value) && last(other) >= put.start),
                _ => false,
            }
    };
    let mut puts = of_key.iter().filter(|put| put.outcome == Outcome::Stored && put.end < miss.start);
    puts.any(|put| !of_key.iter().any(|it| may_take(it, put)))
}

/// Returns when a client waited long for good answers to other calls than those of a kind, in spans that do not overlap.
fn busy(kinds: &BTreeMap<CallKind, Vec<Answer<'_>>>, but: CallKind) -> Vec<Range<u64>> {
    let others = kinds.iter().filter(|(call, _)| **call != but).flat_map(|(_, answers)| answers);
    let spans = others.filter(|it| it.is_good()).map(|it| it.operation.start..it.operation.end);
    let mut spans: Vec<_> = spans.filter(|span| span.end - span.start > LONG).collect();
    spans.sort_unstable_by_key(|span| span.start);
    let mut until = 0;
    for span in &mut spans {
        span.start = span.start.max(until).min(span.end);
        until = span.end.max(until);
    }
    spans
}

/// Returns the longest time without a good answer, of answers in the order of their ends.
fn longest_gap(answers: &[Answer<'_>], busy: &[Range<u64>], window: &Range<u64>, last_call: u64) -> Duration {
    let without = |from: u64, to: u64| {
        let elsewhere = busy.iter().map(|span| span.end.min(to).saturating_sub(span.start.max(from))).sum();
        to.saturating_sub(from).saturating_sub(elsewhere)
    };
    let (mut longest, mut good_at, mut since) = (0, window.start, None);
    let mut ended = window.start;
    for answer in answers.iter().filter(|answer| answer.operation.end >= window.start) {
        let began = answer.operation.start.max(good_at);
        let tried = since.map_or(began, |since: u64| since.min(began));
        since = Some(tried);
        if answer.is_good() {
            let until = if tried < began { began.min(ended) } else { began };
            longest = longest.max(without(tried, until) + without(began, answer.operation.end));
            (good_at, since) = (answer.operation.end, None);
        }
        ended = answer.operation.end;
    }
    let since = since.unwrap_or(good_at.max(last_call));
    Duration::from_nanos(longest.max(without(since, window.end)))
}

/// Returns the clients and the kinds of their calls without a good answer to a call that began after `since`. A miss is taken for a
/// good answer.
#[must_use]
pub fn unserved(operations: &[Operation], since: u64) -> Vec<(u32, CallKind)> {
    let mut wanting = BTreeSet::new();
    let calls = || operations.iter().filter_map(|it| Some((it, CallKind::of(it.action)?)));
    wanting.extend(calls().map(|(it, call)| (it.client, call)));
    for (operation, call) in calls().filter(|(it, _)| it.start >= since) {
        if (Answer { operation, false_miss: false }).is_good() {
            wanting.remove(&(operation.client, call));
        }
    }
    wanting.into_iter().collect()
}
