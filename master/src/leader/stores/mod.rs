//! Stores: mount, unmount, heartbeats.

use std::sync::Arc;
use std::time::Duration;

use mc_index::{
    Endpoint, KEY_CHANGES_SINCE, MountStore, OWN_STORES_SINCE, RESTARTS_SINCE, Request, Security, TenantName,
};
use mc_types::{ClusterTime, Code, DEFAULT_TENANT, MAX_TENANT_LEN, STORE_TENANT, SegmentEpoch, StoreId};
use tokio::sync::watch;

use crate::formation::TlsReport;
use crate::leader::term::{Coordinator, Leading, Refusal, StoreState, TransportUse};

/// Serves stores and reports changes of their liveness.
pub(crate) struct Stores {
    coordinator: Arc<Coordinator>,
    /// Counts the changes of the stores' liveness, for the watchers.
    changes: watch::Sender<u64>,
}

/// Answer to a mount.
pub(crate) struct MountReply {
    pub(crate) time: ClusterTime,
    /// Time between two heartbeats of the store.
    pub(crate) heartbeat: Duration,
    /// Order of the mount among allocations.
    pub(crate) order: u64,
}

/// Answer to a heartbeat.
pub(crate) struct HeartbeatReply {
    pub(crate) time: ClusterTime,
    pub(crate) term: u64,
    /// Whether the store is mounted with this epoch.
    pub(crate) mounted: bool,
    /// Whether the epoch was dropped for good.
    pub(crate) dead: bool,
    /// Period over which all stores go over to another leader.
    pub(crate) spread: Duration,
    /// Who is let in.
    pub(crate) security: Security,
    /// Whether that is news to this stream.
    pub(crate) is_security_news: bool,
    /// Whether the store may mount the epoch with another grant key.
    pub(crate) key_may_change: bool,
}

impl Stores {
    pub(crate) fn new(coordinator: Arc<Coordinator>) -> Self {
        Self { coordinator, changes: watch::Sender::new(0) }
    }

    /// Subscribes to changes of the stores' liveness.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Number of subscribers to the stores' liveness.
    pub(crate) fn watchers(&self) -> usize {
        self.changes.receiver_count()
    }

    pub(crate) async fn mount(&self, mount: MountStore) -> Result<MountReply, Refusal> {
        let leading = self.coordinator.lead().await?;
        self.refuse_unfit(&mount, &leading)?;
        let (store, name) = (mount.store, mount.name.clone());
        let (code, order) = self.coordinator.propose_in_order(&leading, &Request::mount_store(mount)).await?;
        match code {
            Code::Ok => {}
            Code::StoreEpochDead => {
                return Err(Refusal::Store {
                    code,
                    message: format!(
                        "store {store} mounts memory that was declared dead: it offers it again, empty"
                    ),
                });
            }
            _ => {
                return Err(Refusal::Invalid(format!(
                    "store {store} ({name}) asks for segments or endpoints beyond the limits, for other segments in \
                     place of those that it has mounted, or for a grant key that it must not have"
                )));
            }
        }
        let heartbeat_ms = self.coordinator.read(|applied| applied.state.settings().store_heartbeat_ms);
        // The store may have been suspect under its previous epoch.
        leading.liveness.mounted(store, leading.elapsed());
        self.refresh_suspect(&leading, store);
        tracing::info!(%store, name, "store mounted");
        Ok(MountReply { time: leading.now(), heartbeat: Duration::from_millis(heartbeat_ms), order })
    }

    /// Refuses memory that has outlived a process before the cluster can tell its processes apart, a tenant's store that the cluster
    /// does not know or that would change its owner ([`check_owner`]), and a second live process with the same store id (a copied
    /// data directory): the two would take each other's memory away in turns.
    fn refuse_unfit(&self, mount: &MountStore, leading: &Leading) -> Result<(), Refusal> {
        let (known, owner, version) = self.coordinator.read(|applied| {
            let store = applied.state.store(mount.store);
            let known = store.map(|store| (store.epoch, store.name.to_owned(), store.endpoints.to_vec()));
            (known, applied.state.owner(mount.store), applied.state.cluster_version())
        });
        if mount.incarnation() > 1 && version < RESTARTS_SINCE {
            return Err(Refusal::Store {
                code: Code::StoreEpochDead,
                message: format!(
                    "store {} was restarted: the cluster runs as version {version}, and takes up memory that outlives a process from \
                     version {RESTARTS_SINCE} on: upgrade all masters, then run `mcctl upgrade finish`",
                    mount.store
                ),
            });
        }
        let mounted = known.as_ref().filter(|(epoch, ..)| *epoch == mount.epoch).map(|_| owner);
        let refused = |message| Refusal::Store { code: Code::PermissionDenied, message };
        check_owner(mount, mounted, version).map_err(refused)?;
        // Right after a failover, the mounted store counts as alive until it has had time to report.
        let alive = leading.liveness.state(mount.store, leading.elapsed()) == StoreState::Alive;
        match known {
            Some((epoch, name, endpoints))
                if alive && epoch != mount.epoch && !are_at_one_place(&endpoints, &mount.endpoints) =>
            {
                Err(Refusal::Store {
                    code: Code::SegmentAlreadyExists,
                    message: format!(
                        "store {} is alive as {name} at another address: two stores share a data directory, or a copy of \
                     one; give this one a --data-dir of its own",
                        mount.store
                    ),
                })
            }
            _ => Ok(()),
        }
    }

    pub(crate) async fn unmount(&self, store: StoreId, epoch: SegmentEpoch) -> Result<(), Refusal> {
        let leading = self.coordinator.lead().await?;
        let mounted =
            || self.coordinator.read(|applied| applied.state.store(store).map(|mounted| mounted.epoch));
        let was_mounted = mounted() == Some(epoch);
        self.coordinator.propose(&leading, &Request::drop_store(store, epoch)).await?;
        // A duplicate of a live store, which was refused, unmounts an epoch that was never mounted.
        if was_mounted && mounted() != Some(epoch) {
            tracing::info!(%store, %epoch, "store unmounted");
        }
        Ok(())
    }

    /// Begins the session of a store's heartbeat stream.
    pub(crate) fn session(self: &Arc<Self>) -> HeartbeatSession {
        HeartbeatSession { stores: self.clone(), open: None, told: None }
    }

    /// Updates the list of suspects, and tells the watchers if it changed.
    ///
    /// Does nothing while this master is unsure whether it leads: it then ends the stores' streams itself, and that
    /// time does not count as their silence. Until the next look, calls that a quorum confirms are answered from the
    /// old list.
    pub(crate) fn refresh_suspects(&self, leading: &Leading) {
        if !self.coordinator.is_on_duty(leading) {
            return;
        }
        let stores = self
            .coordinator
            .read(|applied| applied.state.mounted().map(|(store, _)| store).collect::<Vec<_>>());
        let mounted = stores.iter().copied().collect();
        leading.transports.keep(&mounted);
        leading.tls_reports.keep(&mounted);
        if leading.liveness.refresh(stores.into_iter(), leading.elapsed()) {
            self.changes.send_modify(|changes| *changes += 1);
        }
    }

    /// Updates the list of suspects for one store whose stream has begun or ended. Looks at no other store, so that a
    /// thousand streams that change at once cost a thousand looks, not a million.
    fn refresh_suspect(&self, leading: &Leading, store: StoreId) {
        // A store that is no longer mounted is not suspect either.
        let mounted = || self.coordinator.read(|applied| applied.state.mounted_epoch(store).is_some());
        let changed = self.coordinator.is_on_duty(leading)
            && mounted()
            && leading.liveness.look_at(store, leading.elapsed());
        if changed {
            self.changes.send_modify(|changes| *changes += 1);
        }
    }
}

/// Whether two mounts have the same addresses. Their attributes differ between the processes of a store.
fn are_at_one_place(one: &[Endpoint], other: &[Endpoint]) -> bool {
    let place = |endpoint: &Endpoint| (endpoint.transport.clone(), endpoint.address.clone());
    one.iter().map(place).eq(other.iter().map(place))
}

/// Checks that a cluster of this version may mount a store as the memory that its endpoints name. `mounted` is the owner of its
/// epoch, if that is mounted. Returns why not.
fn check_owner(mount: &MountStore, mounted: Option<Option<TenantName>>, version: u32) -> Result<(), String> {
    let mut attributes = mount.endpoints.iter().flat_map(|endpoint| &endpoint.attributes);
    let tenant = attributes.find(|(name, _)| name == STORE_TENANT).map(|(_, tenant)| tenant);
    let MountStore { store, name, .. } = mount;
    if let Some(tenant) = tenant {
        if version < OWN_STORES_SINCE {
            return Err(format!(
                "store {store} ({name}) has the credential of a tenant: the cluster runs as version {version}, and knows stores of \
                 one tenant from version {OWN_STORES_SINCE} on: upgrade all masters, then run `mcctl upgrade finish`"
            ));
        }
        if tenant.len() > MAX_TENANT_LEN {
            return Err(format!(
                "store {store} ({name}) is of a tenant whose name has {} bytes, and the limit is {MAX_TENANT_LEN}: give it the \
                 certificate of another tenant",
                tenant.len()
            ));
        }
    }
    let owner = tenant.map(|tenant| TenantName::new(tenant.as_bytes()));
    match mounted {
        Some(mounted) if version >= OWN_STORES_SINCE && mounted != owner => Err(format!(
            "store {store} ({name}) is mounted as {}, and can't become {} with what it holds: restart it with empty memory",
            memory_of(mounted),
            memory_of(owner)
        )),
        _ => Ok(()),
    }
}

/// Names the memory that a store with this owner is.
fn memory_of(owner: Option<TenantName>) -> String {
    match owner.as_ref().map(|tenant| String::from_utf8_lossy(tenant.as_bytes())).as_deref() {
        None => "memory of all tenants".to_owned(),
        Some("") => format!("memory of tenant {DEFAULT_TENANT}"),
        Some(tenant) => format!("memory of tenant {tenant}"),
    }
}

/// One stream of heartbeats.
pub(crate) struct HeartbeatSession {
    stores: Arc<Stores>,
    open: Option<OpenStream>,
    /// Revision of who is let in that the store was told of.
    told: Option<u64>,
}

impl HeartbeatSession {
    /// Counts a heartbeat, and answers it.
    pub(crate) async fn beat(
        &mut self,
        store: StoreId,
        epoch: SegmentEpoch,
        transports: Vec<TransportUse>,
        tls: Option<TlsReport>,
    ) -> Result<HeartbeatReply, Refusal> {
        let leading = self.stores.coordinator.lead().await?;
        let (mounted, dead, security, key_may_change) = self.stores.coordinator.read(|applied| {
            let mounted = applied.state.mounted_epoch(store) == Some(epoch);
            let dead = !mounted && applied.state.epoch_is_dead(store, epoch);
            let key_may_change = applied.state.cluster_version() >= KEY_CHANGES_SINCE;
            (mounted, dead, applied.state.security().clone(), key_may_change)
        });
        // A heartbeat of an epoch that is not mounted says nothing about the mounted one.
        if mounted {
            match &self.open {
                Some(open) if Arc::ptr_eq(&open.leading, &leading) => {
                    leading.liveness.beat(store, leading.elapsed());
                    if leading.is_suspect(store) {
                        self.stores.refresh_suspect(&leading, store);
                    }
                }
                _ => self.open = Some(OpenStream::begin(&self.stores, store, leading.clone())),
            }
            leading.transports.note(store, transports);
            leading.tls_reports.note(store, tls);
        }
        let (time, spread) = (leading.now(), leading.liveness.spread());
        let revision = Some(security.revision());
        let is_security_news = std::mem::replace(&mut self.told, revision) != revision;
        let term = leading.term;
        Ok(HeartbeatReply { time, term, mounted, dead, spread, security, is_security_news, key_may_change })
    }

    /// Detaches the store's stream when this master itself ends it or leaves it unanswered. Neither the end of that
    /// stream nor a new term of this master makes the store suspect then.
    pub(crate) fn let_go(&mut self) {
        if let Some(open) = self.open.take() {
            open.let_go();
        }
    }

    /// Whether this master believes that it leads but could not confirm it. It soon will, or hears who leads. Ending
    /// the stream would make the whole fleet reconnect at once; a store that gets no answers looks for another leader
    /// anyway.
    pub(crate) fn may_lead_on(&self, refusal: &Refusal) -> bool {
        matches!(refusal, Refusal::NotLeader { leader: None, .. }) && self.stores.coordinator.is_leader()
    }
}

/// A store's open stream in one term. Its end makes the store suspect at once, unless this master ended it: it may go on
/// answering reads for a moment while it stops.
struct OpenStream {
    stores: Arc<Stores>,
    leading: Arc<Leading>,
    store: StoreId,
    let_go: bool,
}

impl OpenStream {
    fn begin(on: &Arc<Stores>, store: StoreId, leading: Arc<Leading>) -> Self {
        leading.liveness.opened(store, leading.elapsed());
        on.refresh_suspect(&leading, store);
        Self { stores: on.clone(), leading, store, let_go: false }
    }

    /// Ends the stream for reasons of this master.
    fn let_go(mut self) {
        self.let_go = true;
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        match self.let_go || self.stores.coordinator.is_stopping() {
            true => self.leading.liveness.let_go(self.store, self.leading.elapsed()),
            false => self.leading.liveness.closed(self.store),
        }
        self.stores.refresh_suspect(&self.leading, self.store);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leader::tests::mount;

    #[test]
    fn an_epoch_keeps_its_owner_and_an_old_cluster_mounts_no_store_of_a_tenant() {
        let of = |tenant: Option<&str>| {
            let mut mount = mount(1, &["a:1"], &[1 << 20]);
            let attribute = tenant.map(|tenant| (STORE_TENANT.to_owned(), tenant.to_owned()));
            mount.endpoints[0].attributes.extend(attribute);
            mount
        };
        let owner = |tenant: Option<&str>| tenant.map(|tenant| TenantName::new(tenant.as_bytes()));
        let owners = [None, Some(""), Some("a"), Some("b")];
        for (next, mounted) in owners.into_iter().flat_map(|next| owners.map(|mounted| (next, mounted))) {
            let checked = check_owner(&of(next), Some(owner(mounted)), OWN_STORES_SINCE);
            assert_eq!(checked.is_ok(), next == mounted, "{mounted:?} becomes {next:?}: {checked:?}");
            assert_eq!(check_owner(&of(next), None, OWN_STORES_SINCE), Ok(()), "{next:?}");
        }
        let why = check_owner(&of(Some("a")), Some(None), OWN_STORES_SINCE).unwrap_err();
        assert!(
            why.contains("of all tenants") && why.contains("of tenant a") && why.contains("restart"),
            "{why}"
        );

        assert_eq!(check_owner(&of(None), Some(None), OWN_STORES_SINCE - 1), Ok(()));
        let why = check_owner(&of(Some("a")), None, OWN_STORES_SINCE - 1).unwrap_err();
        assert!(why.contains("store-1") && why.contains("`mcctl upgrade finish`"), "{why}");
        let long = "t".repeat(MAX_TENANT_LEN + 1);
        assert!(check_owner(&of(Some(&long)), None, OWN_STORES_SINCE).unwrap_err().contains("bytes"));
    }
}
