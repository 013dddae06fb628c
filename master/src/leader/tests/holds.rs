//! Time for which the largest calls hold the index's lock, as entries that wait to be applied meet it.
//!
//! `cargo test --release -p mc-master --lib holds -- --ignored --nocapture` prints it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_index::{Command, GroupId, KeyHash, MountStore, Op, PutEndItem, PutStartItem, Settings, Stamp, State};
use mc_types::{
    Clock, ClusterTime, Code, GrantKey, MAX_GROUP_MEMBERS, MAX_ITEMS, PutId, SegmentEpoch, StoreId,
};

use crate::leader::Leading;
use crate::leader::describe::Describing;
use crate::leader::shortage::Shortage;

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
        self.apply(Op::MountStore(MountStore {
            store: StoreId(id),
            epoch: SegmentEpoch(id),
            name: format!("store-{id}"),
            grant_key: GrantKey([0; 32]),
            endpoints: Vec::new(),
            segments: vec![1 << 30; SEGMENTS],
            http: String::new(),
        }));
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

/// Describes keys as a call does, and returns the codes and the longest slice.
fn describe(state: &State, leading: &Leading, keys: &[Bytes]) -> (Vec<Code>, Duration) {
    let mut describing = Describing::new(leading, "", keys);
    let mut longest = Duration::ZERO;
    loop {
        let (more, took) = timed(|| describing.slice(state));
        longest = longest.max(took);
        if !more {
            break;
        }
    }
    let code = |described: &Result<_, Code>| described.as_ref().err().copied().unwrap_or(Code::Ok);
    (describing.described.iter().map(code).collect(), longest)
}

#[test]
#[ignore = "prints figures"]
fn the_largest_calls() {
    let mut index = Index { state: State::new(Settings::default()), entries: 0, puts: 0 };
    (1..=STORES).for_each(|id| index.mount(id));
    let members = keys("member", MAX_ITEMS);
    index.put(&members, |at| Some(GroupId::of("", &[(at / MAX_GROUP_MEMBERS) as u8])));
    let open = keys("open", OPEN_PUTS);
    open.chunks(MAX_ITEMS).for_each(|keys| index.put(keys, |_| None));
    let state = index.state;
    assert_eq!((state.objects(), state.puts_in_flight()), (MAX_ITEMS as u64, OPEN_PUTS as u64));

    let items: Vec<_> = (0..MAX_ITEMS as u64)
        .map(|n| PutStartItem::new(PutId(n.into()), b"k", 1 + (n << 17), ClusterTime(60_000)))
        .collect();
    let refused = || items.iter().map(|item| (item, Code::NoAvailableHandle));
    let (short, took) = timed(|| Shortage::of(&state, &[], "", refused()));
    assert_eq!(short.places.len(), items.len());
    println!("shortage of {MAX_ITEMS} refused puts, {STORES} stores: {took:?}");

    let leading = Leading::begin(1, state.time(), state.settings(), Clock::from_fn(|| Duration::ZERO));
    let (codes, longest) = describe(&state, &leading, &members);
    assert!(codes.iter().all(|code| *code == Code::Ok));
    println!(
        "description of {MAX_ITEMS} members of groups of {MAX_GROUP_MEMBERS}: longest slice {longest:?}"
    );
    let (codes, longest) = describe(&state, &leading, &keys("absent", MAX_ITEMS));
    assert!(codes.iter().all(|code| *code == Code::ObjectNotFound));
    println!("description of {MAX_ITEMS} absent keys, {OPEN_PUTS} open puts: longest slice {longest:?}");
    let (codes, longest) = describe(&state, &leading, &open[..MAX_ITEMS]);
    assert!(codes.iter().all(|code| *code == Code::ReplicaIsNotReady));
    println!("description of {MAX_ITEMS} keys that are being written: longest slice {longest:?}");
}
