//! Replicas that are fed the same log hold the same bytes, whatever else happens to them in between: a restart from a
//! snapshot, clones that are kept, entries that are decoded from their bytes.

mod state_support;

use mc_base::ClusterTime;
use mc_master::state::{Command, PutEndItem, PutStartItem, Settings, State};
use mc_proto::v1::Code;
use proptest::prelude::*;
use state_support::steps::{Script, steps};
use state_support::{Rig, TERM, end, restore, snapshot, start};

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

/// Ids that fold to the same hash: they crowd out each other's records long before the index remembers its most.
fn crowded(n: u128) -> u128 {
    n << 64 | n
}

#[test]
fn replicas_forget_the_same_ended_puts_early() {
    const PUTS: u128 = 100;
    let (mut plain, mut other) = (Rig::with_stores(&[1 << 20]), Rig::with_stores(&[1 << 20]));
    // No replica was written: only the record of the end tells such a put from one that never was.
    let failed = |n| PutEndItem { failed: vec![0].into(), ..end(crowded(n), "k") };
    for n in 1..=PUTS {
        let deadline = ClusterTime(10_000 + (n * 37 % 100) as u64);
        for rig in [&mut plain, &mut other] {
            let started = rig.start(PutStartItem { deadline, ..start(crowded(n), "k", 64) });
            assert_eq!(started.code, Code::Ok);
            assert_eq!(rig.end_item(failed(n)).code, Code::TransferFail);
            assert_eq!(rig.end_item(failed(n)).code, Code::TransferFail, "just ended, and repeated");
        }
        if n % 3 == 0 {
            other.state = restore(&snapshot(&other.state));
        }
    }
    assert_eq!(snapshot(&plain.state), snapshot(&other.state));
    let mut answers = |n| (plain.end_item(failed(n)).code, other.end_item(failed(n)).code);
    let gone = (1..=PUTS).filter(|&n| answers(n) == (Code::PutGone, Code::PutGone)).count();
    assert!((84..100).contains(&gone), "{gone} were forgotten");
}
