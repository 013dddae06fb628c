//! Places that can be cleared for an object that fits nowhere.

use mc_index::{Clearing, EvictItem, Fit, Op, Response, State};
use mc_types::{ClusterTime, Code, StoreId};
use proptest::prelude::*;

use crate::support::{self, Rig, TERM};

const PER_ENTRY: usize = 1024;

/// Evicts the objects of a clearing in a copy of the state, over as many entries as they take.
fn cleared(rig: &Rig, clearing: &Clearing) -> State {
    let item = |key| {
        let mut found = rig.state.with_hash(key);
        let version = found.next().expect("an object of that hash").version;
        EvictItem { key, version }
    };
    let mut state = rig.state.clone();
    for (objects, entry) in clearing.objects.chunks(PER_ENTRY).zip(1..) {
        assert_eq!(state.objects_in(&clearing.stretch, PER_ENTRY), objects);
        let items: Vec<_> = objects.iter().map(|object| item(object.key)).collect();
        let count = items.len();
        let evict = rig.command(Op::Evict { items, reuse_at: ClusterTime(0) });
        let response = state.apply(rig.index + entry, TERM, &evict);
        assert_eq!(response, Response::Codes(vec![Code::Ok; count]));
    }
    assert_eq!(state.objects_in(&clearing.stretch, 1), []);
    state
}

#[derive(Clone, Debug)]
enum Step {
    Put(u64),
    Start(u64),
    /// Removes the nth object, with its bytes held or not.
    Remove(u16, bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = || prop::sample::select(vec![64u64, 4_000, 4_096, 10_288, 20_480, 51_168]);
    let step = prop_oneof![
        12 => size().prop_map(Step::Put),
        1 => size().prop_map(Step::Start),
        6 => (any::<u16>(), any::<bool>()).prop_map(|(nth, held)| Step::Remove(nth, held && nth % 8 == 0)),
    ];
    prop::collection::vec(step, 1..700)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    /// A place that was offered has room once its objects are gone, whatever lies around it.
    #[test]
    fn an_object_fits_where_a_place_was_cleared(
        segments in prop::collection::vec(prop::sample::select(vec![1u64 << 20, 4 << 20, 30 << 20]), 1..3),
        steps in steps(),
        size in prop::sample::select(vec![70u64, 9_000, 20_480, 100_000, 300_000]),
    ) {
        let mut rig = Rig::with_stores(&segments);
        let mut live = Vec::new();
        for (step, n) in steps.into_iter().zip(1u128..) {
            let key = n.to_string();
            match step {
                Step::Put(size) => {
                    // Several at once, so that runs of more than one object come about.
                    for part in 0..16 {
                        let (n, key) = (n * 100 + part, format!("{n}-{part}"));
                        if rig.start(support::start(n, &key, size)).code == Code::Ok {
                            rig.end(n, &key);
                            live.push((n, key));
                        }
                    }
                }
                Step::Start(size) => drop(rig.start(support::start(n * 100, &key, size))),
                Step::Remove(nth, held) if !live.is_empty() => {
                    for _ in 0..8.min(live.len()) {
                        let (n, key) = live.swap_remove(usize::from(nth) % live.len());
                        rig.remove(&key, n, if held { u64::MAX } else { 0 });
                    }
                }
                Step::Remove(..) => {}
            }
        }
        for clearing in rig.state.clearings(size, &[], 7) {
            prop_assert!(clearing.stretch.bytes() >= size && !clearing.objects.is_empty());
            prop_assert_eq!(cleared(&rig, &clearing).fit_of(size, &[]), Fit::Fits);
        }
    }
}

#[test]
fn objects_on_both_sides_of_a_hole_make_one_place() {
    const SIZE: u64 = 4_096;
    let mut rig = Rig::with_stores(&[9 * SIZE]);
    for n in 1..=9 {
        rig.put(n, &n.to_string(), SIZE);
    }
    assert_eq!(rig.state.fit_of(SIZE, &[]), Fit::Full);
    for n in [2, 5, 8] {
        assert_eq!(rig.remove(&n.to_string(), n, 0), Code::Ok);
    }
    assert_eq!(rig.state.fit_of(3 * SIZE, &[]), Fit::InPieces);
    assert_eq!(rig.state.fit_of(SIZE, &[]), Fit::Fits);
    assert_eq!(rig.state.fit_of(SIZE, &[StoreId(1)]), Fit::Full);
    let places: Vec<_> = rig.state.clearings(3 * SIZE, &[], 1).collect();
    assert!(!places.is_empty());
    for place in places {
        assert!(
            place.objects.len() == 2 && [3 * SIZE, 4 * SIZE].contains(&place.stretch.bytes()),
            "{place:?}"
        );
        assert_eq!(cleared(&rig, &place).fit_of(3 * SIZE, &[]), Fit::Fits);
    }
    assert_eq!(rig.state.clearings(3 * SIZE, &[StoreId(1)], 1).count(), 0);
    assert_eq!(rig.state.clearings(10 * SIZE, &[], 1).count(), 0, "no segment is that large");
}

#[test]
fn a_place_with_a_put_in_flight_or_held_bytes_is_left_out() {
    const SIZE: u64 = 4_096;
    for in_flight in [true, false] {
        let mut rig = Rig::with_stores(&[4 * SIZE]);
        for n in 1..=3 {
            rig.put(n, &n.to_string(), SIZE);
        }
        if in_flight {
            assert_eq!(rig.start(support::start(4, "4", SIZE)).code, Code::Ok);
        } else {
            rig.put(4, "4", SIZE);
            assert_eq!(rig.remove("4", 4, u64::MAX), Code::Ok);
        }
        assert!(rig.state.clearings(3 * SIZE, &[], 1).count() > 0);
        assert_eq!(rig.state.clearings(4 * SIZE, &[], 1).count(), 0, "in flight: {in_flight}");
    }
}

#[test]
fn an_object_of_3_mb_fits_where_1_600_objects_of_2_kib_were() {
    const SMALL: u64 = 2 << 10;
    const LARGE: u64 = 3_200 << 10;
    let mut rig = Rig::with_stores(&[32 << 20]);
    let last = (32 << 20) / SMALL;
    for n in 1..=last {
        rig.put(n.into(), &n.to_string(), SMALL);
    }
    // A fifth goes, and leaves holes everywhere.
    for n in (1..=last).step_by(5) {
        assert_eq!(rig.remove(&n.to_string(), n.into(), 0), Code::Ok);
    }
    assert_eq!(rig.state.fit_of(LARGE, &[]), Fit::InPieces);
    let places: Vec<_> = rig.state.clearings(LARGE, &[], 1).collect();
    assert!(!places.is_empty() && places.iter().all(|place| place.objects.len() > PER_ENTRY));
    assert_eq!(cleared(&rig, &places[0]).fit_of(LARGE, &[]), Fit::Fits);
}
