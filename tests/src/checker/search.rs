//! The search for an order, forward in time (Wing and Gong; Lowe's "just in time" linearization).
//!
//! The events of a key are replayed in the order of time. A configuration is a value that the register may hold now,
//! and the set of operations under way that have taken effect already. A call adds its operation to those under way. A
//! return first extends every configuration by every sequence of operations under way that ends with the returning one.
//! Then it keeps only the configurations in which the returning operation has taken effect. No operation needs to take
//! effect earlier than the next return, so this waiting misses nothing. If no configuration is left, no order exists.
//!
//! Operations of unknown outcome never return. They stay under way, and each would double the configurations. Three
//! rules keep the configurations few:
//!
//! - Only the smallest sets are kept. Of two configurations with the same value, the one in which fewer unknown
//!   operations have taken effect can do all that the other can, because such operations may also never happen.
//! - Of several unknown operations that do the same, the first one stands for all.
//! - Values that no read returned and no eviction names count as one value.
//!
//! An eviction is known to have taken effect, at a time that may be known poorly. A value that is evicted goes in no
//! other way. So a configuration in which it was replaced or removed is given up at once, not at the eviction's return.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use super::history::{Action, Digest, Operation, Outcome};
use super::model::{Losses, State, apply};

/// Result of the search.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// An order explains all operations.
    Order,
    /// No order exists: the search is stuck at the return of this operation.
    NoOrder {
        /// Place of the operation in the input.
        stuck_at: usize,
    },
    /// The search exceeded its bound.
    Bound,
}

/// Places in the input of operations under way that have taken effect, sorted.
type Taken = Vec<u32>;

#[derive(Clone, Debug, Default)]
struct Configuration {
    state: State,
    /// Taken operations that will return.
    known: Taken,
    /// Taken operations of unknown outcome.
    unknown: Taken,
}

/// A set of configurations that leaves out each one whose continuations another one has, too.
#[derive(Default)]
struct Smallest(HashMap<(State, Taken), Vec<Taken>>);

impl Smallest {
    /// Adds `configuration` unless one with the same value has used up a subset of its operations of unknown outcome;
    /// returns whether it was added.
    fn add(&mut self, configuration: &Configuration) -> bool {
        let alike = self.0.entry((configuration.state, configuration.known.clone())).or_default();
        let unknown = &configuration.unknown;
        if alike.iter().any(|other| is_subset(other, unknown)) {
            return false;
        }
        alike.retain(|other| !is_subset(unknown, other));
        alike.push(unknown.clone());
        true
    }

    fn into_configurations(self) -> Vec<Configuration> {
        let each = |((state, known), sets): ((State, Taken), Vec<Taken>)| {
            sets.into_iter().map(move |unknown| Configuration { state, known: known.clone(), unknown })
        };
        self.0.into_iter().flat_map(each).collect()
    }
}

fn is_subset(smaller: &[u32], larger: &[u32]) -> bool {
    smaller.iter().all(|place| larger.binary_search(place).is_ok())
}

/// The search under way.
struct Search<'a> {
    operations: &'a [Operation],
    losses: &'a Losses,
    evictions: Evictions,
    /// Bound on the steps from here on.
    steps_left: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    // Calls sort before returns at the same instant, so operations that touch count as concurrent.
    Call(usize),
    Return(usize),
}

/// Searches for an order of one key's operations, in at most `bound` steps.
pub(super) fn search(operations: &[Operation], losses: &Losses, bound: usize) -> Found {
    let mut events: Vec<(u64, Event)> = Vec::with_capacity(operations.len() * 2);
    for (place, operation) in operations.iter().enumerate() {
        match operation.outcome {
            _ if operation.is_no_news() => {}
            Outcome::Unknown if !operation.mutates() => {}
            Outcome::Unknown => events.push((operation.start, Event::Call(place))),
            _ => {
                events.push((operation.start, Event::Call(place)));
                events.push((operation.end.max(operation.start), Event::Return(place)));
            }
        }
    }
    events.sort_unstable();

    let operations = &merge_unread(operations)[..];
    let mut search = Search { operations, losses, evictions: evictions(operations), steps_left: bound };
    let mut under_way: BTreeSet<usize> = BTreeSet::new();
    let mut configurations = vec![Configuration::default()];
    for (_, event) in events {
        match event {
            Event::Call(place) => {
                under_way.insert(place);
            }
            Event::Return(place) => {
                let Some(next) = search.returned(&under_way, configurations, place) else {
                    return Found::Bound;
                };
                if next.is_empty() {
                    return Found::NoOrder { stuck_at: place };
                }
                under_way.remove(&place);
                configurations = next;
            }
        }
    }
    Found::Order
}

/// Replaces all values that no read returned and no eviction names by one digest, because nothing tells them apart.
fn merge_unread(operations: &[Operation]) -> Vec<Operation> {
    let named = |operation: &Operation| match (operation.action, operation.outcome) {
        (_, Outcome::Value(digest)) | (Action::Evict(digest), _) => Some(digest),
        _ => None,
    };
    let named: HashSet<Digest> = operations.iter().filter_map(named).collect();
    let unread = (0..).map(Digest).find(|digest| !named.contains(digest)).unwrap_or(Digest(0));
    let merged = |digest| if named.contains(&digest) { digest } else { unread };
    let mut operations = operations.to_vec();
    for operation in &mut operations {
        match &mut operation.action {
            Action::PutIfAbsent(digest) | Action::Upsert(digest) | Action::UpsertPinned(digest, _) => {
                *digest = merged(*digest);
            }
            Action::Get | Action::Exist | Action::Remove | Action::Evict(_) => {}
        }
    }
    operations
}

/// Evictions that took effect, by the values they name: a place in the input. Only of values that a single put can have
/// written: such a value is never there again once it is gone.
type Evictions = HashMap<Digest, u32>;

fn evictions(operations: &[Operation]) -> Evictions {
    let mut puts: HashMap<Digest, usize> = HashMap::new();
    for digest in operations.iter().filter_map(|operation| operation.action.writes()) {
        *puts.entry(digest).or_default() += 1;
    }
    let eviction = |(place, operation): (usize, &Operation)| match (operation.action, operation.outcome) {
        (Action::Evict(digest), Outcome::Evicted) if puts.get(&digest) == Some(&1) => {
            Some((digest, place as u32))
        }
        _ => None,
    };
    operations.iter().enumerate().filter_map(eviction).collect()
}

impl Search<'_> {
    /// Returns the configurations in which `returning` has taken effect, with it removed; `None` if no step is left.
    fn returned(
        &mut self,
        under_way: &BTreeSet<usize>,
        configurations: Vec<Configuration>,
        returning: usize,
    ) -> Option<Vec<Configuration>> {
        let operations = self.operations;
        let mut seen = Smallest::default();
        let mut done = Smallest::default();
        // Breadth first, so that small sets come before the larger ones that they make superfluous.
        let mut open = VecDeque::from(configurations);
        while let Some(mut configuration) = open.pop_front() {
            for &place in under_way {
                let operation = &operations[place];
                if operation.only_looked()
                    && apply(configuration.state, operation, self.losses).is_some()
                    && let Err(at) = configuration.known.binary_search(&(place as u32))
                {
                    configuration.known.insert(at, place as u32);
                }
            }
            if !seen.add(&configuration) {
                continue;
            }
            if let Ok(at) = configuration.known.binary_search(&(returning as u32)) {
                let mut finished = configuration;
                finished.known.remove(at);
                done.add(&finished);
                continue;
            }
            let mut offered: HashSet<Action> = HashSet::new();
            for &place in under_way {
                if operations[place].only_looked() {
                    continue;
                }
                let unknown = operations[place].outcome == Outcome::Unknown;
                let taken = if unknown { &configuration.unknown } else { &configuration.known };
                let Err(at) = taken.binary_search(&(place as u32)) else { continue };
                if unknown && !offered.insert(operations[place].action) {
                    continue;
                }
                self.steps_left = self.steps_left.checked_sub(1)?;
                let Some(state) = apply(configuration.state, &operations[place], self.losses) else {
                    continue;
                };
                let mut next = Configuration { state, ..configuration.clone() };
                if unknown { &mut next.unknown } else { &mut next.known }.insert(at, place as u32);
                if !self.outruns_an_eviction(&configuration, &next) {
                    open.push_back(next);
                }
            }
        }
        Some(done.into_configurations())
    }

    /// Returns whether a value that is evicted would have gone in another way between two configurations.
    fn outruns_an_eviction(&self, before: &Configuration, after: &Configuration) -> bool {
        let eviction =
            before.state.filter(|_| before.state != after.state).and_then(|gone| self.evictions.get(&gone));
        eviction.is_some_and(|place| after.known.binary_search(place).is_err())
    }
}
