//! Quotas of tenants, and caps of the whole pool.

use std::time::Duration;

use mc_client::{Admin, ByteSize, Client, Code, PinAction, Put, PutOptions, Quota};
use mc_tests::{Cluster, until, value};

const MIB: u64 = 1 << 20;

fn key(n: usize) -> String {
    format!("key-{n}")
}

fn big(n: usize) -> Vec<u8> {
    value(&key(n), 1, MIB as usize)
}

fn options() -> PutOptions {
    PutOptions::default().with_deadline(Duration::from_secs(10))
}

async fn tenant(cluster: &Cluster, name: &str) -> Client {
    let client = cluster.client_builder().tenant(name).local_cache(ByteSize(0)).connect().await;
    client.expect("the settings are right")
}

async fn present(client: &Client, keys: std::ops::Range<usize>) -> usize {
    let keys: Vec<_> = keys.map(key).collect();
    let found = client.batch_peek(&keys).await;
    found.into_iter().filter(|found| found.as_ref().unwrap().is_there()).count()
}

#[tokio::test]
async fn a_tenant_at_its_quota_evicts_its_own_objects_and_leaves_those_of_others_alone() {
    let mut cluster = Cluster::builder().masters(3).stores(2).segment("64mb").start().await;
    let admin = Admin::connect(&cluster.addresses()).await.unwrap();
    let (red, other) = (tenant(&cluster, "red").await, cluster.client().await);
    for n in 0..20 {
        assert_eq!(other.put_with(key(n), &big(n), &options()).await.unwrap(), Put::Stored);
    }
    admin.set_tenant("red", Quota::default().with_bytes(ByteSize(10 * MIB))).await.unwrap();
    for n in 0..40 {
        if n == 20 {
            let leader = cluster.leader().await;
            cluster.masters[leader].kill9();
            cluster.masters[leader].start();
        }
        assert_eq!(red.put_with(key(n), &big(n), &options()).await.unwrap(), Put::Stored, "put {n}");
        let tenants = admin.tenants().await.unwrap();
        let it = tenants.iter().find(|tenant| tenant.name == "red").expect("it is registered");
        assert!(it.bytes.0 + it.bytes_in_flight.0 <= 10 * MIB, "{it:?}");
    }
    for n in 0..20 {
        let found = other.get(key(n)).await.unwrap();
        assert!(
            found.as_deref() == Some(&big(n)[..]),
            "object {n} of another tenant was evicted, or changed"
        );
    }
    let left = present(&red, 0..40).await;
    assert!((7..=10).contains(&left), "{left} MiB of a quota of 10 are in use");
    assert_eq!(red.get(key(39)).await.unwrap().as_deref(), Some(&big(39)[..]));
    assert_eq!(red.get(key(0)).await.unwrap(), None);

    // Everything that is left is read, so nothing of the tenant can go.
    let refusal = loop {
        let keys: Vec<_> = (0..60).map(key).collect();
        red.batch_exist(&keys).await;
        match red.put_with(format!("more-{left}"), &value("more", 1, 4 * MIB as usize), &options()).await {
            Ok(_) => assert!(red.remove(format!("more-{left}"), true).await.unwrap()),
            Err(error) => break error,
        }
    };
    assert_eq!(refusal.code, Code::TenantQuotaExceeded, "{refusal}");
    assert!(!refusal.is_unknown() && refusal.why.contains("quota"), "{refusal}");
    let too_large = red.put_with("large", &value("large", 1, 11 * MIB as usize), &options()).await;
    let refusal = too_large.unwrap_err();
    assert_eq!(refusal.code, Code::TenantQuotaExceeded);
    assert!(refusal.why.contains("smaller than the object"), "{refusal}");

    // Half of a quota may be hard-pinned.
    let pinned = options().with_pin(PinAction::Hard);
    admin.set_tenant("blue", Quota::default().with_bytes(ByteSize(4 * MIB))).await.unwrap();
    let blue = tenant(&cluster, "blue").await;
    for n in 0..2 {
        assert_eq!(blue.put_with(key(n), &big(n), &pinned).await.unwrap(), Put::Stored);
    }
    assert_eq!(blue.put_with(key(2), &big(2), &pinned).await.unwrap_err().code, Code::NoAvailableHandle);

    assert_eq!(admin.remove_tenant("red").await.unwrap_err().code, Code::TenantNotEmpty);
    assert!(red.remove_all(true).await.unwrap().objects >= 7);
    until("nothing of the tenant is left", async || admin.remove_tenant("red").await.is_ok()).await;
    assert_eq!(admin.remove_tenant("red").await.unwrap_err().code, Code::TenantNotRegistered);
}

#[tokio::test]
async fn a_cluster_of_registered_tenants_refuses_others_and_a_default_quota_binds_all() {
    let cluster = Cluster::builder().masters(1).segment("64mb").start().await;
    let admin = Admin::connect(&cluster.addresses()).await.unwrap();
    admin.set_config("tenants", "registered").await.unwrap();
    let (red, nobody) = (tenant(&cluster, "red").await, cluster.client().await);
    let refusal = red.put("k", b"value").await.unwrap_err();
    assert_eq!(refusal.code, Code::TenantNotRegistered);
    assert!(refusal.why.contains("mcctl tenants set"), "{refusal}");
    assert_eq!(nobody.put("k", b"value").await.unwrap(), Put::Stored);
    admin.set_tenant("red", Quota::default()).await.unwrap();
    assert_eq!(red.put("k", b"value").await.unwrap(), Put::Stored);

    admin.set_config("tenants", "any").await.unwrap();
    admin.set_config("default-quota-objects", "5").await.unwrap();
    let blue = tenant(&cluster, "blue").await;
    for n in 0..20 {
        assert_eq!(blue.put(key(n), b"value").await.unwrap(), Put::Stored, "put {n}");
    }
    let left = present(&blue, 0..20).await;
    assert!((3..=5).contains(&left), "{left} objects of a quota of 5 are there");
    // A tenant with a quota of its own is not bound by the default one.
    for n in 0..20 {
        assert_eq!(red.put(key(n), b"value").await.unwrap(), Put::Stored);
    }
    assert_eq!(present(&red, 0..20).await, 20);
}

#[tokio::test]
async fn a_pool_at_its_cap_of_objects_evicts_and_goes_on() {
    let cluster = Cluster::builder().masters(1).segment("64mb").start().await;
    let admin = Admin::connect(&cluster.addresses()).await.unwrap();
    admin.set_config("max-objects", "100").await.unwrap();
    let client = cluster.client().await;
    for n in 0..300 {
        assert_eq!(client.put(key(n), b"value").await.unwrap(), Put::Stored, "put {n}");
    }
    let left = present(&client, 0..300).await;
    assert!((80..=100).contains(&left), "{left} objects of at most 100 are there");
    let refused = admin.set_config("max-index-memory", "-1").await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidParams);
}
