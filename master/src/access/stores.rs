use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mc_net::{ConnectInfo, Denied, Guard, Principal};
use mc_proto::v1;
use mc_types::{Role, STORE_NAME, STORE_TENANT, SpiffeId, StoreId};
use tonic::{Extensions, Status};

use super::layer::{name_of, principal_of};
use crate::leader::{Refusal, Services};

/// Caller of a procedure for stores. One with the identity of a store acts on stores alone that the identity covers by their
/// names. So does a tenant's writer, and only on stores that are its tenant's memory.
#[derive(Clone)]
pub(crate) struct StoreCaller {
    principal: Principal,
    from: Option<SocketAddr>,
    call: &'static str,
    guard: Arc<Guard>,
}

impl StoreCaller {
    pub(crate) fn of(call: &Extensions, guard: &Arc<Guard>) -> Result<Self, Status> {
        let from = call.get::<ConnectInfo>().and_then(|caller| caller.remote);
        Ok(Self { principal: principal_of(call)?.clone(), from, call: name_of(call), guard: guard.clone() })
    }

    /// Time after which its stream of messages ends.
    pub(crate) fn connection_age(&self) -> Option<Duration> {
        self.guard.connection_age()
    }

    /// Checks that it may mount a store under a name.
    pub(crate) fn may_use_name(&self, name: &str) -> Result<(), Refusal> {
        let checked = match &self.principal {
            Principal::Named { id, token: Some(_), .. } if id.writes_for().is_some() => {
                Err(Denied::store_token(self.call, id))
            }
            principal => principal.may_speak_for(name, self.call),
        };
        checked.map_err(|denied| self.deny(denied))
    }

    /// Names the store in the endpoints of a mount, if the caller has proven that name, and the tenant whose user the caller is:
    /// clients check both. Otherwise nothing names them.
    pub(crate) fn name_endpoints(&self, mount: &mut v1::MountStoreRequest) {
        let id = self.principal.id();
        let tenant = id.and_then(SpiffeId::writes_for);
        let has_name = tenant.is_some() || id.is_some_and(|id| *id.role() == Role::Store);
        let proven = [(STORE_NAME, has_name.then_some(mount.name.as_str())), (STORE_TENANT, tenant)];
        for endpoint in &mut mount.endpoints {
            for (attribute, value) in proven {
                endpoint.attributes.remove(attribute);
                endpoint.attributes.extend(value.map(|value| (attribute.to_owned(), value.to_owned())));
            }
        }
    }

    /// Checks that it was not denied since it was admitted. For the messages of a stream.
    pub(crate) fn is_still_admitted(&self) -> Result<(), Refusal> {
        self.guard.still_admits(self.from, &self.principal, "Heartbeat").map_err(Refusal::Denied)
    }

    /// Checks that it may act on the store with this id, which has a name and an owner if it is or was mounted. A master that does not
    /// lead may not know of it, and refuses.
    pub(crate) async fn may_act_on(&self, services: &Services, store: &[u8]) -> Result<(), Refusal> {
        let Some(id) = self.principal.id() else { return Ok(()) };
        // A malformed id is that of no store, and the call itself refuses it.
        let (Role::Store | Role::Tenant { .. }, Some(store)) = (id.role(), StoreId::from_bytes(store)) else {
            return Ok(());
        };
        services.coordinator.lead().await?;
        let checked = services.coordinator.read(|applied| {
            let Some((name, owner)) = applied.state.name_and_owner(store) else { return Ok(()) };
            self.principal.may_speak_for(name, self.call)?;
            let owns = |tenant: &str| owner.is_some_and(|owner| owner.as_bytes() == tenant.as_bytes());
            match id.role() {
                Role::Tenant { tenant, .. } if !owns(tenant) => Err(Denied::store_owner(self.call, id, name)),
                _ => Ok(()),
            }
        });
        checked.map_err(|denied| self.deny(denied))
    }

    fn deny(&self, denied: Denied) -> Refusal {
        Refusal::Denied(self.guard.deny(self.from, denied))
    }
}

#[cfg(test)]
impl StoreCaller {
    /// Returns a caller with an identity, by its role and name.
    pub(crate) fn named(id: &str) -> Self {
        Self::with_token(id, None)
    }

    /// Returns a caller with an identity that it has proven by this token.
    fn with_token(id: &str, token: Option<u64>) -> Self {
        let mut call = Extensions::default();
        let id = Arc::new(mc_types::SpiffeId::of_path("prod", id).expect("an identity"));
        call.insert(Principal::Named { id, token, shares_memory: false });
        Self::of(&call, &Guard::open()).expect("it is known")
    }
}

#[cfg(test)]
mod tests {
    use mc_index::MountStore;
    use mc_types::{Code, SegmentEpoch};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::leader::tests::mount;
    use crate::leader::tests::upgrade::lone_leader;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_store_acts_on_the_stores_of_its_name_alone() {
        // Given a leader with the store 1, which is mounted as store-1.
        let (leader, _cluster) = lone_leader(CancellationToken::new()).await;
        leader.stores.mount(mount(1, &[], &[1 << 20])).await.unwrap();
        let (mounted, not_mounted) = (StoreId(1).to_bytes(), StoreId(2).to_bytes());

        for (id, may) in
            [("store/store", true), ("store/store-1", true), ("admin/a", true), ("store/other", false)]
        {
            let caller = StoreCaller::named(id);
            let acts = caller.may_act_on(&leader, &mounted).await;
            assert_eq!(
                acts.map_err(|refusal| refusal.code()),
                if may { Ok(()) } else { Err(Code::PermissionDenied) },
                "{id}"
            );
            assert_eq!(caller.may_act_on(&leader, &not_mounted).await, Ok(()), "{id}");
            assert_eq!(caller.may_use_name("store-1").is_ok(), may, "{id}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_tenants_writer_acts_on_the_stores_of_its_name_and_tenant_alone() {
        // Given a leader with a common store 1 and the stores 2 and 3 of tenant a and of the default tenant, all called kv.
        let (leader, _cluster) = lone_leader(CancellationToken::new()).await;
        leader.configuration.finish_upgrade(true).await.unwrap();
        for (id, tenant) in [(1, None), (2, Some("a")), (3, Some(""))] {
            let mut store = MountStore { name: "kv".into(), ..mount(id, &["a:1"], &[1 << 20]) };
            let attribute = tenant.map(|tenant: &str| (STORE_TENANT.to_owned(), tenant.to_owned()));
            store.endpoints[0].attributes.extend(attribute);
            store.endpoints[0].attributes.push((STORE_NAME.to_owned(), "kv".to_owned()));
            leader.stores.mount(store).await.unwrap();
        }

        // The store 2 is gone, and its id is still tenant a's.
        leader.stores.unmount(StoreId(2), SegmentEpoch(2)).await.unwrap();

        for (id, stores) in [
            ("tenant/a/rw/kv", &[2, 4][..]),
            ("tenant/default/rw/kv", &[3, 4]),
            ("tenant/b/rw/kv", &[4]),
            ("tenant/a/rw/other", &[4]),
            ("store/kv", &[1, 2, 3, 4]),
            ("admin/a", &[1, 2, 3, 4]),
        ] {
            let caller = StoreCaller::named(id);
            for store in 1..=4 {
                let acts = caller.may_act_on(&leader, &StoreId(store).to_bytes()).await;
                let expected = if stores.contains(&store) { Ok(()) } else { Err(Code::PermissionDenied) };
                assert_eq!(acts.map_err(|refusal| refusal.code()), expected, "{id} on store {store}");
            }
            let may_name = id != "tenant/a/rw/other";
            assert_eq!(caller.may_use_name("kv-0").is_ok(), may_name, "{id}");
        }
        let caller = StoreCaller::named("tenant/a/rw/kv");
        let why = caller.may_act_on(&leader, &StoreId(1).to_bytes()).await.unwrap_err().to_string();
        assert!(
            why.contains("tenant/a/rw/kv") && why.contains("`kv`") && why.contains("--data-dir"),
            "{why}"
        );
    }

    #[test]
    fn a_store_of_a_tenant_is_mounted_by_a_certificate_and_by_no_token() {
        for (id, token, may) in
            [("tenant/a/rw/kv", None, true), ("tenant/a/rw/kv", Some(7), false), ("admin/a", Some(7), true)]
        {
            let caller = StoreCaller::with_token(id, token);
            assert_eq!(caller.may_use_name("kv").is_ok(), may, "{id}, {token:?}");
        }
    }

    #[test]
    fn the_endpoints_of_a_mount_name_what_the_caller_has_proven() {
        let forged = [(STORE_NAME.into(), "b".into()), (STORE_TENANT.into(), "b".into())].into();
        let forged = v1::Endpoint { attributes: forged, ..Default::default() };
        for (id, name, tenant) in [
            ("store/a", Some("a"), None),
            ("admin/a", None, None),
            ("tenant/team/rw/a", Some("a"), Some("team")),
            ("tenant/default/rw/a", Some("a"), Some("")),
        ] {
            let mut mount = v1::MountStoreRequest {
                name: "a".into(),
                endpoints: vec![forged.clone(); 2],
                ..Default::default()
            };
            StoreCaller::named(id).name_endpoints(&mut mount);
            for endpoint in &mount.endpoints {
                let said = |attribute| endpoint.attributes.get(attribute).map(String::as_str);
                assert_eq!((said(STORE_NAME), said(STORE_TENANT)), (name, tenant), "{id}");
            }
        }
    }

    #[test]
    fn a_call_that_no_guard_has_seen_is_refused() {
        assert!(StoreCaller::of(&Extensions::default(), &Guard::open()).is_err());
    }
}
