//! Administration of who is let in.

use std::time::{Duration, SystemTime};

use mc_client::{ByteSize, Code, Outcome, Principal, PrincipalChange, Quota, TenantRules, TlsLevel};

use crate::support::{Cluster, Fault, On};

const NAME: &str = "tenant/a/rw/engine";

#[tokio::test]
async fn a_principal_is_added_changed_and_forgotten() {
    let cluster = Cluster::start(1);
    cluster.world.lock().security.tls_level = 1;
    let admin = cluster.client().await.admin();
    let expires = SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000_000);
    let change = PrincipalChange::default().with_certificates(["spiffe://k8s/a"]).with_expiry(Some(expires));
    admin.add_principal(NAME, change.clone()).await.unwrap();
    let again = admin.add_principal(NAME, change).await.unwrap_err();
    assert_eq!((again.code, again.outcome), (Code::InvalidParams, Outcome::Definite));

    let first = admin.renew_token(NAME).await.unwrap();
    let second = admin.renew_token(NAME).await.unwrap();
    assert_ne!(first, second);
    assert_eq!(cluster.world.lock().security.principals[NAME].1, second.hash().0, "the hash alone");
    admin.deny_principal(NAME).await.unwrap();
    let security = admin.security().await.unwrap();
    let [Principal { name, has_token: true, certificates, expires: Some(until), denied: true, .. }] =
        &security.principals[..]
    else {
        panic!("{security:?}")
    };
    assert_eq!(
        (name.as_str(), &certificates[..], *until),
        (NAME, &["spiffe://k8s/a".to_owned()][..], expires)
    );

    admin.allow_principal(NAME).await.unwrap();
    assert!(!admin.security().await.unwrap().principals[0].denied);
    admin.remove_principal(NAME).await.unwrap();
    assert!(admin.security().await.unwrap().principals.is_empty());
    assert_eq!(admin.renew_token(NAME).await.unwrap_err().code, Code::InvalidParams);
    assert_eq!(admin.allow_principal(NAME).await.unwrap_err().code, Code::InvalidParams);
    admin.deny_principal(NAME).await.unwrap();
    assert_eq!(admin.security().await.unwrap().principals.len(), 1, "one that was not known can be denied");
}

#[tokio::test]
async fn a_change_whose_answer_is_lost_is_made_again() {
    let cluster = Cluster::start(1);
    cluster.world.lock().security.tls_level = 1;
    let admin = cluster.client().await.admin();
    cluster.fault(On::SetSecurity, Fault::LoseAnswer);
    admin.set_tls_level(TlsLevel::Prefer, false).await.unwrap();
    assert_eq!(admin.security().await.unwrap().tls_level, Some(TlsLevel::Prefer));

    cluster.fault(On::SetSecurity, Fault::LoseAnswer);
    let refused = admin.add_principal(NAME, PrincipalChange::default()).await.unwrap_err();
    assert_eq!((refused.code, refused.outcome), (Code::InvalidParams, Outcome::Unknown), "{refused}");
}

#[tokio::test]
async fn the_level_rises_to_require_over_others_only_by_force() {
    let cluster = Cluster::start(1);
    {
        let mut world = cluster.world.lock();
        world.security.tls_level = 2;
        let cut_off = mc_proto::v1::CutOff { who: "store kv-0".into(), why: "it has no certificate".into() };
        world.security.cut_off.push(cut_off);
    }
    let admin = cluster.client().await.admin();
    let security = admin.security().await.unwrap();
    assert_eq!(
        (security.cut_off[0].who.as_str(), security.tls_level),
        ("store kv-0", Some(TlsLevel::Prefer))
    );
    assert_eq!(admin.set_tls_level(TlsLevel::Require, false).await.unwrap_err().code, Code::InvalidParams);
    admin.set_tls_level(TlsLevel::Require, true).await.unwrap();
    assert_eq!(admin.security().await.unwrap().tls_level, Some(TlsLevel::Require));
}

#[tokio::test]
async fn a_tenants_rules_stay_until_they_are_set() {
    let cluster = Cluster::start(1);
    let admin = cluster.client().await.admin();
    let quota = Quota::default().with_bytes(ByteSize(1 << 30));
    let rules = TenantRules::default().with_calls_per_s(500).with_rdma(false);
    admin.set_tenant_rules("a", quota, rules).await.unwrap();
    admin.set_tenant("a", quota.with_objects(7)).await.unwrap();
    let tenants = admin.tenants().await.unwrap();
    assert_eq!((tenants[0].calls_per_s, tenants[0].avoids_rdma, tenants[0].quota.objects), (500, true, 7));
}
