//! The evictor over the real index.

#[path = "../../../index/tests/support/mod.rs"]
mod support;

mod bounds;
mod own_stores;
mod size_shift;

use mc_eviction::{
    ClearingStep, EvictionBlocked, EvictionGoal, Evictor, Excess, Leases, Scope, Victims, excess,
    tenants_in_excess,
};
use mc_index::{
    Change, Command, EvictItem, GroupId, HashedObject, KeyHash, Memory, ObjectAge, Op, PutEndItem,
    PutStartItem, Quota, RemoveItem, Response, Settings, Stamp, State, TenantName,
};
use mc_types::{ClusterTime, Code, PinAction, PutId, PutMode, StoreId};
use proptest::prelude::*;

use support::model::Model;
use support::steps::{Script, steps};
use support::{Rig, TERM};

const NOW: ClusterTime = ClusterTime(5_000);
const SIZE: u64 = 4096;
const POOL: Scope = Scope::Memory(Memory::Common);

/// A pool with room for `room` objects, an evictor that follows it, and leases.
struct Pool {
    rig: Rig,
    evictor: Evictor,
    leases: Leases,
}

impl Pool {
    fn new(stores: &[u64]) -> Self {
        let rig = Rig::with_stores(stores);
        Self { evictor: Evictor::of(&rig.state), rig, leases: Leases::new() }
    }

    /// Puts objects `keys` in one call.
    fn put(&mut self, keys: std::ops::Range<u128>) {
        let items = keys.clone().map(|n| support::start(n, &n.to_string(), SIZE)).collect();
        self.rig.apply(Op::PutStart { tenant: String::new(), items });
        let items = keys.map(|n| support::end(n, &n.to_string())).collect();
        self.apply(Op::PutEnd { items });
    }

    /// Puts objects `keys`, each in a call of its own.
    fn put_each(&mut self, keys: std::ops::Range<u128>) {
        keys.for_each(|n| self.put(n..n + 1));
    }

    fn put_item(&mut self, tenant: &str, item: PutStartItem) {
        let key = KeyHash::of(tenant, &item.key);
        let end = PutEndItem { key, ..support::end(item.put.0, "") };
        self.rig.apply(Op::PutStart { tenant: tenant.to_owned(), items: vec![item] });
        self.apply(Op::PutEnd { items: vec![end] });
    }

    /// Puts object `n` with a pin.
    fn put_pinned(&mut self, n: u128, pin: PinAction<ClusterTime>) {
        self.put_item("", PutStartItem { pin, ..support::start(n, &n.to_string(), SIZE) });
    }

    /// Puts an object of a tenant into a group; 0 for none.
    fn put_grouped(&mut self, tenant: &str, n: u128, group: u8) {
        let group = (group > 0).then(|| GroupId::of(tenant, &[group]));
        self.put_item(tenant, PutStartItem { group, ..support::start(n, &n.to_string(), SIZE) });
    }

    fn set_quota(&mut self, tenant: &str, quota: Quota) {
        self.rig.apply(Op::SetTenant { tenant: tenant.into(), quota: Some(quota) });
        assert!(!self.evictor.is_outdated(&self.rig.state));
    }

    fn lease(&self, n: u128) {
        assert!(self.leases.grant(PutId(n), 0, ClusterTime(NOW.0 + 1)));
    }

    fn apply(&mut self, op: Op) -> Response {
        let command = self.rig.command(op.clone());
        let response = self.rig.apply(op);
        if let Some(change) = Change::of(&command, &response) {
            self.evictor.follow(&change, &self.rig.state);
        }
        response
    }

    fn hit(&mut self, keys: impl Iterator<Item = u128>) {
        let keys: Vec<_> = keys.map(hash).collect();
        self.evictor.hit(&keys);
    }

    fn choose_of(&mut self, tenant: &str, bytes: u64) -> Victims {
        let scope = Scope::Quota(TenantName::new(tenant.as_bytes()));
        let goal = EvictionGoal { scope, bytes, objects: 0, max: 10 };
        self.evictor.choose(goal, &self.rig.state, &self.leases, NOW, &[])
    }

    fn choose(&mut self, bytes: u64) -> Victims {
        self.choose_without(bytes, &[])
    }

    fn choose_without(&mut self, bytes: u64, suspects: &[StoreId]) -> Victims {
        let want = EvictionGoal { scope: POOL, bytes, objects: 0, max: 1000 };
        self.evictor.choose(want, &self.rig.state, &self.leases, NOW, suspects)
    }

    fn evict(&mut self, bytes: u64) -> Vec<u128> {
        let Victims { items, .. } = self.choose(bytes);
        let codes = self.apply(Op::Evict { items: items.clone(), reuse_at: ClusterTime(0) });
        assert_eq!(codes, Response::Codes(vec![Code::Ok; items.len()]));
        items.iter().map(|item| item.version.0).collect()
    }
}

fn hash(n: u128) -> KeyHash {
    KeyHash::of("", n.to_string().as_bytes())
}

fn versions(chosen: &Victims) -> Vec<u128> {
    chosen.items.iter().map(|item| item.version.0).collect()
}

fn outcome(chosen: &Victims) -> (Vec<u128>, Option<EvictionBlocked>) {
    (versions(chosen), chosen.blocked)
}

#[test]
fn the_oldest_call_goes_first_from_its_tail_and_its_bytes_are_free() {
    let mut pool = Pool::new(&[100 * SIZE]);
    pool.put(1..5);
    pool.put(5..9);
    assert_eq!(pool.evict(2 * SIZE), [4, 3]);
    assert_eq!(pool.rig.used(), 6 * SIZE);
    assert_eq!(pool.evict(3 * SIZE - 1), [2, 1, 8]);
    assert_eq!(pool.rig.version("8"), None);
    assert_eq!(pool.rig.version("7"), Some(7));
}

#[test]
fn a_new_leader_orders_objects_as_they_were_put() {
    let mut pool = Pool::new(&[100 * SIZE]);
    pool.put_each(1..20);
    pool.evictor = Evictor::of(&pool.rig.state);
    assert_eq!(pool.evict(3 * SIZE), [1, 2, 3]);
}

#[test]
fn a_new_leader_knows_what_was_reused_and_when() {
    const EPOCH: u64 = 5 * 60 * 1000;
    let mut pool = Pool::new(&[100 * SIZE]);
    pool.put_each(1..8);
    pool.evictor.set_time(ClusterTime(3 * EPOCH));
    pool.hit(1..2);
    pool.evictor.set_time(ClusterTime(4 * EPOCH));
    pool.hit(3..4);
    pool.hit(3..4);
    let (keys, epoch, once_share) = pool.evictor.take_notes(10, &pool.rig.state).unwrap();
    assert_eq!((&keys[..], epoch), (&[hash(1), hash(3)][..], 5));
    assert_eq!(pool.evictor.take_notes(10, &pool.rig.state), None, "each is noted once in an epoch");
    pool.apply(Op::NoteReuse { keys: vec![hash(1)], epoch: 4, once_share });
    pool.apply(Op::NoteReuse { keys: vec![hash(3)], epoch, once_share });

    pool.evictor = Evictor::of(&pool.rig.state);
    assert_eq!(pool.evict(3 * SIZE), [2, 4, 5], "objects that were seen once go first, while they are many");
    assert_eq!(pool.evict(SIZE), [1], "then the reused one of the earlier epoch");

    pool.put(11..12);
    pool.evictor.set_time(ClusterTime(4 * EPOCH));
    pool.hit(3..4);
    assert_eq!(pool.evictor.take_notes(10, &pool.rig.state), None, "the new leader knows what is noted");
}

#[test]
fn pinned_objects_go_last_or_never() {
    let mut pool = Pool::new(&[100 * SIZE]);
    pool.put_pinned(1, PinAction::Hard);
    pool.put_pinned(2, PinAction::Soft(ClusterTime(NOW.0 + 60_000)));
    pool.put_pinned(3, PinAction::Soft(ClusterTime(1)));
    pool.put(4..5);
    assert_eq!(pool.evict(2 * SIZE), [3, 4], "the soft pin of 3 is over");
    assert_eq!(outcome(&pool.choose(2 * SIZE)), (vec![2], Some(EvictionBlocked::Pinned)));
}

#[test]
fn soft_pinned_objects_stay_until_all_others_were_found_leased() {
    const LEASED: u128 = 200;
    let mut pool = Pool::new(&[400 * SIZE]);
    pool.put_pinned(1, PinAction::Soft(ClusterTime(NOW.0 + 60_000)));
    for n in 2..2 + LEASED {
        pool.put(n..n + 1);
        pool.lease(n);
    }
    let free = 2 + LEASED;
    pool.put(free..free + 1);
    let found = (0..10).map(|_| pool.choose(SIZE)).find(|chosen| *chosen != Victims::default());
    let found = found.expect("within ten choices");
    assert_eq!(outcome(&found), (vec![free], None), "others without a pin may be free");
    let mut last = Vec::new();
    for _ in 0..10 {
        last.extend(versions(&pool.choose(SIZE)));
    }
    assert_eq!(last, [1], "once all others were found leased");
}

#[test]
fn an_object_whose_soft_pin_ends_is_like_the_others_again() {
    let mut pool = Pool::new(&[100 * SIZE]);
    pool.put_pinned(1, PinAction::Soft(ClusterTime(NOW.0 + 60_000)));
    pool.put(2..3);
    assert_eq!(pool.evict(SIZE), [2]);
    pool.put(3..4);
    pool.put(4..5);
    let later = ClusterTime(NOW.0 + 61_000);
    let want = EvictionGoal { scope: POOL, bytes: 2 * SIZE, objects: 0, max: 10 };
    let chosen = pool.evictor.choose(want, &pool.rig.state, &pool.leases, later, &[]);
    assert_eq!(versions(&chosen), [3, 4], "it counts as used when its pin ended");
    let chosen = pool.evictor.choose(want, &pool.rig.state, &pool.leases, later, &[]);
    assert_eq!(outcome(&chosen), (vec![1], Some(EvictionBlocked::Empty)));
}

#[test]
fn a_new_version_has_its_own_pin() {
    let mut pool = Pool::new(&[100 * SIZE]);
    pool.put_pinned(1, PinAction::Hard);
    assert_eq!(pool.choose(SIZE).blocked, Some(EvictionBlocked::Pinned));
    let item =
        PutStartItem { mode: PutMode::Upsert, pin: PinAction::Disable, ..support::start(9, "1", SIZE) };
    pool.put_item("", item);
    assert_eq!(pool.evict(SIZE), [9]);
}

#[test]
fn a_hard_pin_that_the_order_has_not_heard_of_yet_protects() {
    let mut pool = Pool::new(&[100 * SIZE]);
    pool.put_pinned(1, PinAction::Soft(ClusterTime(NOW.0 + 60_000)));
    pool.put(2..3);
    assert_eq!(pool.evict(SIZE), [2], "1 is behind the others by now");
    // The index is ahead of the order.
    let item = PutStartItem { mode: PutMode::Upsert, pin: PinAction::Hard, ..support::start(9, "1", SIZE) };
    pool.rig.apply(Op::PutStart { tenant: String::new(), items: vec![item] });
    pool.rig.apply(Op::PutEnd { items: vec![support::end(9, "1")] });
    assert_eq!(outcome(&pool.choose(SIZE)), (vec![], Some(EvictionBlocked::Pinned)));
}

#[test]
fn a_group_whose_hard_pinned_member_is_gone_can_be_evicted() {
    let mut pool = Pool::new(&[100 * SIZE]);
    let group = Some(GroupId::of("", b"g"));
    for (n, pin) in [(1, PinAction::Preserve), (2, PinAction::Hard)] {
        let item = PutStartItem { pin, group, ..support::start(n, &n.to_string(), SIZE) };
        pool.put_item("", item);
    }
    assert_eq!(pool.choose(1).blocked, Some(EvictionBlocked::Pinned));
    let items = vec![RemoveItem { key: b"2".to_vec(), version: PutId(2), reuse_at: ClusterTime(0) }];
    pool.apply(Op::Remove { tenant: String::new(), items });
    assert_eq!(pool.evict(1), [1]);
}

#[test]
fn hard_pins_of_each_tenant_are_looked_at_in_turn() {
    const PINNED: u128 = 100;
    let mut pool = Pool::new(&[400 * SIZE]);
    pool.set_quota("a", Quota { bytes: 200 * SIZE, objects: 0 });
    for n in 1..=PINNED {
        pool.put_pinned(n, PinAction::Hard);
    }
    // The member that protected a group of the tenant is gone.
    let group = Some(GroupId::of("a", b"g"));
    for (n, pin) in [(PINNED + 1, PinAction::Preserve), (PINNED + 2, PinAction::Hard)] {
        let item = PutStartItem { pin, group, ..support::start(n, &n.to_string(), SIZE) };
        pool.put_item("a", item);
    }
    assert_eq!(pool.choose(1).blocked, Some(EvictionBlocked::Pinned));
    let key = (PINNED + 2).to_string().into_bytes();
    let items = vec![RemoveItem { key, version: PutId(PINNED + 2), reuse_at: ClusterTime(0) }];
    pool.apply(Op::Remove { tenant: "a".into(), items });
    assert_eq!(pool.evict(1), [PINNED + 1]);
}

#[test]
fn marks_that_are_taken_back_are_told() {
    let mut pool = Pool::new(&[100 * SIZE]);
    for n in 1..4 {
        pool.put_grouped("", n, 1);
    }
    assert!(!pool.leases.marks_taken_back());
    let members = pool.rig.state.group(GroupId::of("", &[1])).unwrap().members;
    assert!(pool.leases.grant(members[1].version, 0, ClusterTime(NOW.0 + 1)));
    assert_eq!(pool.choose(1).items, []);
    assert!(pool.leases.marks_taken_back(), "the first member was marked for a moment");
    assert!(!pool.leases.marks_taken_back());
}

#[test]
fn leased_objects_are_passed_over_and_when_all_are_leased_it_says_so() {
    let mut pool = Pool::new(&[100 * SIZE]);
    pool.put_each(1..9);
    pool.lease(1);
    assert!(pool.leases.grant(PutId(2), 0, NOW), "this one has just ended");
    assert_eq!(pool.evict(2 * SIZE), [2, 3]);
    for n in 4..9 {
        pool.lease(n);
    }
    let chosen = pool.choose(SIZE);
    assert_eq!((chosen.items.len(), chosen.blocked), (0, Some(EvictionBlocked::Leased)));
    assert_eq!(pool.evictor.len(), 6, "none is lost to the order");
}

#[test]
fn a_free_object_behind_many_leased_ones_is_found_by_the_next_choices() {
    const LEASED: u128 = 300;
    let mut pool = Pool::new(&[400 * SIZE]);
    for n in 1..=LEASED {
        pool.put(n..n + 1);
        pool.lease(n);
    }
    pool.put(LEASED + 1..LEASED + 2);
    let found: Vec<_> = (0..16).map(|_| outcome(&pool.choose(SIZE))).collect();
    let at =
        found.iter().position(|(found, _)| *found == [LEASED + 1]).expect("within one turn of the leader");
    assert!(found[..at].iter().all(|(_, blocked)| blocked.is_none()), "{found:?}");
    assert_eq!(found.last(), Some(&(vec![], Some(EvictionBlocked::Leased))), "once all were passed over");
}

#[test]
fn candidates_that_were_passed_over_before_the_last_victim_do_not_count() {
    let mut pool = Pool::new(&[400 * SIZE]);
    let (free, last) = ([61, 122], 143);
    for n in 1..last {
        pool.put(n..n + 1);
        assert!(free.contains(&n) || pool.leases.grant(PutId(n), 0, ClusterTime(NOW.0 + 1)));
    }
    assert_eq!(free.map(|_| pool.evict(SIZE)), free.map(|n| vec![n]));
    pool.put(last..last + 1);
    let found = [(); 3].map(|()| outcome(&pool.choose(SIZE)));
    assert_eq!(found, [(vec![], None), (vec![], None), (vec![last], None)]);
}

#[test]
fn a_free_object_is_found_after_objects_that_were_passed_over_have_gone() {
    const LEASED: u128 = 200;
    let mut pool = Pool::new(&[400 * SIZE]);
    for n in 1..=LEASED {
        pool.put(n..n + 1);
        pool.lease(n);
    }
    let blocked = [(); 4].map(|()| pool.choose(SIZE).blocked);
    assert_eq!(blocked, [None, None, None, Some(EvictionBlocked::Leased)], "all were passed over");
    let gone = LEASED / 2 + 1..=LEASED;
    let remove =
        |n: u128| RemoveItem { key: n.to_string().into_bytes(), version: PutId(n), reuse_at: ClusterTime(0) };
    pool.apply(Op::Remove { tenant: String::new(), items: gone.map(remove).collect() });
    pool.put_each(LEASED + 1..LEASED + LEASED / 2 + 1);
    let found = [(); 2].map(|()| outcome(&pool.choose(SIZE)));
    assert_eq!(found, [(vec![], None), (vec![LEASED + 1], None)]);
}

#[test]
fn a_tenant_finds_its_free_object_whatever_the_pool_passed_over() {
    const LEASED: u128 = 100;
    let mut pool = Pool::new(&[400 * SIZE]);
    pool.set_quota("a", Quota { bytes: 200 * SIZE, objects: 0 });
    for n in 1..=2 * LEASED {
        pool.put_grouped(if n <= LEASED { "" } else { "a" }, n, 0);
        pool.lease(n);
    }
    let free = 2 * LEASED + 1;
    pool.put_grouped("a", free, 0);
    // The pool passes over more candidates than the tenant has: those of others, which are older.
    for _ in 0..2 {
        assert_eq!(pool.choose(SIZE), Victims::default());
    }
    let found = [(); 4].map(|()| outcome(&pool.choose_of("a", SIZE)));
    let all_were_passed_over = (vec![], Some(EvictionBlocked::Leased));
    assert_eq!(found, [(vec![], None), (vec![free], None), (vec![], None), all_were_passed_over]);
}

#[test]
fn a_free_object_behind_many_on_a_suspect_store_is_found() {
    let mut pool = Pool::new(&[400 * SIZE]);
    pool.put(1..100);
    assert_eq!(pool.rig.mount(support::mount(2, 102, &[400 * SIZE])), Code::Ok);
    let mut n = 100;
    while pool.rig.state.stores().nth(1).is_some_and(|store| store.objects < 3) {
        pool.put(n..n + 1);
        n += 1;
        assert!(n < 400, "nothing is put on the empty store");
    }
    let mut free = 0;
    for _ in 0..16 {
        let chosen = pool.choose_without(3 * SIZE, &[StoreId(1)]);
        assert!(free < 3 || chosen.items.is_empty(), "{chosen:?}");
        assert!(free == 3 || chosen.blocked != Some(EvictionBlocked::Leased), "{free} found: {chosen:?}");
        free += chosen.items.len();
    }
    assert_eq!(free, 3);
}

#[test]
fn a_chosen_version_is_not_leased_any_more() {
    let mut pool = Pool::new(&[100 * SIZE]);
    pool.put(1..2);
    assert_eq!(versions(&pool.choose(1)), [1]);
    assert!(!pool.leases.grant(PutId(1), 0, ClusterTime(9_000)));
    let none = pool.choose(1);
    assert_eq!((none.items.len(), none.blocked), (0, Some(EvictionBlocked::Empty)), "it is not chosen twice");
}

#[test]
fn objects_whose_eviction_was_refused_are_candidates_again() {
    let mut pool = Pool::new(&[100 * SIZE]);
    pool.put(1..3);
    let chosen = pool.choose(2 * SIZE);
    for item in &chosen.items {
        pool.leases.unmark(item.version);
    }
    pool.evictor.keep(&chosen.items, &pool.rig.state);
    assert_eq!(pool.evict(2 * SIZE).len(), 2);
}

#[test]
fn objects_on_suspect_stores_stay() {
    let mut pool = Pool::new(&[100 * SIZE, 100 * SIZE]);
    pool.put_each(1..41);
    let on_first = pool.rig.state.stores().next().unwrap().objects;
    assert!((1..40).contains(&on_first), "{on_first}");
    let chosen = pool.choose_without(u64::MAX, &[StoreId(1)]);
    assert_eq!((chosen.items.len() as u64, chosen.bytes), (40 - on_first, (40 - on_first) * SIZE));
    assert_eq!(chosen.blocked, Some(EvictionBlocked::Leased));
    assert!(pool.choose_without(u64::MAX, &[StoreId(1), StoreId(2)]).items.is_empty());
}

#[test]
fn objects_of_a_store_that_was_suspect_for_a_moment_keep_their_place() {
    let [mut pool, mut same] = [(); 2].map(|()| {
        let mut pool = Pool::new(&[100 * SIZE, 100 * SIZE]);
        pool.put_each(1..41);
        pool.hit(3..6);
        pool
    });
    let before = versions(&same.choose(u64::MAX));
    let evicted = versions(&pool.choose_without(3 * SIZE, &[StoreId(1)]));
    assert_eq!(evicted.len(), 3);
    let passed = before.iter().position(|n| *n == evicted[2]).unwrap();
    assert!(passed > 2, "colder ones on the suspect store were passed over");
    let other: Vec<_> = before.iter().filter(|n| !evicted.contains(n)).copied().collect();
    assert_eq!(versions(&pool.choose(u64::MAX)), other, "as if nothing had happened");
}

#[test]
fn objects_aside_are_looked_at_again_when_other_stores_count() {
    let mut pool = Pool::new(&[100 * SIZE, 100 * SIZE, 100 * SIZE]);
    pool.put_each(1..61);
    let on =
        |pool: &Pool, store| pool.rig.state.stores().find(|it| it.store == StoreId(store)).unwrap().objects;
    let counts = [on(&pool, 1), on(&pool, 2), on(&pool, 3)];
    let all = |pool: &mut Pool, without: &[u64]| {
        let without: Vec<_> = without.iter().copied().map(StoreId).collect();
        pool.choose_without(u64::MAX, &without).items.len() as u64
    };
    assert_eq!(all(&mut pool, &[1, 2]), counts[2]);
    assert_eq!(all(&mut pool, &[1]), counts[1], "the second is heard again, the first is not");
    assert_eq!(all(&mut pool, &[1]), 0);
    assert_eq!(all(&mut pool, &[]), counts[0]);
}

#[test]
fn a_used_object_outlives_those_put_before_and_after_it() {
    let mut pool = Pool::new(&[100 * SIZE]);
    pool.put_each(1..21);
    pool.hit(5..7);
    assert!(pool.evict(12 * SIZE).iter().all(|n| ![5, 6].contains(n)));
}

#[test]
fn objects_that_a_dropped_store_took_along_leave_the_order() {
    let mut pool = Pool::new(&[10_000 * SIZE, 10_000 * SIZE]);
    for n in 0..4 {
        pool.put(1 + n * 1000..1001 + n * 1000);
    }
    pool.rig.drop_store(1);
    pool.rig.sweep_all(10_000);
    let left = pool.rig.state.objects();
    assert!(left < 3000, "{left}");
    for _ in 0..10 {
        pool.evictor.prune(&pool.rig.state);
    }
    assert!((left..left + left / 8 + 1025).contains(&(pool.evictor.len() as u64)));
    assert_eq!(pool.choose(u64::MAX).items.len() as u64, left.min(1000));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    /// Whatever happened to the index, an evictor that followed it can evict every object but the hard-pinned ones,
    /// each once.
    #[test]
    fn no_object_is_ever_lost_to_the_order(steps in steps(1..120), begin in 0..120usize) {
        let mut state = State::new(Settings::default());
        let (mut model, mut script) = (Model::new(), Script::new());
        let mut evictor = Evictor::of(&state);
        for (at, (step, index)) in steps.iter().zip(1..).enumerate() {
            if at == begin || evictor.is_outdated(&state) {
                evictor = Evictor::of(&state);
            }
            let command = script.command(step, |key| model.version(key));
            let response = state.apply(index, TERM, &command);
            model.check(index, &command, &response, &state);
            if let Some(change) = Change::of(&command, &response) {
                evictor.follow(&change, &state);
            }
        }
        let want = EvictionGoal { scope: POOL, bytes: u64::MAX, objects: 0, max: 1000 };
        let chosen = evictor.choose(want, &state, &Leases::new(), NOW, &[]);
        let mut versions: Vec<_> = chosen.items.iter().map(|item| item.version).collect();
        versions.sort();
        versions.dedup();
        prop_assert_eq!(versions.len(), chosen.items.len());
        // One hard-pinned member, or a put that is about to join, protects a group.
        let group_of = |age: &ObjectAge| age.unit.group.and_then(|group| state.group(group));
        let is_hard = |object: &HashedObject| object.pin.is_hard();
        let joined = |age: &ObjectAge| group_of(age).is_some_and(|group| group.joining > 0);
        let hard = |age: &ObjectAge| match group_of(age) {
            Some(group) => group.members.iter().any(is_hard),
            None => state.with_hash(age.key).any(|object| is_hard(&object)),
        };
        let stay: Vec<_> = state.ages().filter(|age| hard(age) || joined(age)).collect();
        prop_assert_eq!(chosen.items.len(), state.ages().count() - stay.len());
        let blocked = match (stay.iter().any(|age| joined(age) && !hard(age)), stay.is_empty()) {
            (true, _) => EvictionBlocked::Leased,
            (false, false) => EvictionBlocked::Pinned,
            (false, true) => EvictionBlocked::Empty,
        };
        prop_assert_eq!(chosen.blocked, Some(blocked));
        let mut units: Vec<_> =
            stay.iter().map(|age| age.unit.group.map_or(age.key, GroupId::unit).to_u64()).collect();
        units.sort_unstable();
        units.dedup();
        prop_assert_eq!(evictor.len(), units.len());
        // And the index takes all of them, whole groups in one entry.
        let stamp = Stamp { term: TERM, ..Stamp::default() };
        let op = Op::Evict { items: chosen.items.clone(), reuse_at: ClusterTime(0) };
        let codes = state.apply(1000, TERM, &Command { stamp, op });
        prop_assert_eq!(codes, Response::Codes(vec![Code::Ok; chosen.items.len()]));
    }
}

#[test]
fn a_group_goes_as_a_whole_and_a_leased_or_pinned_member_protects_it() {
    let mut pool = Pool::new(&[100 * SIZE]);
    for n in 1..4 {
        pool.put_grouped("", n, 1);
    }
    for n in 4..7 {
        pool.put_grouped("", n, 2);
    }
    pool.put(7..8);
    // One member is leased: the next unit goes, and nothing of the first is marked.
    pool.lease(2);
    let mut evicted = pool.evict(1);
    evicted.sort_unstable();
    assert_eq!(evicted, [4, 5, 6]);
    assert!(pool.leases.grant(PutId(1), 0, NOW) && pool.leases.grant(PutId(3), 0, NOW));
    assert_eq!(pool.evict(1), [7]);
    let chosen = pool.choose(1);
    assert_eq!((chosen.items.len(), chosen.blocked), (0, Some(EvictionBlocked::Leased)));
}

#[test]
fn a_use_of_one_member_renews_its_group_and_a_new_leader_keeps_groups_together() {
    let mut pool = Pool::new(&[100 * SIZE]);
    pool.put_grouped("", 1, 1);
    pool.put_grouped("", 2, 1);
    pool.put_each(3..8);
    pool.evictor.hit(&[GroupId::of("", &[1]).unit()]);
    assert_eq!(pool.evict(1), [3]);
    pool.evictor = Evictor::of(&pool.rig.state);
    assert_eq!(pool.evictor.len(), 5);
    let mut evicted = pool.evict(6 * SIZE);
    evicted.sort_unstable();
    assert_eq!(evicted, [1, 2, 4, 5, 6, 7]);
}

#[test]
fn a_group_that_a_put_is_about_to_join_stays() {
    let mut pool = Pool::new(&[100 * SIZE]);
    pool.put_grouped("", 1, 1);
    let group = Some(GroupId::of("", &[1]));
    let item = PutStartItem { group, ..support::start(2, "2", SIZE) };
    pool.rig.apply(Op::PutStart { tenant: String::new(), items: vec![item] });
    assert_eq!(pool.choose(1).blocked, Some(EvictionBlocked::Leased));
    // The index refuses it, too, whatever the leader thinks.
    let items = vec![EvictItem { key: hash(1), version: PutId(1) }];
    let codes = pool.apply(Op::Evict { items, reuse_at: ClusterTime(0) });
    assert_eq!(codes, Response::Codes(vec![Code::VersionChanged]));
    pool.apply(Op::PutEnd { items: vec![support::end(2, "2")] });
    assert_eq!(pool.evict(1).len(), 2);
}

#[test]
fn a_tenant_with_a_quota_evicts_its_own_and_the_pool_takes_the_oldest_of_all() {
    let mut pool = Pool::new(&[100 * SIZE]);
    let quota = Quota { bytes: 10 * SIZE, objects: 0 };
    pool.set_quota("a", quota);
    for n in 1..4 {
        pool.put_grouped("", n, 0);
    }
    for n in 4..7 {
        pool.put_grouped("a", n, 0);
    }
    pool.put_grouped("", 7, 0);
    let chosen = pool.choose_of("a", SIZE);
    assert_eq!(versions(&chosen), [4]);
    pool.evictor.keep(&chosen.items, &pool.rig.state);
    pool.leases.unmark(PutId(4));
    // By age, across the orders.
    assert_eq!(pool.evict(3 * SIZE), [1, 2, 3]);
    assert_eq!(pool.evict(2 * SIZE), [5, 6]);
    let mut last = pool.evict(2 * SIZE);
    last.sort_unstable();
    assert_eq!(last, [4, 7]);
    assert_eq!(outcome(&pool.choose_of("b", SIZE)), (vec![], Some(EvictionBlocked::Empty)));
    // Another tenant that gets a quota needs an order of its own.
    pool.put_grouped("b", 8, 0);
    pool.rig.apply(Op::SetTenant { tenant: "b".into(), quota: Some(quota) });
    assert!(pool.evictor.is_outdated(&pool.rig.state));
    pool.evictor = Evictor::of(&pool.rig.state);
    assert_eq!(versions(&pool.choose_of("b", SIZE)), [8]);
}

#[test]
fn a_tenant_that_puts_while_it_gets_a_quota_needs_a_new_order() {
    let mut pool = Pool::new(&[100 * SIZE]);
    assert!(!pool.evictor.is_outdated(&pool.rig.state));
    for n in 1..4 {
        pool.put_grouped("a", n, 0);
    }
    let quota = Some(Quota { bytes: 10 * SIZE, objects: 0 });
    pool.rig.apply(Op::SetTenant { tenant: "a".into(), quota });
    pool.put_grouped("a", 4, 0);
    let a = TenantName::new(b"a");
    assert!(!pool.evictor.has_order(&a), "its older objects would stay in the common order");
    assert!(pool.evictor.is_outdated(&pool.rig.state));
    pool.evictor = Evictor::of(&pool.rig.state);
    assert!(!pool.evictor.is_outdated(&pool.rig.state));
    pool.put_grouped("a", 5, 0);
    assert_eq!(versions(&pool.choose_of("a", u64::MAX)), [1, 2, 3, 4, 5]);
}

#[test]
fn a_pool_is_in_excess_whatever_waits_for_the_sweep() {
    let mut pool = Pool::new(&[100 * SIZE]);
    for n in 1..=98 {
        pool.put_grouped("", n, 0);
    }
    pool.put_grouped("a", 99, 0);
    let remove_all = |tenant: &str| Op::RemoveAll { tenant: tenant.into(), reuse_at: ClusterTime(0) };
    pool.rig.apply(remove_all("a"));
    assert!(pool.rig.state.needs_sweep());
    assert_eq!(excess(&pool.rig.state, Memory::Common, &[]), Excess { bytes: 6 * SIZE, objects: 0 });
    pool.rig.apply(remove_all(""));
    assert!(excess(&pool.rig.state, Memory::Common, &[]).is_none(), "the sweep is about to free them");
    let settings = Settings { max_objects: 10, ..Settings::default() };
    pool.rig.apply(Op::SetSettings(settings));
    assert!(excess(&pool.rig.state, Memory::Common, &[]).is_none());
}

#[test]
fn a_tenant_and_the_pool_are_in_excess_by_bytes_and_by_objects() {
    let mut pool = Pool::new(&[1000 * SIZE]);
    pool.set_quota("a", Quota { bytes: 0, objects: 10 });
    for n in 1..11 {
        pool.put_grouped("a", n, 0);
    }
    let expected = Excess { bytes: 0, objects: 1 };
    assert_eq!(
        tenants_in_excess(&pool.rig.state, pool.evictor.take_touched(9)),
        [(TenantName::new(b"a"), expected)]
    );
    assert!(excess(&pool.rig.state, Memory::Common, &[]).is_none());
    pool.rig.apply(Op::SetSettings(Settings { max_objects: 10, ..Settings::default() }));
    assert_eq!(excess(&pool.rig.state, Memory::Common, &[]), expected);
    let max_index_bytes = pool.rig.state.index_bytes();
    pool.rig.apply(Op::SetSettings(Settings { max_index_bytes, ..Settings::default() }));
    assert_eq!(excess(&pool.rig.state, Memory::Common, &[]), expected);
}

#[test]
fn tenants_are_looked_at_when_they_put_when_limits_change_and_by_a_new_leader() {
    let mut pool = Pool::new(&[100 * SIZE]);
    let quota = |objects| Quota { bytes: 0, objects };
    let names = ["a", "b"].map(|tenant| TenantName::new(tenant.as_bytes()));
    for (n, tenant) in [(1, "a"), (2, "b")] {
        pool.set_quota(tenant, quota(10));
        pool.put_grouped(tenant, n, 0);
    }
    assert_eq!(pool.evictor.take_touched(9), names);
    assert_eq!(pool.evictor.take_touched(9), []);
    pool.set_quota("b", quota(1));
    assert_eq!(pool.evictor.take_touched(1), names[..1], "some at a time");
    assert_eq!(pool.evictor.take_touched(9), names[1..]);
    pool.rig.apply(Op::SetSettings(Settings::default()));
    assert!(!pool.evictor.is_outdated(&pool.rig.state));
    assert_eq!(pool.evictor.take_touched(9), names, "the watermarks may be others");
    pool.evictor.touch_tenant(names[1]);
    assert_eq!(pool.evictor.take_touched(9), names[1..]);
    pool.evictor = Evictor::of(&pool.rig.state);
    assert_eq!(pool.evictor.take_touched(9), names);
}

#[test]
fn an_evictor_remembers_no_tenant_that_has_nothing_left() {
    let mut pool = Pool::new(&[1000 * SIZE]);
    let default_quota = Quota { bytes: 0, objects: 100 };
    pool.rig.apply(Op::SetSettings(Settings { default_quota, ..Settings::default() }));
    assert!(!pool.evictor.is_outdated(&pool.rig.state));
    for n in 1..=50 {
        let name = format!("tenant-{n}");
        pool.put_grouped(&name, n, 0);
        let tenant = TenantName::new(name.as_bytes());
        assert_eq!(pool.evictor.take_touched(9), [tenant], "it is looked at once, and no other is");
        assert!(pool.evictor.has_order(&tenant));
        assert_eq!(pool.evict(SIZE), [n]);
        pool.evictor.prune(&pool.rig.state);
        assert!(!pool.evictor.has_order(&tenant) && pool.evictor.is_empty());
    }
    assert_eq!(pool.evictor.orders(), 2, "the common one, and one that all of them had in turn");
    // One that comes back begins again.
    pool.put_grouped("tenant-1", 51, 0);
    assert_eq!(versions(&pool.choose_of("tenant-1", SIZE)), [51]);
}
