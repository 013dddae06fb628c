//! Time for which the largest calls hold the index's lock, as entries that wait to be applied meet it.
//!
//! `cargo test --release -p mc-master --lib lock_time -- --nocapture` prints it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_index::{Command, GroupId, KeyHash, Op, PutEndItem, PutStartItem, Settings, Stamp, State};
use mc_types::{Clock, ClusterTime, Code, MAX_GROUP_MEMBERS, MAX_ITEMS, PinAction, PutId};

use super::describe::Describing;
use super::shortage::{PutShortage, untried};
use crate::leader::Leading;
use crate::leader::tests::mount;

const STORES: u64 = 1_000;
const SEGMENTS: usize = 4;
const OPEN_PUTS: usize = 100_000;

struct Index {
    state: State,
    entries: u64,
    puts: u128,
}

impl Index {
    fn apply(&mut self, op: Op) {
        self.entries += 1;
        let stamp = Stamp { term: 1, seed: self.entries, ..Stamp::default() };
        self.state.apply(self.entries, 1, &Command { stamp, op });
    }

    fn mount(&mut self, id: u64) {
        self.apply(Op::MountStore(mount(id, &[], &[1 << 30; SEGMENTS])));
    }

    /// Starts puts of these keys, and ends them if they are members of groups.
    fn put(&mut self, keys: &[Bytes], group: impl Fn(usize) -> Option<GroupId>) {
        let first = self.puts + 1;
        self.puts += keys.len() as u128;
        let puts = || (first..).map(PutId).zip(keys).enumerate();
        let item = |(at, (put, key)): (usize, (PutId, &Bytes))| PutStartItem {
            group: group(at),
            ..PutStartItem::new(put, key, 64, ClusterTime(60_000))
        };
        self.apply(Op::PutStart { tenant: String::new(), items: puts().map(item).collect() });
        let ends = puts().filter(|(at, _)| group(*at).is_some());
        let end = |(_, (put, key)): (usize, (PutId, &Bytes))| PutEndItem::new(put, KeyHash::of("", key), 0);
        self.apply(Op::PutEnd { items: ends.map(end).collect() });
    }
}

fn keys(what: &str, count: usize) -> Vec<Bytes> {
    (0..count).map(|n| format!("{what} {n}").into()).collect()
}

fn timed<R>(work: impl FnOnce() -> R) -> (R, Duration) {
    let began = Instant::now();
    let result = work();
    (result, began.elapsed())
}

/// Describes keys as a call does, and returns the codes and the time of each slice.
fn describe(state: &State, leading: &Leading, keys: &[Bytes]) -> (Vec<Code>, Vec<Duration>) {
    let mut describing = Describing::new(leading, "", keys);
    let mut slices = Vec::new();
    loop {
        let (more, took) = timed(|| describing.slice(state));
        slices.push(took);
        if !more {
            break;
        }
    }
    let code = |described: &Result<_, Code>| described.as_ref().err().copied().unwrap_or(Code::Ok);
    (describing.described.iter().map(code).collect(), slices)
}

/// An index with the members of full groups, as many as a call may name.
fn with_groups(stores: u64) -> (Index, Vec<Bytes>) {
    let mut index = Index { state: State::new(Settings::default()), entries: 0, puts: 0 };
    (1..=stores).for_each(|id| index.mount(id));
    let members = keys("member", MAX_ITEMS);
    index.put(&members, |at| Some(GroupId::of("", &[(at / MAX_GROUP_MEMBERS) as u8])));
    (index, members)
}

fn leading(state: &State) -> Leading {
    Leading::begin(1, state.time(), state.settings(), Clock::from_fn(|| Duration::ZERO))
}

#[test]
fn a_call_is_described_in_slices_and_each_group_is_looked_up_once() {
    let (Index { state, .. }, members) = with_groups(1);
    let leading = leading(&state);
    let (codes, slices) = describe(&state, &leading, &members);
    assert_eq!(codes, [Code::Ok; MAX_ITEMS]);
    // A full group takes as many looks as its members after it, and a slice has that many.
    let groups = MAX_ITEMS / MAX_GROUP_MEMBERS;
    assert!((groups..=2 * groups).contains(&slices.len()), "{} slices", slices.len());
    let (_, slices) = describe(&state, &leading, &keys("absent", MAX_ITEMS));
    assert_eq!(slices.len(), groups);
}

#[test]
fn the_largest_calls() {
    let (mut index, members) = with_groups(STORES);
    let open = keys("open", OPEN_PUTS);
    open.chunks(MAX_ITEMS).for_each(|keys| index.put(keys, |_| None));
    let state = index.state;
    assert_eq!((state.objects(), state.puts_in_flight()), (MAX_ITEMS as u64, OPEN_PUTS as u64));

    let items: Vec<_> = (0..MAX_ITEMS as u64)
        .map(|n| PutStartItem::new(PutId(n.into()), b"k", 1 + (n << 17), ClusterTime(60_000)))
        .collect();
    let pinned: Vec<_> =
        items.iter().map(|item| PutStartItem { pin: PinAction::Hard, ..item.clone() }).collect();
    for (what, items) in [("puts", &items), ("hard-pinned puts", &pinned)] {
        let refused = items.iter().map(|item| (item, Code::NoAvailableHandle));
        let (short, took) = timed(|| PutShortage::of(&state, &[], "", true, refused));
        assert_eq!(short.places.len(), items.len());
        println!("shortage of {MAX_ITEMS} refused {what}, {STORES} stores: {took:?}");
    }
    let (need, took) = timed(|| untried(&state, &[], "", &items));
    assert!(need.is_some());
    println!("need of {MAX_ITEMS} puts that queue behind others, {STORES} stores: {took:?}");

    let leading = leading(&state);
    let print = |what: String, keys: &[Bytes], code| {
        let (codes, slices) = describe(&state, &leading, keys);
        assert_eq!(codes, [code; MAX_ITEMS]);
        let longest = slices.iter().max().copied().unwrap_or_default();
        println!("description of {MAX_ITEMS} {what}: {} slices, the longest {longest:?}", slices.len());
    };
    print(format!("members of groups of {MAX_GROUP_MEMBERS}"), &members, Code::Ok);
    print(format!("absent keys, {OPEN_PUTS} open puts"), &keys("absent", MAX_ITEMS), Code::ObjectNotFound);
    print("keys that are being written".into(), &open[..MAX_ITEMS], Code::ReplicaIsNotReady);
}
