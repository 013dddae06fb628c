//! Grants for callers and stores of all builds.

use mc_index::{MountStore, PutStartItem};
use mc_types::{ClusterTime, GRANT_FORMAT, Grant, PutId};
use tokio_util::sync::CancellationToken;

use super::upgrade::lone_leader;
use super::{GRANT_KEY, mount};
use crate::leader::{Holder, Preference, StoreGrant};

/// The mount of a store that says which format of grants it reads.
fn mount_reading(id: u64, format: Option<&str>) -> MountStore {
    let mut mount = mount(id, &["a:1"], &[1 << 20]);
    let attributes = &mut mount.endpoints[0].attributes;
    attributes.extend(format.map(|format| (GRANT_FORMAT.to_owned(), format.to_owned())));
    attributes.push(("other".to_owned(), "for clients".to_owned()));
    mount
}

const SECURED: Holder = Holder::Secured { number: Some(7), shares_memory: true };

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_has_the_format_that_its_store_and_its_holder_read() {
    let (leader, _cluster) = lone_leader(CancellationToken::new()).await;
    leader.configuration.finish_upgrade(true).await.unwrap();
    leader.security.set_rdma("quiet".to_owned(), false).await.unwrap();
    let formats = [None, Some("1"), Some("2"), Some("3"), Some("?")];
    for (id, format) in (1..).zip(formats) {
        leader.stores.mount(mount_reading(id, format)).await.unwrap();
    }
    let older = leader.security.set_rdma("team".to_owned(), false).await.unwrap_err().to_string();
    assert!(older.contains("upgrade store-1, store-2"), "{older}");
    let holders = [Holder::Older, Holder::Plain, SECURED];
    let all = holders.into_iter().flat_map(|holder| [(holder, "team"), (holder, "quiet")]);
    for (id, (holder, of)) in (1_u8..).zip(all) {
        let item = PutStartItem::new(PutId(id.into()), &[id], 64, ClusterTime(u64::MAX / 4));
        let items = vec![PutStartItem { replicas: 5, ..item }];
        let any = Preference::default();
        let started = leader.objects.put_start(of, |_| Ok(items), &[1], &any, holder).await;
        if (holder, of) == (Holder::Older, "quiet") {
            assert!(started.map(drop).unwrap_err().to_string().contains("upgrade the client"));
            continue;
        }
        let started = started.unwrap();
        assert_eq!(started.grants.len(), formats.len());
        for StoreGrant { store, grant: sealed, endpoints, .. } in started.grants {
            let (grant, key) = Grant::open(&sealed.bytes, &GRANT_KEY).unwrap();
            let store_reads_it = matches!(formats[store.0 as usize - 1], Some("2" | "3"));
            let is_newest = store_reads_it && holder != Holder::Older;
            let needs_proof = is_newest && holder == SECURED;
            assert_eq!((grant.holder, grant.shares_memory), (needs_proof.then_some(7), needs_proof));
            assert_eq!(grant.avoids_rdma, is_newest && of == "quiet");
            let said = (sealed.bytes[0], grant.tenant.as_str(), grant.needs_proof, sealed.proof_key);
            let tenant = if is_newest { of } else { "" };
            let format = if is_newest { Grant::FORMAT } else { 1 };
            assert_eq!(
                said,
                (format, tenant, needs_proof, needs_proof.then_some(key)),
                "{store}, {holder:?}"
            );
            let attributes: Vec<_> = endpoints[0].attributes.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(attributes, ["other"], "clients get what is for them");
        }
    }
}
