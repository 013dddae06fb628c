use std::time::Duration;

use super::*;
use crate::checker::{Action, Digest, Operation, Outcome};
use Action::{Evict, Exist, Get, PutIfAbsent, Remove, Upsert};
use Outcome::{
    Absent, Evicted, Failed, LocalMiss, LocalOnly, LocalValue, Miss, NothingToRemove, Removed, Stored,
    Unknown, Unread, Value,
};

const A: Digest = Digest(0xa);
const MS: u64 = 1_000_000;

/// Makes a history of `(client, start, end, action, outcome)` on the key `k`, in milliseconds.
fn history(operations: &[(u32, u64, u64, Action, Outcome)]) -> Vec<Operation> {
    let one = |&(client, start, end, action, outcome)| Operation {
        client,
        key: "k".into(),
        action,
        outcome,
        start: start * MS,
        end: end * MS,
    };
    operations.iter().map(one).collect()
}

/// Returns what a client got for a kind of call from `from` to `to`, in milliseconds.
fn of(
    operations: &[(u32, u64, u64, Action, Outcome)],
    client: u32,
    call: CallKind,
    from: u64,
    to: u64,
) -> Served {
    let all = served(&history(operations), &(from * MS..to * MS), Counted::All);
    let found = all.into_iter().find(|it| it.client == client && it.call == call);
    found.unwrap_or_else(|| panic!("nothing of client {client} and {call:?}"))
}

fn gap(operations: &[(u32, u64, u64, Action, Outcome)], client: u32, call: CallKind, to: u64) -> Duration {
    of(operations, client, call, 0, to).longest_gap
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn a_gap_lasts_from_the_first_call_after_a_good_answer_to_the_next_good_one() {
    let calls = [
        (0, 10, 20, Upsert(A), Stored),
        // It wanted nothing for a while.
        (0, 500, 520, Upsert(A), Stored),
        (0, 600, 700, Upsert(A), Failed),
        (0, 710, 800, Upsert(A), Unknown),
        (0, 810, 850, Upsert(A), Stored),
    ];
    assert_eq!(gap(&calls, 0, CallKind::Put, 860), ms(240));
    assert_eq!(of(&calls, 0, CallKind::Put, 0, 860).calls, 5);
}

#[test]
fn each_client_and_each_kind_of_call_is_judged_for_itself() {
    let mut calls = vec![(0, 0, 10, Upsert(A), Stored), (1, 0, 10, Upsert(A), Stored)];
    for t in (10..5_000).step_by(10) {
        calls.push((0, t, t + 10, Upsert(A), Stored));
        calls.push((1, t, t + 5, Upsert(A), Failed));
        calls.push((1, t + 5, t + 10, Get, Value(A)));
    }
    assert_eq!(gap(&calls, 0, CallKind::Put, 5_000), ms(10));
    assert_eq!(gap(&calls, 1, CallKind::Get, 5_000), ms(5));
    assert_eq!(
        gap(&calls, 1, CallKind::Put, 5_000),
        ms(4_990),
        "another client's puts do not count, nor its own gets"
    );
    let all = served(&history(&calls), &(0..5_000 * MS), Counted::All);
    let breaches = Service::unaffected().breaches(&all, ms(100));
    assert!(
        matches!(breaches[..], [Served { client: 1, call: CallKind::Put, failed: 499, .. }]),
        "{breaches:?}"
    );
}

#[test]
fn a_client_that_hangs_or_has_stopped_trying_is_waited_for_to_the_end() {
    let stopped = [(0, 0, 10, Upsert(A), Stored), (0, 10, 20, Get, Value(A)), (1, 0, 3_000, Get, Value(A))];
    assert_eq!(gap(&stopped, 0, CallKind::Put, 3_000), ms(2_980));
    assert_eq!(gap(&stopped, 0, CallKind::Get, 3_000), ms(2_980));
    // As long as it calls at all, a kind that it does not ask for has no gap.
    let goes_on = [(0, 0, 10, Upsert(A), Stored), (0, 2_000, 2_990, Get, Value(A))];
    assert_eq!(gap(&goes_on, 0, CallKind::Put, 3_000), ms(10));
    assert_eq!(gap(&goes_on, 0, CallKind::Get, 3_000), ms(990));
}

#[test]
fn a_client_that_is_kept_busy_by_slow_calls_that_work_waits_for_no_others() {
    let calls = [
        (0, 0, 10, Remove, Unknown),
        (0, 10, 1_000, Upsert(A), Stored),
        (0, 1_000, 2_000, Upsert(A), Stored),
        (0, 2_000, 2_100, Remove, Removed),
    ];
    assert_eq!(gap(&calls, 0, CallKind::Remove, 2_100), ms(110));
    assert_eq!(gap(&calls, 0, CallKind::Put, 2_100), ms(1_000));
}

#[test]
fn a_pause_before_the_next_good_answer_is_no_gap() {
    let calls = [
        (0, 0, 600, Remove, Unknown),
        (0, 700, 750, Remove, Failed),
        (0, 750, 800, Get, Value(A)),
        (0, 1_200, 1_210, Remove, Removed),
    ];
    assert_eq!(gap(&calls, 0, CallKind::Remove, 1_210), ms(760));
}

#[test]
fn a_call_that_was_under_way_when_the_window_began_counts_from_there() {
    let calls = [(0, 0, 900, Upsert(A), Failed), (0, 910, 1_000, Upsert(A), Stored)];
    let served = of(&calls, 0, CallKind::Put, 600, 1_000);
    assert_eq!(
        (served.longest_gap, served.failed, served.calls),
        (ms(390), 0, 1),
        "it may fail of what was before"
    );
}

#[test]
fn overlapping_calls_have_a_gap_only_where_none_is_answered() {
    let calls =
        [(0, 0, 100, Get, Miss), (0, 0, 200, Get, Miss), (0, 0, 700, Get, Miss), (0, 0, 800, Get, Miss)];
    assert_eq!(gap(&calls, 0, CallKind::Get, 800), ms(500));
}

#[test]
fn what_is_no_good_answer_is_counted_by_its_sort() {
    let calls = [
        (0, 0, 10, PutIfAbsent(A), LocalOnly),
        (0, 20, 30, Get, LocalValue(A)),
        (0, 40, 50, Get, LocalMiss),
        (0, 60, 70, Exist, Failed),
        (0, 80, 90, Remove, Unknown),
    ];
    let of = |call| of(&calls, 0, call, 0, 100);
    let counts = |it: Served| (it.failed, it.unknown, it.local_only, it.false_misses);
    assert_eq!(counts(of(CallKind::Put)), (0, 0, 1, 0));
    assert_eq!(counts(of(CallKind::Get)), (0, 0, 2, 0), "nothing says that the value was in the pool");
    assert_eq!(counts(of(CallKind::Exist)), (1, 0, 0, 0));
    assert_eq!(counts(of(CallKind::Remove)), (0, 1, 0, 0));
    assert_eq!(of(CallKind::Put).longest_gap, ms(100), "no local answer is a good one");
}

#[test]
fn a_client_that_comes_back_is_counted_from_its_first_good_answer() {
    let calls = [
        (0, 0, 10, Upsert(A), Failed),
        (0, 20, 30, Get, LocalMiss),
        (0, 40, 50, Get, Value(A)),
        (0, 60, 70, Upsert(A), Failed),
        (1, 0, 900, Upsert(A), Failed),
    ];
    let all = served(&history(&calls), &(0..1_000 * MS), Counted::OnceBack);
    let figures: Vec<_> = all.iter().map(|it| (it.client, it.call, it.calls, it.failed)).collect();
    assert_eq!(figures, [(0, CallKind::Put, 1, 1), (0, CallKind::Get, 0, 0), (1, CallKind::Put, 0, 0)]);
    assert_eq!(all.iter().map(|it| it.longest_gap).collect::<Vec<_>>(), [ms(1_000), ms(930), ms(1_000)]);
}

#[track_caller]
fn false_misses(operations: &[(u32, u64, u64, Action, Outcome)], expected: usize) {
    let all = served(&history(operations), &(0..1_000 * MS), Counted::All);
    assert_eq!(all.iter().map(|it| it.false_misses).sum::<usize>(), expected);
}

#[test]
fn a_miss_is_false_where_the_value_was_certainly_there() {
    let put = (0, 0, 10, PutIfAbsent(A), Stored);
    false_misses(&[put, (1, 20, 30, Get, Miss)], 1);
    false_misses(&[put, (1, 20, 30, Exist, Absent), (1, 40, 50, Get, LocalMiss)], 2);
    false_misses(&[put, (1, 20, 30, Get, Unread)], 1);
    false_misses(&[put, (1, 20, 30, Remove, NothingToRemove), (1, 40, 50, Get, Miss)], 1);
    false_misses(&[(1, 0, 5, Remove, Removed), (0, 6, 10, Upsert(A), Stored), (1, 20, 30, Get, Miss)], 1);
    // It may be put only now, be removed, have been removed, or never have been put.
    false_misses(&[put, (1, 5, 30, Get, Miss)], 0);
    false_misses(&[put, (1, 12, 25, Remove, Removed), (1, 20, 30, Get, Miss)], 0);
    false_misses(&[put, (1, 12, 14, Remove, Unknown), (1, 20, 30, Get, Miss)], 0);
    false_misses(&[put, (1, 12, 14, Evict(A), Evicted), (1, 20, 30, Get, Miss)], 0);
    false_misses(&[(0, 0, 10, PutIfAbsent(A), Unknown), (1, 20, 30, Get, Miss)], 0);
    let replaced = (0, 14, 18, Upsert(Digest(0xb)), Stored);
    false_misses(&[put, replaced, (1, 12, 30, Evict(A), Evicted), (1, 20, 30, Get, Miss)], 1);
    false_misses(&[put, replaced, (1, 12, 30, Evict(Digest(0xb)), Evicted), (1, 20, 30, Get, Miss)], 0);
    // It is removed only later.
    false_misses(&[put, (1, 20, 30, Get, Miss), (1, 40, 50, Remove, Removed)], 1);
}

#[test]
fn a_false_miss_is_no_good_answer() {
    let calls = [(0, 0, 10, Upsert(A), Stored), (0, 20, 30, Get, Miss), (0, 40, 900, Get, Value(A))];
    assert_eq!(gap(&calls, 0, CallKind::Get, 900), ms(870));
}

#[test]
fn a_promise_is_kept_up_to_its_numbers_and_beyond_the_gap_for_as_long_as_the_machine_stood_still() {
    let served = |longest_gap, failed, false_misses| Served {
        client: 0,
        call: CallKind::Get,
        calls: 9,
        failed,
        unknown: 0,
        local_only: 0,
        false_misses,
        longest_gap,
    };
    let promise = Service::interrupted(ms(1_000)).failed(2, "one try").false_misses(1, "suspect");
    let kept = |it: Served, stalled| promise.breaches(&[it], stalled).is_empty();
    assert!(kept(served(ms(1_000), 2, 1), ms(0)) && kept(served(ms(1_200), 0, 0), ms(200)));
    assert!(!kept(served(ms(1_001), 0, 0), ms(0)));
    assert!(!kept(served(ms(0), 3, 0), ms(0)) && !kept(served(ms(0), 0, 2), ms(0)));
    assert_eq!(promise.allowances(), "2 failed (one try), 1 false misses (suspect)");
    assert_eq!(Service::unaffected().allowances(), "");
}
