//! The state machine against a naive model of its rules, over random command sequences: after every entry its answer,
//! every object, put and store, the accounting, and that no two ranges in use overlap.

use crate::support::model::Model;
use crate::support::steps::{Script, steps};
use crate::support::{TERM, restore, snapshot};
use mc_index::{Settings, State};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn answers_and_accounts_as_the_model_does(steps in steps(1..160)) {
        let mut state = State::new(Settings::default());
        let mut model = Model::new();
        let mut script = Script::new();
        for (step, index) in steps.iter().zip(1..) {
            let command = script.command(step, |key| model.version(key));
            let response = state.apply(index, TERM, &command);
            model.check(index, &command, &response, &state);
        }
        // Reading a snapshot lets every owner claim its bytes again: none overlap, none are unowned.
        let bytes = snapshot(&state);
        prop_assert_eq!(snapshot(&restore(&bytes)), bytes);
    }
}
