//! Stores that are the memory of one tenant: they are mounted with its credential, and hold its objects alone.

use std::collections::BTreeSet;

use mc_client::{Bytes, Client, PutOptions};
use mc_net::Network;
use mc_proto::v1;
use mc_tests::{Cluster, by_hand, until};
use mc_types::{SegmentEpoch, StoreId};
use tonic::{Code, Status};

const SIZE: usize = 100_000;
const OBJECTS: usize = 40;

/// Starts a pool that requires TLS with the common store 1 and the store 2, which has a writer's certificate of tenant a.
async fn pool() -> Cluster {
    let mut cluster = Cluster::builder().stores(2).segment("16mb").tls().prepare();
    let folder = cluster.certificates().expect("a pool with certificates").of("tenant/a/rw/store-2");
    cluster.stores[1].set_arg("--tls-dir", folder.to_str().expect("a path of text"));
    cluster.masters.iter_mut().chain(&mut cluster.stores).for_each(mc_tests::Process::start);
    cluster.ready().await;
    until("both stores are mounted", async || mounted(&cluster).await.len() == 2).await;
    cluster
}

fn network(cluster: &Cluster, identity: &str) -> std::sync::Arc<dyn Network> {
    cluster.certificates().expect("a pool with certificates").network(identity)
}

/// Returns the stores as the leader sees them, in the order of their names.
async fn mounted(cluster: &Cluster) -> Vec<v1::StoreStatus> {
    let status = cluster.status(cluster.leader().await).await;
    let mut stores = status.map(|status| status.stores).unwrap_or_default();
    stores.sort_by(|a, b| a.name.cmp(&b.name));
    stores
}

/// Connects a user of a tenant.
async fn user(cluster: &Cluster, identity: &str) -> Client {
    let client = cluster.client_builder().network(network(cluster, identity)).connect().await.unwrap();
    assert!(client.connected(std::time::Duration::from_secs(60)).await, "{identity} found no leader");
    client
}

/// Puts objects, reads them back, and returns the stores on which they lie.
async fn places(client: &Client, value: &Bytes) -> BTreeSet<StoreId> {
    let mut stores = BTreeSet::new();
    for key in (0..OBJECTS).map(|nth| format!("k{nth}")) {
        client.put(&key, value).await.unwrap();
        assert_eq!(client.get(&key).await.unwrap().as_ref(), Some(value));
        let described = client.describe(&key).await.unwrap().expect("it was put");
        stores.extend(described.replicas.iter().map(|replica| replica.store));
    }
    stores
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_objects_of_a_tenant_lie_on_its_own_store() {
    let cluster = pool().await;
    let (common, own) = (cluster.store_id(0), cluster.store_id(1));
    // Tenant a first: its puts go to the kind of store that is emptier.
    for (identity, expected) in [
        ("tenant/a/rw/w", &[common, own][..]),
        ("tenant/b/rw/w", &[common]),
        ("tenant/default/rw/w", &[common]),
    ] {
        let client = user(&cluster, identity).await;
        let stores = places(&client, &Bytes::from(vec![7; SIZE])).await;
        assert_eq!(stores, expected.iter().copied().collect(), "objects of {identity}");
    }
    // The names of tenants are not for the users of others.
    let leader = cluster.leader().await;
    let names = async |identity: &str| {
        let mut master =
            by_hand::master_over(network(&cluster, identity).as_ref(), cluster.master_address(leader));
        let caller = Some(by_hand::greeted(&mut master).await);
        let status = master.status(v1::StatusRequest { caller }).await.unwrap().into_inner();
        let attributes =
            status.stores.into_iter().flat_map(|store| store.endpoints).flat_map(|it| it.attributes);
        attributes
            .filter(|(name, _)| name == mc_types::STORE_TENANT)
            .map(|(_, tenant)| tenant)
            .collect::<Vec<_>>()
    };
    assert_eq!(names("observer/o").await, ["a"]);
    assert!(names("tenant/b/rw/w").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenants_credential_is_good_for_its_own_stores_alone() {
    let cluster = pool().await;
    let leader = cluster.leader().await;
    let [common, own] = <[v1::StoreStatus; 2]>::try_from(mounted(&cluster).await).expect("two stores");
    let greeted = async |identity: &str| {
        let network = network(&cluster, identity);
        let mut master = by_hand::master_over(network.as_ref(), cluster.master_address(leader));
        let caller = Some(by_hand::greeted(&mut master).await);
        (master, caller)
    };
    let refused = |status: Status, says: &str| {
        assert!(status.code() == Code::PermissionDenied && status.message().contains(says), "{status}");
    };
    // Neither a store of all tenants, nor one of another tenant, though the name is covered.
    let other = "tenant alone";
    for (identity, store, says) in [
        ("tenant/a/rw/store-1", &common, other),
        ("tenant/a/rw/store-2", &common, "may speak for stores named"),
        ("tenant/b/rw/store-2", &own, other),
        ("tenant/a/rw/other", &own, "may speak for stores named"),
        ("tenant/a/ro/store-2", &own, "may not call"),
    ] {
        let (mut master, caller) = greeted(identity).await;
        let (store_id, epoch) = (store.store_id.clone(), store.epoch.clone());
        let gone = v1::UnmountStoreRequest {
            caller: caller.clone(),
            store_id: store_id.clone(),
            epoch: epoch.clone(),
        };
        refused(master.unmount_store(gone).await.unwrap_err(), says);

        let beat = v1::StoreHeartbeat { caller: caller.clone(), store_id, epoch, ..Default::default() };
        let beat = match master.heartbeat(futures::stream::iter([beat])).await {
            Ok(replies) => replies.into_inner().message().await.unwrap_err(),
            Err(status) => status,
        };
        refused(beat, says);

        let mount = v1::MountStoreRequest {
            caller,
            store_id: store.store_id.clone(),
            name: store.name.clone(),
            epoch: SegmentEpoch::random().to_bytes().to_vec().into(),
            grant_key: vec![7; 32].into(),
            endpoints: store.endpoints.clone(),
            segment_bytes: vec![1 << 20],
            ..Default::default()
        };
        refused(master.mount_store(mount).await.unwrap_err(), says);
    }
    let after = mounted(&cluster).await;
    let epochs = |stores: &[v1::StoreStatus]| stores.iter().map(|it| it.epoch.clone()).collect::<Vec<_>>();
    assert_eq!(epochs(&after), epochs(&[common, own]), "both are mounted as before");
}

/// Puts as many objects as the two stores hold three times over, one after the other.
async fn flood(client: &Client, value: &Bytes) {
    for nth in 0..3 * (32 << 20) / SIZE {
        client.put(&format!("f{nth}"), value).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_memory_makes_room_for_those_who_may_use_it() {
    let mut cluster = pool().await;
    let own = cluster.store_id(1);
    let (a, b) = (user(&cluster, "tenant/a/rw/w").await, user(&cluster, "tenant/b/rw/w").await);
    let value = Bytes::from(vec![7; SIZE]);
    // Not read, so that they are the first to go where others need room.
    let mut kept = Vec::new();
    for key in (0..OBJECTS).map(|nth| format!("k{nth}")) {
        a.put(&key, &value).await.unwrap();
        let described = a.describe(&key).await.unwrap().expect("it was put");
        if described.replicas.iter().all(|replica| replica.store == own) {
            kept.push(key);
        }
    }
    assert!(!kept.is_empty());

    // Tenant b finds room, and none of it is where only objects of tenant a may lie.
    flood(&b, &value).await;
    for key in &kept {
        assert_eq!(a.get(key).await.unwrap().as_ref(), Some(&value), "{key} was evicted for another tenant");
    }
    // Tenant a finds room on both, also for two replicas.
    flood(&a, &value).await;
    let twice = PutOptions::default().with_replicas(2);
    for nth in 0..2 * (16 << 20) / SIZE {
        a.put_with(format!("t{nth}"), &value, &twice).await.unwrap();
    }
    // Once the common store is gone, its own one is full of objects that had a replica there.
    cluster.stores[0].terminate().await;
    until("the common store is gone", async || mounted(&cluster).await.len() == 1).await;
    until("room is made for further objects", async || a.put("k", &value).await.is_ok()).await;
    flood(&a, &value).await;
    let why = b.put("k", &value).await.unwrap_err().to_string();
    assert!(why.contains("no store can take the put"), "{why}");
}
