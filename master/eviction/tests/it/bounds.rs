//! Bounds of one choice, which holds the index's lock: the next choice goes on where it ended.

use mc_index::Op;
use mc_types::{ClusterTime, PinAction};

use super::{NOW, Pool, SIZE, outcome};

/// Pins that one choice looks up, and units without objects that it drops.
const MOST: u128 = 1_024;

fn pool() -> Pool {
    Pool::new(&[2 * MOST as u64 * SIZE])
}

#[test]
fn a_choice_looks_up_so_many_pins_and_the_next_one_goes_on() {
    for (pinned, first) in [(MOST - 1, vec![MOST]), (MOST, vec![])] {
        let mut pool = pool();
        for n in 0..pinned {
            pool.put_pinned(n + 1, PinAction::Soft(ClusterTime(NOW.0 + 60_000)));
        }
        pool.put(pinned + 1..pinned + 2);
        assert_eq!(outcome(&pool.choose(SIZE)), (first.clone(), None), "{pinned} pins come before it");
        if first.is_empty() {
            assert_eq!(outcome(&pool.choose(SIZE)), (vec![pinned + 1], None));
        }
    }
}

#[test]
fn a_choice_drops_so_many_units_without_objects_and_the_next_one_goes_on() {
    for (gone, first) in [(MOST - 1, vec![MOST]), (MOST, vec![])] {
        let mut pool = pool();
        pool.put_each(1..gone + 1);
        // The evictor hears nothing of them.
        pool.rig.apply(Op::RemoveAll { tenant: String::new(), reuse_at: ClusterTime(0) });
        pool.put(gone + 1..gone + 2);
        assert_eq!(outcome(&pool.choose(SIZE)), (first.clone(), None), "{gone} come before it");
        assert_eq!(pool.evictor.len(), first.is_empty().into());
        if first.is_empty() {
            assert_eq!(outcome(&pool.choose(SIZE)), (vec![gone + 1], None));
        }
    }
}
