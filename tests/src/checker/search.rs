//! The search for an order, forward in time (Wing and Gong; Lowe's "just in time" linearization).
//!
//! The events of a key are replayed in the order of time. A configuration is what the register may hold now and which
//! of the operations under way have taken effect already. A call adds to those under way. A return keeps only the
//! configurations in which that operation has taken effect; before, every configuration is extended by every sequence
//! of operations under way that ends with the returning one. No operation needs to take effect earlier than the next
//! return, so nothing is missed by waiting for it. No configuration left means that no order exists.
//!
//! Operations of unknown outcome never return. They stay under way, and would double the configurations each. Three
//! things keep them few. Of two configurations with the same value the one in which fewer of them have taken effect can
//! do all that the other can (they may also never happen), so only the smallest sets are kept. Of several that do the
//! same, the first one stands for all. And values that no read returned are one value.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use super::history::{Action, Digest, Operation, Outcome};
use super::model::{Losses, State, apply};

/// Result of the search.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// An order that explains everything.
    Order,
    /// There is none: stuck at the return of this operation (place in the input).
    NoOrder {
        /// Place of the operation.
        stuck_at: usize,
    },
    /// Given up.
    Bound,
}

/// Operations under way that have taken effect, by their place in the input, sorted.
type Taken = Vec<u32>;

#[derive(Clone, Debug, Default)]
struct Configuration {
    state: State,
    /// Of those that will return.
    known: Taken,
    /// Of those of unknown outcome.
    unknown: Taken,
}

/// Configurations, without those that others can do everything that they can.
#[derive(Default)]
struct Smallest(HashMap<(State, Taken), Vec<Taken>>);

impl Smallest {
    /// Adds it, unless there is one with the same value in which no other operations of unknown outcome are used up.
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

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    // Calls sort before returns at the same instant: what touches counts as concurrent.
    Call(usize),
    Return(usize),
}

/// Looks for an order of one key's operations, in at most `bound` steps.
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
    let mut under_way: BTreeSet<usize> = BTreeSet::new();
    let mut configurations = vec![Configuration::default()];
    let mut steps = 0;
    for (_, event) in events {
        match event {
            Event::Call(place) => {
                under_way.insert(place);
            }
            Event::Return(place) => {
                let Some(next) =
                    returned(operations, losses, &under_way, configurations, place, &mut steps, bound)
                else {
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

/// Gives one digest to all values that no read returned: which of them it is makes no difference.
fn merge_unread(operations: &[Operation]) -> Vec<Operation> {
    let read = |operation: &Operation| match operation.outcome {
        Outcome::Value(digest) => Some(digest),
        _ => None,
    };
    let read: HashSet<Digest> = operations.iter().filter_map(read).collect();
    let unread = (0..).map(Digest).find(|digest| !read.contains(digest)).unwrap_or(Digest(0));
    let merged = |digest| if read.contains(&digest) { digest } else { unread };
    let mut operations = operations.to_vec();
    for operation in &mut operations {
        match &mut operation.action {
            Action::PutIfAbsent(digest) | Action::Upsert(digest) => *digest = merged(*digest),
            Action::Get | Action::Exist | Action::Remove => {}
        }
    }
    operations
}

/// The configurations in which `returning` has taken effect, without it; `None` when the bound is exceeded.
fn returned(
    operations: &[Operation],
    losses: &Losses,
    under_way: &BTreeSet<usize>,
    configurations: Vec<Configuration>,
    returning: usize,
    steps: &mut usize,
    bound: usize,
) -> Option<Vec<Configuration>> {
    let mut seen = Smallest::default();
    let mut done = Smallest::default();
    // Breadth first, so that small sets are met before the larger ones that they make superfluous.
    let mut open = VecDeque::from(configurations);
    while let Some(mut configuration) = open.pop_front() {
        for &place in under_way {
            let operation = &operations[place];
            if operation.only_looked()
                && apply(configuration.state, operation, losses).is_some()
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
            *steps += 1;
            if *steps > bound {
                return None;
            }
            let Some(state) = apply(configuration.state, &operations[place], losses) else { continue };
            let mut next = Configuration { state, ..configuration.clone() };
            if unknown { &mut next.unknown } else { &mut next.known }.insert(at, place as u32);
            open.push_back(next);
        }
    }
    Some(done.into_configurations())
}
