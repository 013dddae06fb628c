//! Replicas that are fed the same log hold the same bytes, whatever else happens to them in between: a restart from a
//! snapshot, clones that are kept, entries that are decoded from their bytes.

use crate::support::steps::{Script, steps};
use crate::support::{Rig, TERM, crowd, end, restore, snapshot, start};
use mc_index::{Command, Op, PutEndItem, PutStartItem, Response, Settings, State};
use mc_types::{ClusterTime, Code};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..Default::default() })]

    #[test]
    fn replicas_of_one_log_are_equal_byte_for_byte(
        steps in steps(1..200),
        turns in prop::collection::vec(0..10u8, 200),
    ) {
        let mut plain = State::new(Settings::default());
        let mut other = State::new(Settings::default());
        let mut script = Script::new();
        let mut clones = Vec::new();
        for ((step, index), turn) in steps.iter().zip(1..).zip(turns) {
            let command = script.command(step, |key| plain.get("t", key).map(|object| object.version));
            match turn {
                0 => other = restore(&snapshot(&other)),
                1 => clones.push((other.clone(), snapshot(&other))),
                2 => drop(clones.pop()),
                _ => {}
            }
            let decoded = Command::decode(&command.encode()).expect("what was encoded decodes");
            prop_assert_eq!(plain.apply(index, TERM, &command), other.apply(index, TERM, &decoded));
        }
        prop_assert_eq!(snapshot(&plain), snapshot(&other));
        for (clone, bytes) in clones {
            prop_assert_eq!(snapshot(&clone), bytes, "a clone does not change");
        }
    }
}

/// No replica was written: only the record of the end tells such a put from one that never was.
fn failed(put: u128) -> PutEndItem {
    PutEndItem { failed: vec![0].into(), ..end(put, "k") }
}

/// Two entries: a put starts, and fails.
fn fail(rig: &mut Rig, put: u128, deadline: u64) {
    let deadline = ClusterTime(deadline);
    assert_eq!(rig.start(PutStartItem { deadline, ..start(put, "k", 64) }).code, Code::Ok);
    assert_eq!(rig.end_item(failed(put)).code, Code::TransferFail);
}

#[test]
fn replicas_forget_the_same_ended_puts_early() {
    let puts: Vec<_> = crowd().take(100).collect();
    let (mut plain, mut other) = (Rig::with_stores(&[1 << 20]), Rig::with_stores(&[1 << 20]));
    for (n, &put) in (1..).zip(&puts) {
        for rig in [&mut plain, &mut other] {
            fail(rig, put, 10_000 + n * 37 % 100);
            assert_eq!(rig.end_item(failed(put)).code, Code::TransferFail, "just ended, and repeated");
        }
        if n % 3 == 0 {
            other.state = restore(&snapshot(&other.state));
        }
    }
    assert_eq!(snapshot(&plain.state), snapshot(&other.state));
    let mut answers = |put| (plain.end_item(failed(put)).code, other.end_item(failed(put)).code);
    let gone = puts.iter().filter(|&&put| answers(put) == (Code::PutGone, Code::PutGone)).count();
    assert!((84..100).contains(&gone), "{gone} were forgotten");
}

#[test]
fn puts_past_their_deadline_crowd_out_none_whether_or_not_they_were_swept() {
    let puts: Vec<_> = crowd().take(17).collect();
    // Once no entry has the turn of the shard, once the one has it that lets the first puts come due.
    for before in [1, 1023 - 12] {
        let mut rig = Rig::with_stores(&[1 << 20]);
        rig.index = before;
        for &put in &puts[..6] {
            fail(&mut rig, put, 2000);
        }
        rig.tick_at(3000);
        assert_eq!(rig.index, before + 13);
        for &put in &puts[6..] {
            fail(&mut rig, put, 100_000);
        }
        let known = |put: &&u128| rig.end_item(failed(**put)).code == Code::TransferFail;
        assert_eq!(puts.iter().filter(known).count(), 11, "all that are not due");
    }
}

/// A part of the index that has lost its last object is there until a restart from a snapshot.
#[test]
fn replicas_sweep_in_the_same_steps_whatever_parts_they_have_emptied() {
    let (mut plain, mut other) = (Rig::with_stores(&[1 << 20]), Rig::with_stores(&[1 << 20]));
    for rig in [&mut plain, &mut other] {
        rig.apply(Op::SetClusterVersion(2));
        // More parts than one sweep goes through.
        for n in 1..=6_000 {
            rig.put(n, &n.to_string(), 64);
            assert_eq!(rig.remove(&n.to_string(), n, 0), Code::Ok);
        }
        (6_001..=6_200).for_each(|n| rig.put(n, &n.to_string(), 64));
    }
    other.state = restore(&snapshot(&other.state));
    let remove_all = || Op::RemoveAll { tenant: String::new(), reuse_at: ClusterTime(0) };
    assert_eq!(plain.apply(remove_all()), Response::Removed(200));
    assert_eq!(other.apply(remove_all()), Response::Removed(200));
    while plain.state.needs_sweep() {
        assert_eq!(plain.sweep(1_000), other.sweep(1_000));
        assert_eq!(snapshot(&plain.state), snapshot(&other.state));
    }
    assert_eq!(plain.state.objects(), 0);
}
