//! Stores that are the memory of one tenant.

use mc_eviction::{EvictionBlocked, EvictionGoal, Evictor, Excess, Scope, Victims, excess};
use mc_index::{
    Endpoint, GroupId, Memory, MountStore, OWN_STORES_SINCE, Op, PutStartItem, Quota, Settings, TenantName,
};
use mc_types::{ClusterTime, Code, PutId, PutMode, STORE_TENANT, StoreId};

use super::{NOW, POOL, Pool, SIZE, outcome, support, versions};

const COMMON: u64 = 1;
const OWN: u64 = 2;
const ROOM: u64 = 100;

fn tenant() -> TenantName {
    TenantName::new(b"a")
}

fn own() -> Memory {
    Memory::OwnedBy(tenant())
}

/// The common store 1, and stores of tenant a from 2.
fn pool_with(own: u64) -> Pool {
    let mut pool = Pool::new(&[ROOM * SIZE]);
    pool.rig.apply(Op::SetClusterVersion(OWN_STORES_SINCE));
    (0..own).for_each(|n| mount_own(&mut pool, OWN + n));
    pool
}

fn pool() -> Pool {
    pool_with(1)
}

fn mount_own(pool: &mut Pool, store: u64) {
    let attributes = vec![(STORE_TENANT.to_owned(), "a".to_owned())];
    let endpoints = vec![Endpoint { attributes, ..support::endpoint("tcp") }];
    let mount = MountStore { endpoints, ..support::mount(store, 100 + store, &[ROOM * SIZE]) };
    assert_eq!(pool.rig.mount(mount), Code::Ok);
}

impl Pool {
    fn put_on(&mut self, store: u64, item: PutStartItem) {
        let key = item.key.clone();
        self.put_item("a", PutStartItem { preferred: [StoreId(store)].into_iter().collect(), ..item });
        let object = self.rig.state.get("a", &key).expect("it was put");
        assert!(object.replicas.iter().any(|replica| replica.store == StoreId(store)), "{object:?}");
    }

    /// Puts objects of tenant a with one replica each.
    fn put_all_on(&mut self, store: u64, objects: std::ops::Range<u128>) {
        objects.for_each(|n| self.put_on(store, item(n)));
    }

    /// Chooses in a scope, as if some stores were suspect.
    fn choose_for(&mut self, scope: Scope, bytes: u64, objects: u64, suspects: &[StoreId]) -> Victims {
        let without = match scope {
            Scope::Memory(memory) => self.rig.state.stores_outside(memory, suspects),
            Scope::Quota(_) => Vec::new(),
        };
        let want = EvictionGoal { scope, bytes, objects, max: 1000 };
        self.evictor.choose(want, &self.rig.state, &self.leases, NOW, &without)
    }

    fn choose_own(&mut self, bytes: u64) -> Victims {
        self.choose_for(Scope::Memory(own()), bytes, 0, &[])
    }

    fn choose_common(&mut self, bytes: u64) -> Victims {
        self.choose_for(POOL, bytes, 0, &[])
    }

    /// Returns the victims of a new leader that evicts all: in the common stores, and in those of the tenant.
    fn after_restart(&self) -> [Vec<u128>; 2] {
        let rig = support::Rig { state: self.rig.state.clone(), suspects: Vec::new(), ..self.rig };
        let mut pool = Pool { evictor: Evictor::of(&rig.state), rig, leases: mc_eviction::Leases::new() };
        [versions(&pool.choose_common(u64::MAX)), versions(&pool.choose_own(u64::MAX))]
    }
}

fn item(n: u128) -> PutStartItem {
    support::start(n, &n.to_string(), SIZE)
}

/// A new version of the object `key`.
fn upsert(n: u128, key: u128) -> PutStartItem {
    PutStartItem { mode: PutMode::Upsert, ..support::start(n, &key.to_string(), SIZE) }
}

fn grouped(n: u128) -> PutStartItem {
    PutStartItem { group: Some(GroupId::of("a", b"g")), ..item(n) }
}

fn sorted(mut versions: Vec<u128>) -> Vec<u128> {
    versions.sort_unstable();
    versions
}

#[test]
fn each_memory_evicts_its_own_objects_in_the_order_of_use() {
    let mut pool = pool();
    pool.put_all_on(OWN, 1..3);
    pool.put_all_on(COMMON, 3..5);
    pool.put_all_on(OWN, 5..8);
    pool.evictor.hit(&[mc_index::KeyHash::of("a", b"1")]);
    assert_eq!(pool.after_restart(), [vec![3, 4], vec![1, 2, 5, 6, 7]]);
    let empty = Some(EvictionBlocked::Empty);
    assert_eq!(versions(&pool.choose_own(2 * SIZE)), [2, 5]);
    assert_eq!(outcome(&pool.choose_common(u64::MAX)), (vec![3, 4], empty));
    let chosen = pool.choose_own(u64::MAX);
    assert_eq!((chosen.blocked, chosen.bytes), (empty, 3 * SIZE));
    assert_eq!(sorted(versions(&chosen)), [1, 6, 7]);
    let other = Scope::Memory(Memory::OwnedBy(TenantName::new(b"b")));
    assert_eq!(outcome(&pool.choose_for(other, SIZE, 0, &[])), (vec![], empty));
}

#[test]
fn a_pool_that_is_short_of_objects_alone_evicts_those_on_all_stores() {
    let mut pool = pool();
    pool.put_all_on(OWN, 1..3);
    pool.put_all_on(COMMON, 3..5);
    pool.put_all_on(OWN, 5..6);
    let chosen = pool.choose_for(POOL, 0, 3, &[]);
    assert_eq!((versions(&chosen), chosen.bytes), (vec![1, 2, 3], SIZE), "bytes on own stores free no room");
    let rest = outcome(&pool.choose_for(POOL, 0, u64::MAX, &[]));
    assert_eq!(rest, (vec![4, 5], Some(EvictionBlocked::Empty)));
}

#[test]
fn a_quota_counts_objects_on_all_stores() {
    let mut pool = pool();
    pool.set_quota("a", Quota { bytes: 50 * SIZE, objects: 0 });
    pool.put_all_on(OWN, 1..2);
    pool.put_all_on(COMMON, 2..4);
    pool.put_all_on(OWN, 4..5);
    let chosen = pool.choose_of("a", 3 * SIZE);
    assert_eq!((versions(&chosen), chosen.bytes), (vec![1, 2, 3], 3 * SIZE));
    assert_eq!(outcome(&pool.choose_of("a", u64::MAX)), (vec![4], Some(EvictionBlocked::Empty)));
}

#[test]
fn a_quota_finds_its_free_object_whatever_its_memory_passed_over() {
    const LEASED: u128 = 40;
    let mut pool = pool();
    pool.set_quota("a", Quota { bytes: 500 * SIZE, objects: 0 });
    pool.put_all_on(OWN, 1..LEASED + 1);
    pool.put_all_on(COMMON, LEASED + 1..2 * LEASED + 1);
    (1..=2 * LEASED).for_each(|n| assert!(pool.leases.grant(PutId(n), 0, ClusterTime(NOW.0 + 1))));
    let free = 2 * LEASED + 1;
    pool.put_all_on(COMMON, free..free + 1);
    let leased = (vec![], Some(EvictionBlocked::Leased));
    assert_eq!(outcome(&pool.choose_own(SIZE)), leased);
    let found = [(); 4].map(|()| outcome(&pool.choose_of("a", SIZE)));
    assert_eq!(found, [(vec![], None), (vec![free], None), (vec![], None), leased]);
}

#[test]
fn orders_of_own_stores_do_not_depend_on_quotas() {
    let mut pool = pool();
    pool.put_all_on(OWN, 1..3);
    assert_eq!(pool.evictor.take_touched(9), [tenant()], "it may have a quota");
    let quota = |bytes| Op::SetTenant { tenant: "a".into(), quota: Some(Quota { bytes, objects: 0 }) };
    pool.rig.apply(quota(50 * SIZE));
    assert!(pool.evictor.is_outdated(&pool.rig.state), "objects may be in the common order");
    pool.evictor = Evictor::of(&pool.rig.state);
    assert_eq!(pool.evictor.take_touched(9), [tenant()]);
    // The tenant has no order for its quota, and needs none.
    for bytes in [60 * SIZE, 70 * SIZE] {
        pool.rig.apply(quota(bytes));
        assert!(!pool.evictor.is_outdated(&pool.rig.state) && !pool.evictor.has_order(&tenant()));
        assert_eq!(pool.evictor.take_touched(9), [tenant()]);
    }
    assert_eq!(versions(&pool.choose_of("a", SIZE)), [1]);
    // It has had its quota all the time, so that this object is not mistaken for an older one.
    pool.rig.apply(quota(80 * SIZE));
    pool.put_all_on(COMMON, 3..4);
    assert!(pool.evictor.has_order(&tenant()) && !pool.evictor.is_outdated(&pool.rig.state));
    assert_eq!(versions(&pool.choose_of("a", u64::MAX)), [2, 3]);

    pool.put_all_on(OWN, 4..5);
    pool.rig.apply(quota(0));
    pool.evictor.prune(&pool.rig.state);
    assert!(!pool.evictor.is_outdated(&pool.rig.state), "no order for a quota is left");
    pool.put_all_on(COMMON, 5..6);
    pool.rig.apply(quota(50 * SIZE));
    assert!(pool.evictor.is_outdated(&pool.rig.state), "the last one is in the common order");
}

#[test]
fn an_object_moves_to_the_order_of_its_latest_version() {
    for quota in [false, true] {
        let mut pool = pool();
        if quota {
            pool.set_quota("a", Quota { bytes: 50 * SIZE, objects: 0 });
        }
        pool.put_all_on(OWN, 1..4);
        pool.put_on(COMMON, upsert(11, 1));
        pool.put_all_on(COMMON, 4..7);
        pool.put_on(OWN, upsert(14, 4));
        assert_eq!(pool.evictor.len(), 6);
        assert_eq!(pool.after_restart().map(sorted), [vec![5, 6, 11], vec![2, 3, 14]]);
        assert_eq!(versions(&pool.choose_common(1)), [5], "an upsert is a use");
        assert_eq!(versions(&pool.choose_own(1)), [2], "an upsert is a use");
        assert_eq!(sorted(versions(&pool.choose_common(u64::MAX))), [6, 11]);
        assert_eq!(sorted(versions(&pool.choose_own(u64::MAX))), [3, 14]);
        assert!(pool.evictor.is_empty());
    }
}

#[test]
fn an_object_that_comes_back_after_its_own_store_is_one_of_the_pool() {
    let mut pool = pool();
    pool.put_all_on(OWN, 1..3);
    pool.rig.drop_store(OWN);
    pool.rig.sweep_all(100);
    assert!(!pool.rig.state.has_units());
    pool.put_on(COMMON, upsert(11, 1));
    assert_eq!(versions(&pool.choose_common(u64::MAX)), [11]);
}

#[test]
fn a_group_is_in_the_own_order_until_a_member_joins_on_a_common_store() {
    let mut pool = pool();
    pool.put_on(OWN, grouped(1));
    pool.put_on(OWN, grouped(2));
    assert!(pool.choose_common(SIZE).items.is_empty());
    assert_eq!(pool.after_restart().map(sorted), [vec![], vec![1, 2]]);
    pool.put_on(COMMON, grouped(3));
    pool.put_on(OWN, grouped(4));
    assert!(pool.choose_own(SIZE).items.is_empty(), "it stays in the shared order");
    assert_eq!(pool.after_restart().map(sorted), [vec![1, 2, 3, 4], vec![]]);
    let chosen = pool.choose_common(1);
    assert_eq!((sorted(versions(&chosen)), chosen.bytes), (vec![1, 2, 3, 4], SIZE));
    // Its eviction is refused: all members are taken back, and the first does not say where.
    chosen.items.iter().for_each(|item| pool.leases.unmark(item.version));
    pool.evictor.keep(&chosen.items, &pool.rig.state);
    assert_eq!(pool.evictor.len(), 1);
    assert_eq!(versions(&pool.choose_common(1)).len(), 4);
}

#[test]
fn a_unit_whose_common_part_is_lost_moves_to_the_own_order() {
    for quota in [false, true] {
        let mut pool = pool();
        if quota {
            pool.set_quota("a", Quota { bytes: 500 * SIZE, objects: 0 });
        }
        pool.put_on(COMMON, PutStartItem { replicas: 2, ..item(1) });
        pool.put_on(OWN, grouped(2));
        pool.put_on(COMMON, grouped(3));
        assert!(pool.choose_own(u64::MAX).items.is_empty());
        pool.rig.drop_store(COMMON);
        pool.rig.sweep_all(100);
        assert!(pool.choose_common(u64::MAX).items.is_empty());
        assert_eq!(sorted(versions(&pool.choose_own(u64::MAX))), [1, 2]);
    }
}

#[test]
fn objects_on_a_suspect_own_store_are_set_aside_and_come_back() {
    let mut pool = pool_with(2);
    let memory = Scope::Memory(own());
    let suspect = [StoreId(OWN)];
    pool.put_all_on(OWN, 1..4);
    pool.put_all_on(OWN + 1, 4..6);
    let leased = Some(EvictionBlocked::Leased);
    assert_eq!(versions(&pool.choose_for(memory, SIZE, 0, &suspect)), [4]);
    assert_eq!(outcome(&pool.choose_for(memory, u64::MAX, 0, &suspect)), (vec![5], leased));
    assert_eq!(outcome(&pool.choose_for(memory, SIZE, 0, &suspect)), (vec![], leased));
    assert_eq!(
        outcome(&pool.choose_common(SIZE)).1,
        Some(EvictionBlocked::Empty),
        "none of its own is aside"
    );
    assert_eq!(versions(&pool.choose_for(memory, SIZE, 0, &[])), [1], "as if nothing had happened");
    // All stores count in a quota, and for the number of objects.
    assert_eq!(versions(&pool.choose_for(memory, SIZE, 0, &suspect)), []);
    assert_eq!(versions(&pool.choose_of("a", SIZE)), [2]);
    assert_eq!(versions(&pool.choose_for(memory, SIZE, 0, &suspect)), []);
    assert_eq!(versions(&pool.choose_for(POOL, 0, 1, &suspect)), [3]);
    assert!(pool.evictor.is_empty());
}

#[test]
fn a_new_leader_has_the_same_orders() {
    let mut pool = pool();
    pool.set_quota("a", Quota { bytes: 500 * SIZE, objects: 0 });
    for n in 1..30 {
        match n % 5 {
            0 => pool.put_on(COMMON, PutStartItem { replicas: 2, ..item(n) }),
            1 => pool.put_grouped("b", n, 0),
            2 => pool.put_on(COMMON, item(n)),
            _ => pool.put_on(OWN, item(n)),
        }
    }
    let quota: Vec<u128> = (1..30).filter(|n| n % 5 != 1).collect();
    for restarted in [false, true] {
        if restarted {
            pool.evictor = Evictor::of(&pool.rig.state);
        }
        let own = pool.choose_own(u64::MAX);
        let (expected, shared): (Vec<_>, Vec<_>) = (1..30).partition(|n| [3, 4].contains(&(n % 5)));
        assert_eq!(versions(&own), expected);
        let common = pool.choose_common(u64::MAX);
        assert_eq!(versions(&common), shared);
        for chosen in [own, common] {
            chosen.items.iter().for_each(|item| pool.leases.unmark(item.version));
        }
        pool.evictor = Evictor::of(&pool.rig.state);
        let of_quota = pool.choose_for(Scope::Quota(tenant()), u64::MAX, 0, &[]);
        assert_eq!(versions(&of_quota), quota);
        of_quota.items.iter().for_each(|item| pool.leases.unmark(item.version));
    }
}

#[test]
fn each_memory_is_in_excess_by_its_own_bytes_and_the_pool_by_all_objects() {
    let mut pool = pool();
    pool.put_all_on(OWN, 1..99);
    let of = |pool: &Pool, memory| {
        let state = &pool.rig.state;
        excess(state, memory, &state.stores_outside(memory, &[]))
    };
    assert_eq!(of(&pool, own()), Excess { bytes: 6 * SIZE, objects: 0 });
    assert!(of(&pool, Memory::Common).is_none());
    pool.rig.apply(Op::SetSettings(Settings { max_objects: 90, ..Settings::default() }));
    let above = of(&pool, Memory::Common);
    assert!(above.bytes == 0 && above.objects > 8, "{above:?}");
    assert_eq!(of(&pool, own()).objects, 0);
    pool.rig.apply(Op::RemoveAll { tenant: "a".into(), reuse_at: ClusterTime(0) });
    assert!(
        of(&pool, own()).is_none() && of(&pool, Memory::Common).is_none(),
        "the sweep is about to free them"
    );
}
