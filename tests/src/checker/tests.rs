use Action::{Evict, Exist, Get, PutIfAbsent, Remove, Upsert, UpsertPinned};
use Outcome::{
    Aborted, Absent, Cleared, Evicted, Exists, Failed, LocalOnly, LocalValue, Miss, NothingToRemove, Present,
    Removed, Stored, Unknown, Unread, Untold, Value,
};

use super::*;
use Pin::{Hard, Soft};

const A: Digest = Digest(0xa);
const B: Digest = Digest(0xb);
const C: Digest = Digest(0xc);

/// Makes a history of `(start, end, action, outcome)` on the key `k`, each with a client of its own.
fn history(operations: &[(u64, u64, Action, Outcome)]) -> Vec<Operation> {
    operations
        .iter()
        .enumerate()
        .map(|(client, &(start, end, action, outcome))| Operation {
            client: client as u32,
            key: "k".into(),
            action,
            outcome,
            start,
            end,
        })
        .collect()
}

#[track_caller]
fn accepted(operations: &[(u64, u64, Action, Outcome)]) {
    check(&history(operations), Losses::None).assert_ok();
}

/// Asserts that the history is rejected, and that the explanation contains `word` and exactly `essential` operations.
#[track_caller]
fn rejected(operations: &[(u64, u64, Action, Outcome)], losses: Losses, word: &str, essential: usize) {
    match check(&history(operations), losses) {
        Verdict::Violation(violation) => {
            assert!(violation.why.contains(word), "{violation}");
            assert_eq!(violation.operations.len(), essential, "{violation}");
        }
        other => panic!("a wrong history was let through: {other}"),
    }
}

#[test]
fn a_lost_put_is_rejected() {
    let lost = [(0, 10, PutIfAbsent(A), Stored), (20, 30, Get, Value(A)), (40, 50, Get, Miss)];
    rejected(&lost, Losses::None, "gone", 2);
    rejected(&[(0, 10, PutIfAbsent(A), Stored), (40, 50, Exist, Absent)], Losses::None, "gone", 2);
    check(&history(&lost), Losses::Allowed).assert_ok();
    accepted(&[(0, 10, PutIfAbsent(A), Stored), (20, 30, Get, Unread), (40, 50, Get, Value(A))]);
}

#[test]
fn a_loss_that_lasts_is_rejected_where_only_passing_ones_are_allowed() {
    let within = || Losses::Within(vec![15..40]);
    let passing = [(0, 10, PutIfAbsent(A), Stored), (20, 30, Get, Miss), (100, 110, Get, Value(A))];
    check(&history(&passing), within()).assert_ok();
    let lasting = [(0, 10, PutIfAbsent(A), Stored), (20, 30, Get, Miss), (100, 110, Get, Miss)];
    rejected(&lasting, within(), "gone", 2);
}

#[test]
fn a_put_that_finds_the_key_absent_hides_a_loss_only_while_losses_are_allowed() {
    let hidden =
        [(0, 10, PutIfAbsent(A), Stored), (20, 30, PutIfAbsent(B), Stored), (100, 110, Get, Value(B))];
    check(&history(&hidden), Losses::Within(vec![25..26])).assert_ok();
    rejected(&hidden, Losses::Within(vec![0..15, 35..200]), "gone", 2);
    // A value that was replaced does not come back, whatever losses are allowed.
    let mut back = hidden.to_vec();
    back.push((120, 130, Get, Value(A)));
    rejected(&back, Losses::Within(vec![0..200]), "not there", 2);
}

#[test]
fn a_second_put_that_stores_over_an_acknowledged_one_is_rejected() {
    let twice = [(0, 10, PutIfAbsent(A), Stored), (20, 30, PutIfAbsent(B), Stored)];
    rejected(&twice, Losses::None, "gone", 2);
    check(&history(&twice), Losses::Allowed).assert_ok();
}

#[test]
fn a_hidden_value_may_be_replaced_by_a_put_if_absent_and_is_never_missed() {
    let twice = [(0, 10, PutIfAbsent(A), Stored), (20, 30, PutIfAbsent(B), Stored), (40, 50, Get, Value(B))];
    check(&history(&twice), Losses::Hidden).assert_ok();
    let unsure =
        [(0, 10, PutIfAbsent(A), Stored), (20, 30, PutIfAbsent(B), Unknown), (40, 50, Get, Value(B))];
    check(&history(&unsure), Losses::Hidden).assert_ok();
    let older = [(0, 10, PutIfAbsent(A), Stored), (20, 30, PutIfAbsent(B), Stored), (40, 50, Get, Value(A))];
    rejected(&older, Losses::Hidden, "not there", 3);
    rejected(&[(0, 10, PutIfAbsent(A), Stored), (40, 50, Get, Miss)], Losses::Hidden, "gone", 2);
}

#[test]
fn a_stale_read_after_a_remove_is_rejected_with_and_without_losses() {
    let stale = [(0, 10, PutIfAbsent(A), Stored), (20, 30, Remove, Removed), (40, 50, Get, Value(A))];
    rejected(&stale, Losses::None, "not there", 2);
    rejected(&stale, Losses::Allowed, "not there", 2);
    let cleared = [(0, 10, PutIfAbsent(A), Stored), (20, 30, Remove, Cleared), (40, 50, Get, Value(A))];
    rejected(&cleared, Losses::Allowed, "not there", 3);
    accepted(&[(20, 30, Remove, Cleared), (40, 50, Get, Miss)]);
}

#[test]
fn a_stale_read_after_an_upsert_is_rejected() {
    let stale = [(0, 10, Upsert(A), Stored), (20, 30, Upsert(B), Stored), (40, 50, Get, Value(A))];
    // All three are essential: an unknown upsert of A that takes effect later would explain the read.
    rejected(&stale, Losses::Allowed, "not there", 3);
}

#[test]
fn a_miss_is_accepted_only_with_the_eviction_of_that_value() {
    let missed = [(10, 20, Upsert(A), Stored), (30, 40, Get, Miss), (50, 60, PutIfAbsent(B), Stored)];
    rejected(&missed, Losses::None, "gone", 2);
    let and = |eviction| [&missed[..], &[eviction]].concat();
    accepted(&and((10, 100, Evict(A), Evicted)));
    // An eviction of another value, before the put or after the miss explains nothing.
    rejected(&and((0, 100, Evict(B), Evicted)), Losses::None, "gone", 2);
    rejected(&and((0, 5, Evict(A), Evicted)), Losses::None, "never there", 1);
    rejected(&and((45, 100, Evict(A), Evicted)), Losses::None, "gone", 2);
}

#[test]
fn the_eviction_of_a_pinned_value_is_rejected() {
    let unpinned = (30, 40, UpsertPinned(B, Pin::Off), Stored);
    let pinned = [(10, 20, UpsertPinned(A, Hard), Stored), unpinned, (50, 60, Get, Miss)];
    accepted(&[&pinned[..], &[(10, 100, Evict(B), Evicted)]].concat());
    rejected(&[&pinned[..2], &[(10, 100, Evict(A), Evicted)]].concat(), Losses::None, "hard pin", 1);
}

#[test]
fn a_put_keeps_the_pin_of_the_value_that_it_certainly_replaces() {
    let after = |before: &[(u64, u64, Action, Outcome)]| {
        let put = (50, 60, Upsert(B), Stored);
        let operations = history(&[before, &[put, (70, 70, Evict(B), Evicted)]].concat());
        pin_of(operations.iter(), B)
    };
    let hard = (10, 20, UpsertPinned(A, Hard), Stored);
    assert_eq!(after(&[hard]), Some(Hard));
    assert_eq!(after(&[(0, 5, UpsertPinned(C, Pin::Off), Stored), hard]), Some(Hard));
    assert_eq!(after(&[hard, (30, 40, UpsertPinned(C, Soft), Stored)]), Some(Soft));
    assert_eq!(after(&[hard, (30, 40, Upsert(C), Failed), (30, 40, Get, Value(A))]), Some(Hard));
    assert_eq!(after(&[hard, (30, 40, Remove, Removed)]), Some(Pin::Off));
    assert_eq!(after(&[]), Some(Pin::Off));
    // These may have come before the put, or after it; or what is replaced may be gone.
    assert_eq!(after(&[hard, (30, 55, UpsertPinned(C, Pin::Off), Stored)]), None);
    assert_eq!(after(&[hard, (15, 40, Remove, Removed)]), None);
    assert_eq!(after(&[hard, (30, 40, Remove, Unknown)]), None);
    assert_eq!(after(&[hard, (30, 90, Evict(A), Evicted)]), None);
    rejected(&[hard, (50, 60, Upsert(B), Stored), (60, 100, Evict(B), Evicted)], Losses::None, "hard pin", 1);
}

#[test]
fn an_aborted_put_never_shows_up_and_a_dropped_one_may() {
    rejected(&[(0, 10, PutIfAbsent(A), Aborted), (20, 30, Get, Value(A))], Losses::Allowed, "not there", 1);
    accepted(&[(0, 10, PutIfAbsent(A), Aborted), (20, 30, PutIfAbsent(B), Stored)]);
    let dropped = [(0, 10, PutIfAbsent(A), Untold), (20, 30, Get, Miss), (40, 50, Get, Value(A))];
    accepted(&dropped);
    // It takes effect once.
    let twice = [&dropped[..], &[(60, 70, Remove, Removed), (80, 90, Get, Value(A))]].concat();
    rejected(&twice, Losses::Allowed, "not there", 2);
}

#[test]
fn an_eviction_takes_effect_exactly_once() {
    let evicted = (0, 1000, Evict(A), Evicted);
    // The value does not come back.
    let back = [
        (0, 10, Upsert(A), Stored),
        (20, 30, Get, Miss),
        (40, 50, Get, Value(A)),
        (60, 70, Get, Miss),
        evicted,
    ];
    rejected(&back, Losses::None, "not there", 3);
    // An upsert does not tell whether it replaced a value, a remove does.
    let replaced = [
        (0, 10, Upsert(A), Stored),
        (20, 30, Get, Value(A)),
        (40, 50, Upsert(B), Stored),
        (60, 70, Get, Value(B)),
    ];
    accepted(&[&replaced[..], &[evicted]].concat());
    let removed = [(0, 10, Upsert(A), Stored), (20, 30, Remove, Removed), evicted];
    rejected(&removed, Losses::None, "no order", 2);
    let there = [(0, 10, Upsert(A), Stored), (0, 20, Evict(A), Evicted), (30, 40, Get, Value(A))];
    rejected(&there, Losses::None, "not there", 2);
    // A put that may or may not have happened did happen if its value was evicted.
    let unknown = [(0, 10, Upsert(A), Stored), (20, 30, PutIfAbsent(B), Unknown), (40, 50, Get, Value(A))];
    accepted(&unknown);
    rejected(&[&unknown[..], &[(20, 30, Evict(B), Evicted)]].concat(), Losses::None, "never there", 2);
}

#[test]
fn many_evictions_at_unknown_times_do_not_blow_up() {
    let mut operations: Vec<(u64, u64, Action, Outcome)> = Vec::new();
    for i in 0..400 {
        let t = i * 100;
        operations.push((t, t + 10, Upsert(Digest(i)), Stored));
        operations.push((t, 100_000, Evict(Digest(i)), Evicted));
        if i % 2 == 0 {
            operations.push((t + 40, t + 50, Get, Value(Digest(i))));
        }
    }
    accepted(&operations);
}

#[test]
fn torn_bytes_are_rejected() {
    let torn = [(0, 10, PutIfAbsent(A), Stored), (20, 30, Get, Value(Digest(0xdead)))];
    rejected(&torn, Losses::Allowed, "nobody ever put", 1);
}

#[test]
fn another_keys_value_is_rejected_and_named() {
    let mut wrong = history(&[(0, 10, PutIfAbsent(A), Stored), (20, 30, Get, Value(B))]);
    let mut other = history(&[(0, 10, PutIfAbsent(B), Stored)]);
    other[0].key = "other".into();
    wrong.extend(other);
    let Verdict::Violation(violation) = check(&wrong, Losses::Allowed) else { panic!("let through") };
    assert!(violation.why.contains("another key, other"), "{violation}");
}

#[test]
fn a_resurrected_key_is_rejected() {
    let resurrected = [
        (0, 10, PutIfAbsent(A), Stored),
        (20, 30, Remove, Removed),
        (40, 50, Get, Miss),
        (60, 70, Exist, Present),
    ];
    rejected(&resurrected, Losses::Allowed, "no order", 2);
}

#[test]
fn a_value_read_before_its_put_began_is_rejected() {
    rejected(&[(0, 10, Get, Value(A)), (20, 30, PutIfAbsent(A), Stored)], Losses::Allowed, "not there", 1);
}

#[test]
fn reads_that_disagree_about_the_order_of_two_puts_are_rejected() {
    let flicker = [
        (0, 100, Upsert(A), Stored),
        (0, 100, Upsert(B), Stored),
        (110, 120, Get, Value(A)),
        (130, 140, Get, Value(B)),
    ];
    rejected(&flicker, Losses::None, "not there", 3);
}

#[test]
fn a_read_that_goes_back_while_an_unknown_upsert_is_open_is_rejected() {
    // The unknown put can take effect only once, so reads of B and then A have no explanation.
    let back = [
        (0, 10, Upsert(A), Stored),
        (20, 30, Upsert(B), Unknown),
        (40, 50, Get, Value(B)),
        (60, 70, Get, Value(A)),
    ];
    rejected(&back, Losses::Allowed, "not there", 3);
}

#[test]
fn a_failed_put_that_shows_up_is_rejected() {
    rejected(&[(0, 10, PutIfAbsent(A), Failed), (20, 30, Get, Value(A))], Losses::Allowed, "not there", 1);
}

/// Makes a history like [`history`], but with one client for all operations.
fn of_one_client(operations: &[(u64, u64, Action, Outcome)]) -> Vec<Operation> {
    history(operations).into_iter().map(|operation| Operation { client: 0, ..operation }).collect()
}

#[test]
fn a_put_that_stayed_local_is_no_acknowledgement() {
    // No read has to find the value, and the next put-if-absent stores.
    let local = [
        (0, 10, PutIfAbsent(A), LocalOnly),
        (20, 30, Get, LocalValue(A)),
        (40, 50, Get, Miss),
        (60, 70, PutIfAbsent(B), Stored),
        (80, 90, Get, Value(B)),
    ];
    check(&of_one_client(&local), Losses::None).assert_ok();
    // No read may find it in the pool, not even one of the client whose cache holds it.
    let leaked = of_one_client(&[(0, 10, PutIfAbsent(A), LocalOnly), (20, 30, Get, Value(A))]);
    assert!(matches!(check(&leaked, Losses::Allowed), Verdict::Violation(_)));
}

#[test]
fn a_read_without_a_leader_may_be_old_but_not_wrong() {
    let old = [
        (0, 10, Upsert(A), Stored),
        (20, 30, Upsert(B), Stored),
        (40, 50, Get, LocalValue(A)),
        (60, 70, Remove, Removed),
        (80, 90, Get, LocalValue(B)),
        (100, 110, Get, Miss),
    ];
    check(&of_one_client(&old), Losses::None).assert_ok();
    let unknown = [(0, 10, Upsert(A), Unknown), (20, 30, Get, LocalValue(A))];
    check(&of_one_client(&unknown), Losses::None).assert_ok();

    let torn = [(0, 10, Upsert(A), Stored), (20, 30, Get, LocalValue(Digest(0xdead)))];
    rejected(&torn, Losses::Allowed, "nobody ever put", 1);
    let failed = [(0, 10, PutIfAbsent(A), Failed), (20, 30, Get, LocalValue(A))];
    rejected(&failed, Losses::Allowed, "cache cannot hold", 1);
    let early = [(0, 10, Get, LocalValue(A)), (20, 30, PutIfAbsent(A), Stored)];
    rejected(&early, Losses::Allowed, "cache cannot hold", 1);
    // Here each operation has a client of its own.
    let anothers = [(0, 10, PutIfAbsent(A), LocalOnly), (20, 30, Get, LocalValue(A))];
    rejected(&anothers, Losses::Allowed, "cache cannot hold", 1);
}

#[test]
fn another_keys_value_out_of_a_cache_is_rejected_and_named() {
    let mut wrong = history(&[(0, 10, PutIfAbsent(A), Stored), (20, 30, Get, LocalValue(B))]);
    wrong.extend(
        history(&[(0, 10, PutIfAbsent(B), Stored)])
            .into_iter()
            .map(|put| Operation { key: "other".into(), ..put }),
    );
    let Verdict::Violation(violation) = check(&wrong, Losses::Allowed) else { panic!("let through") };
    assert!(violation.why.contains("another key, other"), "{violation}");
}

#[test]
fn concurrent_histories_with_an_order_are_accepted() {
    // A race of two puts-if-absent: one stores, the other finds it.
    accepted(&[
        (0, 100, PutIfAbsent(A), Stored),
        (0, 100, PutIfAbsent(B), Exists),
        (50, 60, Get, Miss),
        (70, 80, Get, Value(A)),
        (120, 130, Get, Value(A)),
    ]);
    // A remove that overlaps everything.
    accepted(&[
        (0, 10, PutIfAbsent(A), Stored),
        (20, 100, Remove, Removed),
        (30, 40, Get, Value(A)),
        (50, 60, Get, Miss),
        (70, 80, PutIfAbsent(B), Stored),
        (110, 120, Get, Value(B)),
    ]);
    accepted(&[(0, 10, Get, Miss), (0, 10, Exist, Absent), (0, 10, Remove, NothingToRemove)]);
}

#[test]
fn an_unknown_outcome_may_happen_late_or_never() {
    accepted(&[
        (0, 10, PutIfAbsent(A), Unknown),
        (20, 30, Get, Miss),
        (40, 50, Get, Value(A)),
        (60, 70, PutIfAbsent(B), Exists),
    ]);
    accepted(&[(0, 10, PutIfAbsent(A), Unknown), (20, 30, PutIfAbsent(B), Stored), (40, 50, Get, Value(B))]);
    accepted(&[
        (0, 10, PutIfAbsent(A), Stored),
        (20, 30, Remove, Unknown),
        (40, 50, Get, Value(A)),
        (60, 70, Get, Miss),
    ]);
}

#[test]
fn many_unknown_outcomes_do_not_blow_up() {
    let mut operations: Vec<(u64, u64, Action, Outcome)> = Vec::new();
    for i in 0..400 {
        let t = i * 100;
        operations.push((t, t + 10, Upsert(Digest(i)), Unknown));
        operations.push((t + 20, t + 30, Upsert(Digest(10_000 + i)), Stored));
        operations.push((t + 40, t + 50, Get, Value(Digest(10_000 + i))));
        operations.push((t + 60, t + 70, Get, Value(Digest(if i % 3 == 0 { i } else { 10_000 + i }))));
    }
    accepted(&operations);
}

/// Checks against histories that are right by construction: operations that each took effect at one instant are
/// accepted, and a read that returns a value that was never current during it is rejected.
#[test]
fn random_histories_made_from_an_order_are_accepted_and_a_wrong_read_is_not() {
    for seed in 0..60 {
        let made = made_from_an_order(seed);
        check(&made, Losses::None).assert_ok();
        if seed % 6 != 0 {
            continue;
        }
        let mut wrong = made.clone();
        let end = wrong.iter().map(|op| op.end).max().unwrap_or(0);
        wrong.extend(history(&[(end + 1, end + 2, Get, Value(Digest(u64::MAX)))]));
        assert!(matches!(check(&wrong, Losses::Allowed), Verdict::Violation(_)), "seed {seed}");
    }
}

fn made_from_an_order(seed: u64) -> Vec<Operation> {
    let mut random = crate::Seeded::new(seed);
    let mut state = None;
    let mut made = Vec::new();
    for i in 0..200u64 {
        // The operation takes effect at `at`; its start and end lie around that and overlap its neighbours.
        let at = 1_000 + i * 10;
        let (start, end) = (at - random.below(60), at + random.below(60));
        let value = Digest(i);
        let (action, mut outcome) = match random.below(5) {
            0 if state.is_none() => (PutIfAbsent(value), Stored),
            0 => (PutIfAbsent(value), Exists),
            1 => (Upsert(value), Stored),
            2 => (Get, state.map_or(Miss, Value)),
            3 => (Exist, if state.is_some() { Present } else { Absent }),
            _ => (Remove, if state.is_some() { Removed } else { NothingToRemove }),
        };
        match (action, outcome) {
            (PutIfAbsent(_) | Upsert(_), Stored) => state = Some(value),
            (Remove, Removed) => state = None,
            _ => {}
        }
        if random.below(20) == 0 {
            outcome = Unknown;
        }
        let mut one = history(&[(start, end, action, outcome)]);
        one[0].client = i as u32;
        made.append(&mut one);
    }
    made
}

/// Returns whether some order of some of the operations explains them, by trying every order: the definition, word for
/// word.
fn brute_force(operations: &[Operation], losses: &Losses) -> bool {
    let judged: Vec<&Operation> = operations.iter().filter(|op| !op.is_no_news()).collect();
    fn extend(left: &[&Operation], state: model::State, losses: &Losses) -> bool {
        // Operations of unknown outcome may never happen.
        if left.iter().all(|op| op.outcome == Unknown) {
            return true;
        }
        (0..left.len()).any(|next| {
            let op = left[next];
            // Nothing that ended before this one began may come after it.
            let in_time = left.iter().all(|other| other.outcome == Unknown || other.end >= op.start);
            let mut rest = left.to_vec();
            rest.remove(next);
            in_time && model::apply(state, op, losses).is_some_and(|state| extend(&rest, state, losses))
        })
    }
    extend(&judged, None, losses)
}

#[test]
fn the_search_agrees_with_trying_every_order() {
    let mut random = crate::Seeded::new(25);
    let (mut explained, mut contradictory) = (0, 0);
    for round in 0..40_000 {
        let count = 1 + random.below(6);
        let operations: Vec<(u64, u64, Action, Outcome)> = (0..count)
            .map(|_| {
                let start = random.below(20);
                let end = start + random.below(10);
                let value = Digest(random.below(3));
                let (action, answers) = match random.below(8) {
                    0 | 1 => (PutIfAbsent(value), [Stored, Exists, Unknown, Failed]),
                    2 => (Upsert(value), [Stored, Stored, Unknown, LocalOnly]),
                    3 => (Get, [Value(value), Value(value), Miss, Unknown]),
                    4 => (Exist, [Present, Absent, Unknown, Failed]),
                    5 | 6 => (Evict(value), [Evicted, Evicted, Evicted, Unknown]),
                    _ => (Remove, [Removed, NothingToRemove, Unknown, Cleared]),
                };
                (start, end, action, answers[random.below(4) as usize])
            })
            .collect();
        let operations = history(&operations);
        let span = random.below(20);
        for losses in [Losses::None, Losses::Allowed, Losses::Within(vec![span..span + 8])] {
            let expected = brute_force(&operations, &losses);
            let found = search::search(&operations, &losses, BOUND);
            assert_eq!(
                found == Found::Order,
                expected,
                "round {round}, {losses:?}: {found:?}\n{}",
                operations.iter().map(|op| format!("  {op}\n")).collect::<String>()
            );
            *if expected { &mut explained } else { &mut contradictory } += 1;
        }
    }
    println!("{explained} histories have an order, {contradictory} have none");
    assert!(explained > 10_000 && contradictory > 10_000);
}
