//! Stores that are the memory of one tenant.

use crate::golden::assert_golden;
use crate::support::{Rig, end, endpoint, mount, restore, snapshot, start};
use mc_index::{Endpoint, Fit, Memory, MountStore, OWN_STORES_SINCE, Op, PutStartItem, Response, TenantName};
use mc_types::{Code, STORE_NAME, STORE_TENANT, SegmentEpoch, StoreId};

const MIB: u64 = 1 << 20;

fn name(tenant: &str) -> TenantName {
    TenantName::new(tenant.as_bytes())
}

/// A mount of the store 1, 2, ... with one segment, as the memory of a tenant.
fn owned(store: u64, tenant: &str, bytes: u64) -> MountStore {
    let mut mount = proven(store, bytes);
    mount.endpoints[0].attributes.push((STORE_TENANT.to_owned(), tenant.to_owned()));
    mount
}

/// A mount of the store 1, 2, ... under a name that it has proven.
fn proven(store: u64, bytes: u64) -> MountStore {
    let mount = mount(store, 100 + store, &[bytes]);
    let attributes = vec![(STORE_NAME.to_owned(), mount.name.clone())];
    MountStore { endpoints: vec![Endpoint { attributes, ..endpoint("tcp") }], ..mount }
}

/// The common store 1, and the stores 2 and 3 of tenants a and b.
fn rig() -> Rig {
    let mut rig = Rig::with_stores(&[MIB]);
    rig.apply(Op::SetClusterVersion(OWN_STORES_SINCE));
    assert_eq!(rig.mount(owned(2, "a", MIB)), Code::Ok);
    assert_eq!(rig.mount(owned(3, "b", 2 * MIB)), Code::Ok);
    rig
}

/// Puts an object of a tenant, and returns the stores that it lies on.
fn put(rig: &mut Rig, tenant: &str, put: u128, item: PutStartItem) -> Result<Vec<u64>, Code> {
    let items = vec![item];
    let Response::PutStarted(started) = rig.apply(Op::PutStart { tenant: tenant.to_owned(), items }) else {
        panic!("a put was started");
    };
    if started[0].code != Code::Ok {
        return Err(started[0].code);
    }
    let mut end = end(put, &put.to_string());
    end.key = mc_index::KeyHash::of(tenant, put.to_string().as_bytes());
    let Response::PutEnded(ended) = rig.apply(Op::PutEnd { items: vec![end] }) else {
        panic!("a put was ended");
    };
    assert_eq!(ended[0].code, Code::Ok);
    Ok(started[0].replicas.iter().map(|replica| replica.store.0).collect())
}

fn item(number: u128, size: u64) -> PutStartItem {
    start(number, &number.to_string(), size)
}

#[test]
fn a_store_of_a_tenant_gets_that_tenants_objects_alone() {
    let mut rig = rig();
    let mut filled = [0; 4];
    for number in 0..1000u128 {
        let tenant = ["a", "b", "", "c"][number as usize % 4];
        let mut item = item(number + 1, 4096);
        (item.replicas, item.preferred) = (3, [2, 3, 1].map(StoreId).into_iter().collect());
        let Ok(stores) = put(&mut rig, tenant, number + 1, item) else { continue };
        for store in stores {
            let may = store == 1 || (store, tenant) == (2, "a") || (store, tenant) == (3, "b");
            assert!(may, "store {store} got an object of {tenant:?}");
            filled[store as usize] += 1;
        }
    }
    assert_eq!(
        filled,
        [0, 256, 250, 250],
        "the common store is full, and the others have all of their tenants"
    );
    let bytes = snapshot(&rig.state);
    assert_eq!(restore(&bytes).owner(StoreId(2)), Some(name("a")));
}

#[test]
fn own_and_common_stores_fill_alike() {
    let mut rig = rig();
    let mut filled = [0u64; 4];
    for number in 1..=256u128 {
        for store in put(&mut rig, "b", number, item(number, 4096)).unwrap() {
            filled[store as usize] += 1;
        }
        let (common, own) = (2 * filled[1], filled[3]);
        assert!(common.abs_diff(own) <= 2, "of twice the size: {filled:?}");
    }
}

#[test]
fn other_tenants_find_no_room_and_no_size_in_a_store_that_is_not_theirs() {
    let mut rig = rig();
    assert_eq!(put(&mut rig, "b", 1, item(1, 2 * MIB)), Ok(vec![3]));
    assert_eq!(put(&mut rig, "a", 2, item(2, 2 * MIB)), Err(Code::ObjectTooLarge));
    assert_eq!(
        [rig.state.largest_segment(&name("b")), rig.state.largest_segment(&name("a"))],
        [2 * MIB, MIB]
    );
    assert_eq!(put(&mut rig, "c", 3, item(3, MIB)), Ok(vec![1]));
    assert_eq!(put(&mut rig, "c", 4, item(4, 4096)), Err(Code::NoAvailableHandle));
    assert_eq!(put(&mut rig, "a", 5, item(5, 4096)), Ok(vec![2]));
}

#[test]
fn memories_are_the_stores_that_count_in_them() {
    let rig = rig();
    let outside = |memory, suspects: &[u64]| {
        let suspects: Vec<_> = suspects.iter().copied().map(StoreId).collect();
        let stores = rig.state.stores_outside(memory, &suspects);
        stores.into_iter().map(|store| store.0).collect::<Vec<_>>()
    };
    assert_eq!(outside(Memory::Common, &[3, 9]), [2, 3, 9]);
    assert_eq!(outside(Memory::OwnedBy(name("a")), &[1]), [1, 3]);
    assert_eq!(outside(Memory::OwnedBy(name("c")), &[]), [1, 2, 3]);
    assert_eq!(rig.state.stores_closed_to(&name("a"), &[]), [StoreId(3)]);
    assert_eq!(rig.state.owners().into_iter().collect::<Vec<_>>(), [name("a"), name("b")]);
    let without = rig.state.stores_outside(Memory::OwnedBy(name("b")), &[]);
    assert_eq!(rig.state.usage(&without).capacity, 2 * MIB);
    assert_eq!(rig.state.fit_of(2 * MIB, &rig.state.stores_outside(Memory::Common, &[])), Fit::Full);
}

#[test]
fn units_say_whether_all_of_an_object_lies_on_own_stores() {
    let mut rig = rig();
    let mut both = item(1, 4096);
    both.replicas = 2;
    assert_eq!(put(&mut rig, "a", 1, both).unwrap().len(), 2);
    let mut own = item(2, 4096);
    own.preferred = [StoreId(2)].into_iter().collect();
    assert_eq!(put(&mut rig, "a", 2, own), Ok(vec![2]));
    let is_own = |rig: &Rig, key: &str| {
        rig.state.unit_of(mc_index::KeyHash::of("a", key.as_bytes())).unwrap().is_on_own_stores
    };
    assert_eq!([is_own(&rig, "1"), is_own(&rig, "2")], [false, true]);
    rig.drop_store(1);
    assert!(is_own(&rig, "1"), "the other replica is gone");
}

#[test]
fn the_owner_of_a_mounted_epoch_stays() {
    let mut rig = rig();
    assert_eq!(rig.mount(owned(2, "a", MIB)), Code::Ok);
    for other in [owned(2, "b", MIB), mount(2, 102, &[MIB])] {
        assert_eq!(rig.mount(other), Code::InvalidParams);
    }
    assert_eq!(rig.mount(owned(1, "a", MIB)), Code::InvalidParams, "a common store");
    let next = MountStore { epoch: 200.into(), ..owned(2, "b", MIB) };
    assert_eq!(rig.mount(next), Code::Ok, "another epoch");
    assert_eq!(rig.state.owner(StoreId(2)), Some(name("b")));
}

#[test]
fn before_its_cluster_version_no_store_has_an_owner() {
    let mut rig = Rig::new();
    rig.apply(Op::SetClusterVersion(OWN_STORES_SINCE - 1));
    assert_eq!(rig.mount(owned(1, "a", MIB)), Code::Ok);
    assert_eq!(put(&mut rig, "b", 1, item(1, 4096)), Ok(vec![1]));
    assert_eq!((rig.state.owner(StoreId(1)), rig.state.has_own_stores(&name("a"))), (None, false));
    rig.apply(Op::SetClusterVersion(OWN_STORES_SINCE));
    assert_eq!(rig.state.owner(StoreId(1)), Some(name("a")));
}

#[test]
fn puts_in_flight_count_in_the_memory_that_they_lie_in() {
    let mut rig = rig();
    let in_flight = |rig: &Rig, memory| rig.state.usage(&rig.state.stores_outside(memory, &[])).in_flight;
    let both = |rig: &Rig| [Memory::Common, Memory::OwnedBy(name("a"))].map(|memory| in_flight(rig, memory));
    let mut item = item(1, 4000);
    (item.replicas, item.preferred) = (2, [StoreId(2)].into_iter().collect());
    rig.apply(Op::PutStart { tenant: "a".to_owned(), items: vec![item] });
    assert_eq!(both(&rig), [4032, 4032], "rounded up as it is allocated");
    rig.state = restore(&snapshot(&rig.state));
    assert_eq!(both(&rig), [4032, 4032]);
    rig.revoke(1);
    assert_eq!(both(&rig), [0, 0]);
    assert_eq!(put(&mut rig, "a", 2, start(2, "2", 4000)).map(|stores| stores.len()), Ok(1));
    assert_eq!(both(&rig), [0, 0]);
}

#[test]
fn memory_of_its_own_lets_no_tenant_pin_more_of_the_common_one() {
    let mut rig = rig();
    let limit = rig.state.settings().hard_pin_limit.of(MIB);
    assert!(rig.state.may_pin("b", limit) && !rig.state.may_pin("b", limit + 64));
    rig.drop_store(1);
    assert!(rig.state.may_pin("b", 2 * limit), "its own memory is all there is");
}

#[test]
fn who_mounted_a_store_is_known_after_it_is_gone() {
    let mut rig = rig();
    assert_eq!(rig.mount(proven(4, MIB)), Code::Ok);
    for store in 1..=4 {
        rig.drop_store(store);
    }
    let restored = restore(&snapshot(&rig.state));
    let own = |store, tenant| Some((store, Some(name(tenant))));
    for state in [&rig.state, &restored] {
        let names = [1, 2, 3, 4, 5].map(|store| state.name_and_owner(StoreId(store)));
        assert_eq!(names, [None, own("store-2", "a"), own("store-3", "b"), Some(("store-4", None)), None]);
    }
    let bytes = snapshot(&rig.state);
    assert_eq!(bytes, snapshot(&restored));
    assert_golden("snapshot/last_names.bin", bytes[7], &bytes);

    // The next mount counts, and an earlier version of the cluster knows of none.
    let again = MountStore { epoch: SegmentEpoch(900), ..owned(1, "b", MIB) };
    assert_eq!(rig.mount(again), Code::Ok);
    assert_eq!(rig.state.name_and_owner(StoreId(1)), own("store-1", "b"));
    let mut rig = Rig::with_stores(&[MIB]);
    assert_eq!(rig.mount(proven(4, MIB)), Code::Ok);
    rig.drop_store(4);
    assert_eq!(rig.state.name_and_owner(StoreId(4)), None);
}

#[test]
fn a_tenant_that_mounts_one_id_after_another_does_not_free_those_of_common_stores() {
    let mut rig = rig();
    assert_eq!(rig.mount(proven(4, MIB)), Code::Ok);
    rig.drop_store(4);
    for store in 10..3000 {
        assert_eq!(rig.mount(owned(store, "a", MIB)), Code::Ok);
        rig.drop_store(store);
    }
    assert_eq!(rig.state.name_and_owner(StoreId(4)), Some(("store-4", None)));
    assert_eq!(rig.state.name_and_owner(StoreId(10)), None, "more are not remembered than there is room for");
}
