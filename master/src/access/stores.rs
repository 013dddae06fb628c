use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mc_net::{ConnectInfo, Denied, Guard, Principal};
use mc_proto::v1;
use mc_types::{Role, STORE_NAME, StoreId};
use tonic::{Extensions, Status};

use super::layer::{name_of, principal_of};
use crate::leader::{Refusal, Services};

/// Caller of a procedure for stores. One with the identity of a store acts on stores alone that the identity covers by their
/// names.
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
        self.principal.may_speak_for(name, self.call).map_err(|denied| self.deny(denied))
    }

    /// Names the store in the endpoints of a mount, if the caller has proven that name: clients check it. Otherwise nothing names it.
    pub(crate) fn name_endpoints(&self, mount: &mut v1::MountStoreRequest) {
        let is_proven = self.principal.id().is_some_and(|id| *id.role() == Role::Store);
        for endpoint in &mut mount.endpoints {
            endpoint.attributes.remove(STORE_NAME);
            if is_proven {
                endpoint.attributes.insert(STORE_NAME.to_owned(), mount.name.clone());
            }
        }
    }

    /// Checks that it was not denied since it was admitted. For the messages of a stream.
    pub(crate) fn is_still_admitted(&self) -> Result<(), Refusal> {
        self.guard.still_admits(self.from, &self.principal, "Heartbeat").map_err(Refusal::Denied)
    }

    /// Checks that it may act on the store with this id, which has a name if it is mounted. A master that does not lead may not know
    /// what is mounted, and refuses.
    pub(crate) async fn may_act_on(&self, services: &Services, store: &[u8]) -> Result<(), Refusal> {
        let Some(id) = self.principal.id() else { return Ok(()) };
        // A malformed id is that of no store, and the call itself refuses it.
        let (Role::Store, Some(store)) = (id.role(), StoreId::from_bytes(store)) else { return Ok(()) };
        services.coordinator.lead().await?;
        let checked = services.coordinator.read(|applied| {
            applied
                .state
                .mounted_name(store)
                .map_or(Ok(()), |name| self.principal.may_speak_for(name, self.call))
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
        let mut call = Extensions::default();
        let id = Arc::new(mc_types::SpiffeId::of_path("prod", id).expect("an identity"));
        call.insert(Principal::Named { id, token: None, shares_memory: false });
        Self::of(&call, &Guard::open()).expect("it is known")
    }
}

#[cfg(test)]
mod tests {
    use mc_raft::testing::Pool;
    use mc_raft::{RaftTiming, SnapshotLimits};
    use mc_types::Code;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::leader::tests::mount;
    use crate::leader::tests::upgrade::services;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_store_acts_on_the_stores_of_its_name_alone() {
        // Given a leader with the store 1, which is mounted as store-1.
        let mut pool = Pool::formed_with(1, SnapshotLimits::default(), RaftTiming::LAN).await;
        let leads = pool.leader().await;
        let (dir, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
        let leader = services(pool.take(leads), &dir, Box::new(|| 0), stop);
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

    #[test]
    fn the_endpoints_of_a_mount_name_a_store_that_has_proven_its_name() {
        let forged =
            v1::Endpoint { attributes: [(STORE_NAME.into(), "b".into())].into(), ..Default::default() };
        for (id, named) in [("store/a", Some("a")), ("admin/a", None)] {
            let mut mount = v1::MountStoreRequest {
                name: "a".into(),
                endpoints: vec![forged.clone()],
                ..Default::default()
            };
            StoreCaller::named(id).name_endpoints(&mut mount);
            assert_eq!(mount.endpoints[0].attributes.get(STORE_NAME).map(String::as_str), named, "{id}");
        }
    }

    #[test]
    fn a_call_that_no_guard_has_seen_is_refused() {
        assert!(StoreCaller::of(&Extensions::default(), &Guard::open()).is_err());
    }
}
