//! Tenants that know each other's ids.

use mc_index::PutStartItem;
use mc_types::{ClusterTime, Code, PutId};
use tokio_util::sync::CancellationToken;

use super::mount;
use super::upgrade::lone_leader;
use crate::leader::{Holder, Preference};

#[tokio::test(flavor = "multi_thread")]
async fn a_put_is_not_revoked_in_the_name_of_another_tenant() {
    // Given a put of a tenant.
    let (leader, _cluster) = lone_leader(CancellationToken::new()).await;
    leader.stores.mount(mount(1, &[], &[1 << 20])).await.unwrap();
    let (ours, unknown) = (PutId(1), PutId(2));
    let items = vec![PutStartItem::new(ours, b"key", 64, ClusterTime(u64::MAX / 4))];
    let started = leader
        .objects
        .put_start("a", |_| Ok(items), &[1], &Preference::default(), Holder::Plain)
        .await
        .unwrap();
    assert_eq!(started.puts[0].0, Code::Ok);
    let in_flight = || leader.coordinator.read(|applied| applied.state.put(ours).is_some());

    // When another tenant revokes it, the answer is that to an unknown put, and it stays.
    for tenant in ["b", ""] {
        let codes = leader.objects.put_revoke(tenant, vec![unknown, ours]).await.unwrap();
        assert_eq!(codes, [Code::Ok; 2], "`{tenant}`");
        assert!(in_flight(), "`{tenant}`");
    }

    // Its own tenant revokes it.
    assert_eq!(leader.objects.put_revoke("a", vec![ours, unknown]).await.unwrap(), [Code::Ok; 2]);
    assert!(!in_flight());
}
