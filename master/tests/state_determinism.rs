//! Replicas that are fed the same log hold the same bytes, whatever else happens to them in between: a restart from a
//! snapshot, clones that are kept, entries that are decoded from their bytes.

mod state_support;

use mc_master::state::{Command, Settings, State};
use proptest::prelude::*;
use state_support::steps::{Script, steps};
use state_support::{TERM, restore, snapshot};

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
