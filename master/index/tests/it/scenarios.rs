//! The rules one by one.

use std::time::Duration;

use crate::support::{Rig, TERM, end, endpoint, mount, restore, snapshot, start};
use mc_index::{
    Endpoint, KeyHash, MountStore, Op, Pin, ProvenEnd, PutEndItem, PutStartItem, Quota, RESTARTS_SINCE,
    Response, Settings, State,
};
use mc_types::{
    ClusterTime, Code, GrantKey, MAX_NAMED_STORES, PinAction, PutId, PutMode, STORE_INCARNATION, StoreId,
};

const MIB: u64 = 1 << 20;

fn upsert(put: u128, key: &str, size: u64) -> PutStartItem {
    PutStartItem { mode: PutMode::Upsert, ..start(put, key, size) }
}

fn end_with_lease(put: u128, key: &str, reuse_at: u64) -> PutEndItem {
    PutEndItem { reuse_at: ClusterTime(reuse_at), ..end(put, key) }
}

#[test]
fn the_first_end_wins_and_later_ones_free_their_bytes() {
    let mut rig = Rig::with_stores(&[MIB]);
    assert_eq!(rig.start(start(1, "k", 1000)).code, Code::Ok);
    assert_eq!(rig.start(start(2, "k", 1000)).code, Code::Ok, "a start does not claim its key");
    assert_eq!(rig.end(2, "k").code, Code::Ok);
    assert_eq!(rig.end(1, "k").code, Code::ObjectAlreadyExists);
    assert_eq!(rig.version("k"), Some(2));
    assert_eq!(rig.used(), 1024);
    // Each again, and they answer the same.
    assert_eq!(rig.end(1, "k").code, Code::ObjectAlreadyExists);
    assert_eq!(rig.end(2, "k").code, Code::Ok);
    assert_eq!(rig.start(start(3, "k", 1000)).code, Code::ObjectAlreadyExists);
    assert_eq!(rig.start(start(2, "k", 1000)).code, Code::ObjectAlreadyExists, "its own put, too");
}

#[test]
fn keys_that_are_looked_up_together_are_found_as_one_by_one_and_in_order() {
    let mut rig = Rig::with_stores(&[MIB]);
    for put in (0..200).step_by(3) {
        rig.put(put + 1, &format!("key-{put}"), 1000);
    }
    let mut keys: Vec<Vec<u8>> = (0..200).map(|n| format!("key-{n}").into_bytes()).collect();
    // Keys that no object can have, and one twice.
    keys[31].clear();
    keys[32] = vec![b'k'; 5000];
    keys[100] = keys[99].clone();
    for count in [0, 1, 31, 32, 33, 64, 200] {
        let keys = &keys[..count];
        let mut found = Vec::new();
        rig.state.get_each("", keys.iter().map(Vec::as_slice), |key, object| found.push((key, object)));
        let expected: Vec<_> = keys.iter().map(|key| (&key[..], rig.state.get("", key))).collect();
        assert_eq!(found, expected);
    }
    rig.state.get_each("other", [&b"key-0"[..]].into_iter(), |_, object| assert_eq!(object, None));
}

#[test]
fn a_winner_is_known_by_its_object_when_its_record_is_gone() {
    let mut rig = Rig::with_stores(&[MIB]);
    rig.put(1, "k", 1000);
    rig.tick_at(2_000_000);
    assert_eq!(rig.end(1, "k").code, Code::Ok);
    assert_eq!(rig.end(2, "k").code, Code::PutGone);
    assert_eq!(rig.start(upsert(1, "k", 1000)).code, Code::InvalidParams, "its deadline has passed");
    let again = PutStartItem { deadline: ClusterTime(3_000_000), ..upsert(1, "k", 1000) };
    assert_eq!(rig.start(again).code, Code::ObjectAlreadyExists, "a put id is never used twice");
}

#[test]
fn a_start_is_repeated_with_what_was_placed_even_if_the_store_died() {
    let mut rig = Rig::with_stores(&[MIB, MIB]);
    let both = PutStartItem { replicas: 2, ..start(1, "k", 1000) };
    let first = rig.start(both.clone());
    assert_eq!((first.code, first.replicas.len()), (Code::Ok, 2));
    assert_ne!(first.replicas[0].store, first.replicas[1].store);
    rig.drop_store(1);
    assert_eq!(rig.start(both.clone()), first);
    rig.state = restore(&snapshot(&rig.state));
    assert_eq!(rig.start(both), first);
    assert_eq!(rig.start(start(1, "other", 1000)).code, Code::InvalidParams, "another key under the id");
    // The end keeps what is left.
    assert_eq!(rig.end(1, "k").code, Code::Ok);
    let replicas = rig.state.get("", b"k").unwrap().replicas;
    assert_eq!(replicas.iter().map(|r| r.store).collect::<Vec<_>>(), [StoreId(2)]);
}

#[test]
fn failed_replicas_are_freed_and_none_left_is_a_failure() {
    let mut rig = Rig::with_stores(&[MIB, MIB]);
    let both = |put, key| PutStartItem { replicas: 2, ..start(put, key, 1000) };
    let placed = rig.start(both(1, "k")).replicas;
    let failed = |put, key, failed: &[u8]| PutEndItem { failed: failed.into(), ..end(put, key) };
    assert_eq!(rig.end_item(failed(1, "k", &[0])).code, Code::Ok);
    assert_eq!(rig.state.get("", b"k").unwrap().replicas[..], placed[1..]);
    assert_eq!(rig.used(), 1024);
    assert_eq!(rig.start(both(2, "j")).code, Code::Ok);
    assert_eq!(rig.end_item(failed(2, "j", &[0, 1, 9])).code, Code::TransferFail);
    assert_eq!(rig.end_item(failed(2, "j", &[])).code, Code::TransferFail, "the same answer");
    assert_eq!(rig.start(both(2, "j")).code, Code::PutGone);
    assert_eq!((rig.version("j"), rig.used()), (None, 1024));
    // A store that died meanwhile counts as failed.
    assert_eq!(
        rig.start(PutStartItem { preferred: [StoreId(1)][..].into(), ..start(3, "i", 1) }).code,
        Code::Ok
    );
    rig.drop_store(1);
    assert_eq!(rig.end(3, "i").code, Code::TransferFail);
}

#[test]
fn an_upsert_replaces_and_holds_the_old_bytes() {
    let mut rig = Rig::with_stores(&[MIB]);
    rig.put(1, "k", 1000);
    assert_eq!(rig.start(upsert(2, "k", 2000)).code, Code::Ok);
    assert_eq!(rig.version("k"), Some(1), "until it ends");
    let ended = rig.end_item(end_with_lease(2, "k", 9000));
    assert_eq!((ended.code, ended.replaced), (Code::Ok, Some(PutId(1))));
    assert_eq!(rig.version("k"), Some(2));
    assert_eq!(rig.end_item(end_with_lease(2, "k", 9000)), ended, "repeated");
    assert_eq!((rig.used(), rig.state.objects()), (1024 + 2048, 1));
    assert_eq!(rig.state.next_deadline(), Some(ClusterTime(9000)));
    rig.tick_at(8999);
    assert_eq!(rig.used(), 1024 + 2048);
    rig.tick_at(9000);
    assert_eq!(rig.used(), 2048);
}

#[test]
fn a_put_over_a_suspect_replica_makes_a_new_version() {
    let mut rig = Rig::with_stores(&[MIB, MIB]);
    let on = |store, item: PutStartItem| PutStartItem { preferred: [StoreId(store)][..].into(), ..item };
    assert_eq!(rig.start(on(1, start(1, "k", 1000))).code, Code::Ok);
    assert_eq!(rig.end(1, "k").code, Code::Ok);
    rig.suspects = vec![StoreId(1)];
    let placed = rig.start(on(1, start(2, "k", 1000)));
    assert_eq!((placed.code, placed.replicas[0].store), (Code::Ok, StoreId(2)), "not on the suspect one");
    let ended = rig.end_item(end_with_lease(2, "k", 5000));
    assert_eq!((ended.code, ended.replaced), (Code::Ok, Some(PutId(1))));
    assert_eq!(rig.version("k"), Some(2));
    assert_eq!(rig.state.held().count(), 1, "the old bytes may still be read");
    rig.suspects.clear();
    assert_eq!(rig.start(start(3, "k", 1000)).code, Code::ObjectAlreadyExists);
}

#[test]
fn deadlines_end_puts_whoever_asks() {
    let mut rig = Rig::with_stores(&[MIB]);
    let item = PutStartItem { deadline: ClusterTime(5000), ..start(1, "k", 1000) };
    assert_eq!(rig.start(item).code, Code::Ok);
    assert_eq!(rig.start(start(2, "k", 1000)).code, Code::Ok);
    let cap = rig.state.settings().put_deadline_max_ms;
    assert_eq!(rig.state.put(PutId(2)).unwrap().deadline, ClusterTime(1000 + cap), "capped");
    rig.tick_at(4999);
    assert_eq!(rig.state.puts_in_flight(), 2);
    rig.tick_at(5000);
    assert_eq!((rig.state.puts_in_flight(), rig.used()), (1, 1024));
    assert_eq!(rig.end(1, "k").code, Code::PutGone);
    assert_eq!(rig.revoke(1), Code::Ok, "an unknown put");
    assert_eq!(rig.revoke(2), Code::Ok);
    assert_eq!(rig.end(2, "k").code, Code::PutGone);
    assert_eq!(rig.used(), 0);
    rig.put(3, "k", 10);
    assert_eq!(rig.revoke(3), Code::InvalidWrite);
    assert_eq!(rig.version("k"), Some(3));
}

/// A put that is given up and started again under the same id between the leader's check and the entry.
#[test]
fn an_end_that_was_proven_for_an_earlier_allocation_ends_no_later_one_of_the_same_put() {
    let mut rig = Rig::with_stores(&[MIB]);
    let prove = |rig: &mut Rig, index| {
        let items = vec![ProvenEnd { end: end(1, "k"), index }];
        let Response::PutEnded(ended) = rig.apply(Op::PutEndProven { items }) else { panic!() };
        ended[0].code
    };
    let first = rig.start(start(1, "k", 64)).replicas[0].index;
    assert_eq!(rig.revoke(1), Code::Ok);
    let second = rig.start(start(1, "k", 64)).replicas[0].index;
    assert_eq!(prove(&mut rig, first), Code::PutGone);
    assert_eq!(rig.version("k"), None, "nobody has written it");
    assert_eq!(prove(&mut rig, second), Code::Ok);
    // Its end is repeated when the put is not in flight any more.
    assert_eq!(prove(&mut rig, 0), Code::Ok);
}

#[test]
fn time_never_goes_back_and_is_the_states_own() {
    let mut rig = Rig::with_stores(&[MIB]);
    rig.tick_at(5000);
    rig.tick_at(2000);
    assert_eq!(rig.state.time(), ClusterTime(5000));
    let late = PutStartItem { deadline: ClusterTime(4000), ..start(1, "k", 1) };
    assert_eq!(rig.start(late).code, Code::InvalidParams);
}

#[test]
fn a_backlog_of_due_puts_ends_in_slices_and_never_answers_as_alive() {
    let mut rig = Rig::with_stores(&[64 * MIB]);
    let item = |put| PutStartItem { deadline: ClusterTime(5000), ..start(put, &format!("k{put}"), 64) };
    let items: Vec<_> = (0..4096).map(item).collect();
    rig.apply(Op::PutStart { tenant: String::new(), items });
    assert_eq!(rig.state.puts_in_flight(), 4096);
    rig.tick_at(5000);
    let left = rig.state.puts_in_flight();
    assert!((1..4096).contains(&left), "one entry does not do unbounded work: {left} left");
    assert_eq!(rig.end(4095, "k4095").code, Code::PutGone);
    for _ in 0..4 {
        rig.tick_at(5000);
    }
    assert_eq!((rig.state.puts_in_flight(), rig.used()), (0, 0));
}

#[test]
fn a_backlog_of_due_puts_ends_the_same_where_the_index_was_rebuilt_from_a_snapshot() {
    let mut rig = Rig::with_stores(&[64 * MIB]);
    let item = |put| PutStartItem { deadline: ClusterTime(5000), ..start(put, &format!("k{put}"), 64) };
    rig.apply(Op::PutStart { tenant: String::new(), items: (0..4096).map(item).collect() });
    for put in (0..4096).filter(|put| put % 5 < 2) {
        assert_eq!(rig.end(put, &format!("k{put}")).code, Code::Ok);
    }
    // One that lived through it remembers more than what is in flight.
    let mut rebuilt = restore(&snapshot(&rig.state));
    rig.now = 5000;
    let mut slices = 0;
    while rig.state.puts_in_flight() > 0 {
        slices += 1;
        assert!(slices < 100, "{} puts are left", rig.state.puts_in_flight());
        rig.index += 1;
        let command = rig.command(Op::Tick);
        for state in [&mut rig.state, &mut rebuilt] {
            state.apply(rig.index, TERM, &command);
        }
        assert_eq!(snapshot(&rig.state), snapshot(&rebuilt), "after slice {slices}");
    }
    assert!(slices > 1, "a limit cut it");
}

#[test]
fn removal_names_a_version_and_holds_its_bytes() {
    let mut rig = Rig::with_stores(&[MIB]);
    rig.put(1, "k", 1000);
    assert_eq!(rig.remove("k", 2, 0), Code::VersionChanged);
    assert_eq!(rig.remove("x", 1, 0), Code::ObjectNotFound);
    assert_eq!(rig.remove("k", 1, 4000), Code::Ok);
    assert_eq!(rig.remove("k", 1, 4000), Code::ObjectNotFound);
    assert_eq!((rig.state.objects(), rig.used()), (0, 1024));
    rig.put(2, "k", 500);
    rig.tick_at(4000);
    assert_eq!((rig.version("k"), rig.used()), (Some(2), 512));
    assert_eq!(rig.remove("k", 2, 4000), Code::Ok, "a lease that is over holds nothing");
    assert_eq!(rig.used(), 0);
}

#[test]
fn a_full_store_takes_held_bytes_back_where_only_tcp_reaches_it() {
    for (transports, code) in [(&["tcp"][..], Code::Ok), (&["rdma", "tcp"], Code::NoAvailableHandle)] {
        let mut rig = Rig::new();
        let endpoints = transports.iter().map(|transport| endpoint(transport)).collect();
        assert_eq!(rig.mount(MountStore { endpoints, ..mount(1, 101, &[MIB]) }), Code::Ok);
        rig.put(1, "a", MIB / 2);
        rig.put(2, "b", MIB / 2);
        assert_eq!(rig.remove("a", 1, 9000), Code::Ok);
        assert_eq!(rig.remove("b", 2, 8000), Code::Ok);
        assert_eq!(rig.start(start(3, "c", MIB / 2)).code, code, "{transports:?}");
        if code == Code::Ok {
            let left: Vec<_> = rig.state.held().map(|held| held.reuse_at).collect();
            assert_eq!(left, [ClusterTime(9000)], "the longest held goes first");
        }
    }
}

#[test]
fn placement_prefers_avoids_and_says_why_not() {
    let mut rig = Rig::new();
    assert_eq!(rig.start(start(1, "k", 1)).code, Code::NoAvailableHandle, "no store at all");
    for store in 1..=3 {
        assert_eq!(rig.mount(mount(store, store, &[MIB])), Code::Ok);
    }
    assert_eq!(rig.start(start(1, "k", MIB + 1)).code, Code::ObjectTooLarge);
    for put in 1..=20 {
        let item = PutStartItem {
            preferred: [StoreId(9), StoreId(2), StoreId(3)][..].into(),
            avoid: [StoreId(2)][..].into(),
            ..start(put, "k", 1)
        };
        assert_eq!(rig.start(item).replicas[0].store, StoreId(3));
    }
    let all = PutStartItem { replicas: 200, ..start(100, "k", 1) };
    assert_eq!(rig.start(all).replicas.len(), 3, "one a store");
    let none = PutStartItem { avoid: [StoreId(1), StoreId(2)][..].into(), ..start(101, "k", 1) };
    rig.suspects = vec![StoreId(3)];
    assert_eq!(rig.start(none).code, Code::NoAvailableHandle);
}

#[test]
fn random_choices_balance_by_the_free_part() {
    let mut rig = Rig::with_stores(&[64 * MIB, 64 * MIB, 32 * MIB]);
    for put in 0..1200 {
        assert_eq!(rig.start(start(put, &format!("k{put}"), 64 << 10)).code, Code::Ok);
    }
    for store in rig.state.stores() {
        let part = store.used * 100 / store.capacity;
        assert!((40..54).contains(&part), "{}: {part} %", store.name);
    }
}

#[test]
fn a_dropped_store_is_invisible_at_once_and_swept_in_slices() {
    let mut rig = Rig::with_stores(&[MIB, MIB]);
    let on = |store, item: PutStartItem| PutStartItem { preferred: [StoreId(store)][..].into(), ..item };
    for put in 0..10u128 {
        let key = format!("k{put}");
        assert_eq!(rig.start(on(1, start(put, &key, 1000))).code, Code::Ok);
        assert_eq!(rig.end(put, &key).code, Code::Ok);
    }
    let both = PutStartItem { replicas: 2, ..start(50, "both", 1000) };
    assert_eq!(rig.start(both).replicas.len(), 2);
    assert_eq!(rig.end(50, "both").code, Code::Ok);
    rig.drop_store(1);
    assert_eq!((rig.version("k3"), rig.version("both")), (None, Some(50)));
    assert_eq!(rig.remove("k3", 3, 0), Code::ObjectNotFound);
    rig.put(60, "k3", 1000);
    assert_eq!(rig.version("k3"), Some(60), "a put of such a key works at once");
    assert!(rig.state.needs_sweep());
    assert!(rig.sweep(4) && rig.sweep(4));
    assert!(!rig.sweep(4), "9 of k0..k9 and one of both are visited");
    assert!(!rig.state.needs_sweep());
    assert_eq!(rig.state.objects(), 2);
    assert_eq!((rig.version("k3"), rig.version("both")), (Some(60), Some(50)));
    assert_eq!(rig.state.stores().count(), 1);
    assert_eq!(rig.used(), 2048);
}

#[test]
fn mounts_are_idempotent_by_epoch_and_a_dead_epoch_stays_dead() {
    let mut rig = Rig::new();
    assert_eq!(rig.mount(mount(1, 11, &[MIB, 2 * MIB])), Code::Ok);
    rig.put(1, "k", 1000);
    let renamed = MountStore { name: "new".into(), ..mount(1, 11, &[MIB, 2 * MIB]) };
    assert_eq!(rig.mount(renamed), Code::Ok);
    assert_eq!(rig.state.store(StoreId(1)).unwrap().name, "new");
    assert_eq!(rig.version("k"), Some(1));
    assert_eq!(rig.mount(mount(1, 11, &[MIB])), Code::InvalidParams, "the same memory of another size");
    // A new epoch replaces it.
    assert_eq!(rig.mount(mount(1, 12, &[MIB])), Code::Ok);
    assert_eq!(rig.version("k"), None);
    assert_eq!(rig.state.store(StoreId(1)).unwrap().capacity, MIB);
    assert!(rig.state.epoch_is_dead(StoreId(1), 11.into()));
    assert_eq!(rig.mount(mount(1, 11, &[MIB])), Code::StoreEpochDead);
    // Dropping an epoch that is not mounted leaves the one that is.
    let other = Op::DropStore { store: StoreId(1), epoch: 11.into() };
    assert_eq!(rig.code(other), Code::Ok);
    assert!(rig.state.store(StoreId(1)).is_some());
    for epoch in 13..40 {
        assert_eq!(rig.mount(mount(1, epoch, &[MIB])), Code::Ok);
    }
    assert!(rig.state.epoch_is_dead(StoreId(1), 38.into()));
    assert!(rig.state.epoch_is_dead(StoreId(1), 23.into()));
    assert!(!rig.state.epoch_is_dead(StoreId(1), 22.into()), "16 are remembered");
}

#[test]
fn segments_of_a_mounted_store_come_and_go_once() {
    let mut rig = Rig::new();
    assert_eq!(rig.mount(mount(1, 11, &[MIB])), Code::Ok);
    assert_eq!(rig.mount(mount(2, 21, &[MIB])), Code::Ok);
    let item = PutStartItem { preferred: smallvec::smallvec![StoreId(1)], ..start(1, "first", MIB) };
    assert_eq!(rig.start(item).replicas[0].segment, 0);
    assert_eq!(rig.end(1, "first").code, Code::Ok);

    assert_eq!(rig.mount(mount(1, 11, &[MIB, 2 * MIB])), Code::Ok);
    let item = PutStartItem { preferred: smallvec::smallvec![StoreId(1)], ..start(2, "second", 2 * MIB) };
    let placed = rig.start(item).replicas;
    assert_eq!((placed[0].store, placed[0].segment), (StoreId(1), 1));
    assert_eq!(rig.end(2, "second").code, Code::Ok);
    let in_flight =
        PutStartItem { preferred: smallvec::smallvec![StoreId(2)], replicas: 2, ..start(3, "third", 1000) };
    assert_eq!(rig.start(in_flight).replicas.len(), 1, "no segment of store 1 has room");

    // The first segment goes, with what it held.
    assert_eq!(rig.mount(mount(1, 11, &[0, 2 * MIB])), Code::Ok);
    assert_eq!((rig.version("first"), rig.version("second")), (None, Some(2)));
    assert_eq!(rig.state.store(StoreId(1)).unwrap().capacity, 2 * MIB);
    // Mounts that arrive late, and a segment in a place that was used.
    for late in [&[MIB][..], &[MIB, 2 * MIB], &[0], &[0, MIB], &[4 * MIB, 2 * MIB]] {
        assert_eq!(rig.mount(mount(1, 11, late)), Code::InvalidParams);
    }
    rig.sweep_all(1);
    assert_eq!(snapshot(&restore(&snapshot(&rig.state))), snapshot(&rig.state));
    assert_eq!(rig.mount(mount(1, 11, &[0, 0])), Code::InvalidParams, "the last segment goes with its store");
    assert_eq!(rig.mount(mount(1, 11, &[0, 0, MIB])), Code::Ok);
    rig.put(4, "fourth", 1000);
    assert_eq!(rig.version("second"), None);
    // A new epoch of a store that has unmounted segments.
    assert_eq!(rig.mount(mount(1, 12, &[0, 0, MIB])), Code::Ok);
    let item = PutStartItem { preferred: smallvec::smallvec![StoreId(1)], ..start(5, "fifth", MIB) };
    assert_eq!(rig.start(item).replicas[0].segment, 2);
    assert_eq!(snapshot(&restore(&snapshot(&rig.state))), snapshot(&rig.state));
}

#[test]
fn a_store_changes_the_key_of_its_grants_and_the_earlier_one_counts_for_two_minutes() {
    let mut rig = Rig::with_stores(&[MIB]);
    let with = |key: u8| MountStore { grant_key: GrantKey([key; 32]), ..mount(1, 101, &[MIB]) };
    let keys = |rig: &Rig| {
        let store = rig.state.store(StoreId(1)).unwrap();
        (store.grant_key.0[0], store.earlier_key.map(|key| key.0[0]))
    };
    assert_eq!(rig.mount(with(8)), Code::InvalidParams, "masters of cluster version 2 know nothing of it");
    rig.apply(Op::SetClusterVersion(3));
    rig.put(1, "k", 1000);
    assert_eq!(rig.mount(with(8)), Code::Ok);
    assert_eq!((keys(&rig), rig.version("k")), ((8, Some(7)), Some(1)), "what it holds stays");
    let written = snapshot(&rig.state);
    let restored = restore(&written).store(StoreId(1)).map(|store| store.earlier_key.copied());
    assert_eq!((restored, snapshot(&restore(&written))), (Some(Some(GrantKey([7; 32]))), written));

    assert_eq!(rig.mount(with(7)), Code::InvalidParams, "a mount that arrives late");
    rig.now += 119_999;
    rig.apply(Op::Tick);
    assert_eq!(keys(&rig), (8, Some(7)));
    rig.now += 1;
    rig.apply(Op::Tick);
    assert_eq!(keys(&rig), (8, None));
    assert_eq!(rig.mount(with(7)), Code::InvalidParams, "a mount that arrives very late");
    assert_eq!((rig.mount(with(9)), keys(&rig)), (Code::Ok, (9, Some(8))));
    assert_eq!((rig.mount(with(9)), keys(&rig)), (Code::Ok, (9, Some(8))), "an answer was lost");
    let other_epoch = MountStore { epoch: 102.into(), ..with(7) };
    assert_eq!((rig.mount(other_epoch), keys(&rig)), (Code::Ok, (7, None)));
}

#[test]
fn a_restarted_store_mounts_what_it_holds_and_no_earlier_process_of_it_does() {
    let mut rig = Rig::with_stores(&[MIB]);
    // The key of each process is its own.
    let by = |process: u8| {
        let attributes = vec![(STORE_INCARNATION.to_owned(), process.to_string())];
        let endpoints = vec![Endpoint { attributes, ..endpoint("tcp") }];
        MountStore { grant_key: GrantKey([process; 32]), endpoints, ..mount(1, 101, &[MIB]) }
    };
    rig.apply(Op::SetClusterVersion(RESTARTS_SINCE));
    rig.put(1, "k", 1000);
    for process in [2, 3, 3] {
        assert_eq!(rig.mount(by(process)), Code::Ok);
    }
    assert_eq!(rig.version("k"), Some(1), "what it holds stays");
    let store = |state: &State| {
        let store = state.store(StoreId(1)).unwrap();
        (store.grant_key.0[0], store.earlier_key.map(|key| key.0[0]))
    };
    assert_eq!(store(&rig.state), (3, Some(2)), "receipts of the process before count");
    for process in [0, 1, 2] {
        assert_eq!(rig.mount(by(process)), Code::InvalidParams, "a mount of {process} that arrives late");
    }
    let first = MountStore { grant_key: GrantKey([9; 32]), ..mount(1, 101, &[MIB]) };
    assert_eq!(rig.mount(first), Code::InvalidParams, "the first process names no number");
    assert_eq!(store(&restore(&snapshot(&rig.state))), (3, Some(2)));
    assert_eq!(rig.mount(mount(1, 102, &[MIB])), Code::Ok, "another epoch counts from 1");
}

#[test]
fn mounts_out_of_bounds_are_refused() {
    let mut rig = Rig::new();
    let many = vec![MIB; 1025];
    for segments in [&[][..], &[0], &[0, 0], &[63], &[(1 << 48) + 1], &many] {
        assert_eq!(rig.mount(mount(1, 1, segments)), Code::InvalidParams);
    }
    let long = MountStore { name: "x".repeat(9000), ..mount(1, 1, &[MIB]) };
    assert_eq!(rig.mount(long), Code::InvalidParams);
    assert_eq!(rig.mount(mount(1, 1, &[1 << 48])), Code::Ok);
    assert_eq!(rig.start(start(1, "k", 1 << 48)).code, Code::Ok);
    assert_eq!(rig.mount(mount(2, 1, &many[1..])), Code::Ok);
    assert_eq!(snapshot(&restore(&snapshot(&rig.state))), snapshot(&rig.state));
}

#[test]
fn stores_without_memory_are_forgotten_in_the_end() {
    let mut rig = Rig::new();
    for store in 1..=1100 {
        assert_eq!(rig.mount(mount(store, 100 + store, &[MIB])), Code::Ok);
        rig.drop_store(store);
    }
    assert!(!rig.state.epoch_is_dead(StoreId(1), 101.into()));
    assert!(rig.state.epoch_is_dead(StoreId(1100), 1200.into()));
    assert_eq!(snapshot(&restore(&snapshot(&rig.state))), snapshot(&rig.state));
}

#[test]
fn bad_items_get_a_code_each() {
    let mut rig = Rig::with_stores(&[MIB]);
    let code = |rig: &mut Rig, item| rig.start(item).code;
    assert_eq!(code(&mut rig, start(1, "", 1)), Code::InvalidKey);
    assert_eq!(code(&mut rig, start(1, &"k".repeat(4097), 1)), Code::InvalidKey);
    assert_eq!(code(&mut rig, start(1, "k", 0)), Code::InvalidParams);
    assert_eq!(code(&mut rig, PutStartItem { replicas: 0, ..start(1, "k", 1) }), Code::InvalidParams);
    assert_eq!(code(&mut rig, start(1, &"k".repeat(4096), u64::MAX)), Code::ObjectTooLarge);
    let long = Op::PutStart { tenant: "t".repeat(65), items: vec![start(1, "k", 1)] };
    let Response::PutStarted(answers) = rig.apply(long) else { panic!() };
    assert_eq!(answers[0].code, Code::InvalidParams);
    let many = Op::PutStart { tenant: String::new(), items: vec![start(1, "k", 1); 4097] };
    let Response::PutStarted(answers) = rig.apply(many) else { panic!() };
    assert!(answers.len() == 4097 && answers.iter().all(|answer| answer.code == Code::InvalidParams));
    assert_eq!(rig.end(1, "").code, Code::PutGone);
    assert_eq!(rig.used(), 0);
}

#[test]
fn what_another_terms_leader_decided_does_nothing() {
    let mut rig = Rig::with_stores(&[MIB]);
    rig.put(1, "k", 1000);
    rig.now += 500;
    let before = snapshot(&rig.state);
    let ops = [
        Op::PutStart { tenant: String::new(), items: vec![start(2, "j", 1)] },
        Op::PutEnd { items: vec![end(2, "j")] },
        Op::PutRevoke { puts: vec![PutId(2)] },
        Op::Remove { tenant: String::new(), items: Vec::new() },
        Op::MountStore(mount(2, 2, &[MIB])),
        Op::DropStore { store: StoreId(1), epoch: 101.into() },
        Op::Sweep { limit: 1 },
    ];
    for op in ops {
        let mut command = rig.command(op);
        command.stamp.term = TERM - 1;
        assert_eq!(rig.state.apply(50, TERM, &command), Response::WrongTerm);
    }
    assert_eq!(snapshot(&rig.state), before, "not even time");
    for op in [Op::Tick, Op::SetSettings(Settings::default()), Op::SetClusterVersion(2)] {
        let mut command = rig.command(op);
        command.stamp.term = 0;
        assert_eq!(rig.state.apply(51, TERM, &command), Response::Done);
    }
    assert_eq!((rig.state.cluster_version(), rig.state.time()), (2, ClusterTime(1500)));
    rig.apply(Op::SetClusterVersion(1));
    assert_eq!(rig.state.cluster_version(), 2, "never lowered");
}

#[test]
fn a_put_that_names_too_many_stores_is_refused_as_of_version_2() {
    let stores = |count: u64| (10..10 + count).map(StoreId).collect();
    let most = MAX_NAMED_STORES as u64;
    for (version, code) in [(1, Code::Ok), (2, Code::InvalidParams)] {
        let mut rig = Rig::with_stores(&[MIB]);
        rig.apply(Op::SetClusterVersion(version));
        let preferring = PutStartItem { preferred: stores(most + 1), ..start(1, "p", 10) };
        assert_eq!(rig.start(preferring).code, code);
        let avoiding = PutStartItem { avoid: stores(most + 1), ..start(2, "a", 10) };
        assert_eq!(rig.start(avoiding).code, code);
        let just = PutStartItem { preferred: stores(most), avoid: stores(most), ..start(3, "j", 10) };
        assert_eq!(rig.start(just).code, Code::Ok);
    }
}

#[test]
fn soft_pins_that_run_are_delayed_with_the_time() {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let mut rig = Rig::with_stores(&[MIB]);
    let pins = [
        PinAction::Soft(ClusterTime(60_000)),
        PinAction::Soft(ClusterTime(2_000)),
        PinAction::Hard,
        PinAction::Preserve,
    ];
    for (put, pin) in (1..).zip(pins) {
        let key = put.to_string();
        assert_eq!(rig.start(PutStartItem { pin, ..start(put, &key, 10) }).code, Code::Ok);
        assert_eq!(rig.end(put, &key).code, Code::Ok);
    }
    rig.tick_at(5_000);
    let ended = Pin::soft(ClusterTime(2_000));
    rig.state.delay_soft_pins(DAY);
    let pin = |key: &str| rig.state.get("", key.as_bytes()).unwrap().pin;
    let delayed = Pin::soft(ClusterTime(60_000).after(DAY));
    assert_eq!(["1", "2", "3", "4"].map(pin), [delayed, ended, Pin::HARD, Pin::NONE]);
    let bytes = snapshot(&rig.state);
    assert_eq!(snapshot(&restore(&bytes)), bytes);
}

#[test]
fn tenants_have_keys_of_their_own() {
    let mut rig = Rig::with_stores(&[MIB]);
    for (put, tenant) in [(1, ""), (2, "a")] {
        let items = vec![start(put, "k", 10)];
        rig.apply(Op::PutStart { tenant: tenant.into(), items });
        rig.apply(Op::PutEnd { items: vec![PutEndItem { key: KeyHash::of(tenant, b"k"), ..end(put, "k") }] });
    }
    assert_eq!(rig.state.get("", b"k").unwrap().version, PutId(1));
    assert_eq!(rig.state.get("a", b"k").unwrap().version, PutId(2));
    assert_eq!(rig.state.get("b", b"k"), None);
}

/// With `--log-sync none` a majority can lose the end of its log to a power failure while the stores remember what they
/// were granted from it.
#[test]
fn an_allocation_of_a_later_term_comes_after_those_of_entries_that_were_lost() {
    // Given a put of term 3 that a store has seen, and of which no master knows after a power failure.
    let mut lost = Rig::with_stores(&[MIB]);
    let before = lost.state.clone();
    let lost_at = lost.index + 1_000;
    lost.index = lost_at;
    let seen = lost.start(start(1, "k", 1000)).replicas[0];

    // When the leader of the next term allocates the same bytes by an entry of a lower index.
    let mut command = lost.command(Op::PutStart { tenant: String::new(), items: vec![start(2, "k", 1000)] });
    command.stamp.term = TERM + 1;
    let mut state = before;
    let Response::PutStarted(started) = state.apply(lost_at - 999, TERM + 1, &command) else { panic!() };

    // Then it is the later allocation for the store's fence.
    let granted = started[0].replicas[0];
    assert_eq!((granted.store, granted.offset), (seen.store, seen.offset));
    assert!(granted.index > seen.index, "{granted:?} would be refused: the store has seen {seen:?}");
}

#[test]
fn a_tenant_that_removes_all_again_and_again_does_not_keep_others_from_being_swept() {
    // The objects of two tenants, all over the index: far more than one sweep visits.
    const OBJECTS: u128 = 6_000;
    let mut rig = Rig::with_stores(&[4 * MIB]);
    rig.apply(Op::SetClusterVersion(2));
    let put = |rig: &mut Rig, tenant: &str, n: u128| {
        let key = n.to_string();
        rig.apply(Op::PutStart { tenant: tenant.into(), items: vec![start(n, &key, 64)] });
        let hash = KeyHash::of(tenant, key.as_bytes());
        rig.apply(Op::PutEnd { items: vec![PutEndItem::new(PutId(n), hash, 0)] });
    };
    (1..=OBJECTS).for_each(|n| put(&mut rig, "stays", n));
    (1..=200).for_each(|n| put(&mut rig, "goes", OBJECTS + n));
    let remove_all = |tenant: &str| Op::RemoveAll { tenant: tenant.into(), reuse_at: ClusterTime(0) };
    assert_eq!(rig.apply(remove_all("goes")), Response::Removed(200));
    let mut turns = 0;
    while rig.state.objects() > OBJECTS as u64 + 1 {
        turns += 1;
        assert!(turns < 100, "{} objects are left", rig.state.objects());
        put(&mut rig, "again", 2 * OBJECTS + turns);
        assert_eq!(rig.apply(remove_all("again")), Response::Removed(1));
        assert!(rig.sweep(256), "the last one is left");
        if turns == 2 {
            assert_eq!(snapshot(&restore(&snapshot(&rig.state))), snapshot(&rig.state));
        }
    }
    rig.sweep_all(256);
    assert_eq!((rig.state.objects(), rig.used()), (OBJECTS as u64, OBJECTS as u64 * 64));
    assert!(!rig.state.needs_sweep());
}

#[test]
fn tenants_that_are_not_registered_are_bounded_and_count_in_the_memory_of_the_index() {
    const MOST: u128 = 1 << 16;
    for version in [1, 2] {
        let mut rig = Rig::with_stores(&[8 * MIB]);
        rig.apply(Op::SetClusterVersion(version));
        let first = |rig: &mut Rig, put: u128, tenant: &str| {
            let items = vec![start(put, "k", 64)];
            match rig.apply(Op::PutStart { tenant: tenant.into(), items }) {
                Response::PutStarted(started) => started[0].code,
                other => panic!("{other:?}"),
            }
        };
        let one_more = |rig: &mut Rig, n: u128| first(rig, n, &n.to_string());
        let before = rig.state.index_bytes();
        assert_eq!(one_more(&mut rig, 1), Code::Ok);
        let of_the_first = rig.state.index_bytes() - before;
        assert!((2..=MOST).all(|n| one_more(&mut rig, n) == Code::Ok));
        assert_eq!(rig.state.index_bytes() - before, MOST as u64 * of_the_first);
        if version == 1 {
            assert_eq!(one_more(&mut rig, MOST + 1), Code::Ok, "as in the first release");
            continue;
        }
        assert!(of_the_first > 2048);
        assert_eq!(one_more(&mut rig, MOST + 1), Code::TenantNotRegistered);
        assert_eq!(first(&mut rig, MOST + 1, "1"), Code::Ok, "one that is there");
        let quota = Some(Quota { bytes: 0, objects: 9 });
        assert_eq!(rig.code(Op::SetTenant { tenant: "registered".into(), quota }), Code::Ok);
        assert_eq!(first(&mut rig, MOST + 2, "registered"), Code::Ok);
        assert_eq!(one_more(&mut rig, MOST + 3), Code::TenantNotRegistered);
        assert_eq!(rig.revoke(2), Code::Ok);
        assert_eq!(one_more(&mut rig, MOST + 3), Code::Ok, "another has left");
        assert_eq!(one_more(&mut rig, MOST + 4), Code::TenantNotRegistered);
    }
}
