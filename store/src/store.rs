use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mc_net::{Network, TcpNetwork};
use mc_transfer::{Authority, DataEncryption, Memory, Rdma, RequestSeconds, SegmentDir, SegmentDirError};
use mc_types::{ByteSize, Clock, ClusterId, SegmentEpoch, SpiffeId, StoreId, TlsLevel};
use tokio::runtime::Handle;
use tracing::{info, warn};

use crate::config::Config;
use crate::data::{Data, Offer};
use crate::data_dir::DataDir;
use crate::error::{Port, StartError};
use crate::link::{Advertised, Link, LinkConfig, LinkStatus, LinkTls, StoreInfo};
use crate::masters::MasterList;
use crate::segments::Segments;
use crate::start::{KEEPING_PATIENCE, PATIENCE, StartMemory, start_memory};
use crate::state::{Serving, StoreState, StoreStatus};

/// Resources that a store takes from its process, so that any process can embed one store and a test many.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Surroundings {
    /// Network over which the store connects to masters.
    pub network: Arc<dyn Network>,
    /// How far a store with certificates insists on TLS. `None`: as far as its cluster says; as the network's certificates are set
    /// while that is not known.
    pub tls_level: Option<TlsLevel>,
    /// The monotonic clock.
    pub clock: Clock,
    /// Histograms of the time that transfers take.
    pub request_seconds: RequestSeconds,
    /// Runtime for heartbeats and all other calls between this store and the masters. `None`: a thread of its own,
    /// which a store needs if its process does other work. A process with many stores hands them one runtime.
    pub link: Option<Handle>,
}

impl Default for Surroundings {
    /// Uses TCP, the system's monotonic clock, no histograms, and a separate thread for the calls to masters.
    fn default() -> Self {
        Self {
            network: TcpNetwork::shared(),
            tls_level: None,
            clock: Clock::monotonic(),
            request_seconds: RequestSeconds::noop(),
            link: None,
        }
    }
}

/// A running store: memory that is allocated, served, and mounted as soon as there is a leader.
///
/// Dropping it stops it at once; [`Store::stop`] unmounts the memory at the masters first, unless it is kept.
pub struct Store {
    state: Arc<StoreState>,
    data_address: SocketAddr,
    serving: Serving,
    link: Link,
}

/// A store that has its data directory and its port, but no memory yet.
pub struct Opened {
    config: Config,
    surroundings: Surroundings,
    data_dir: DataDir,
    listener: std::net::TcpListener,
    data_address: SocketAddr,
    state: Arc<StoreState>,
}

impl Opened {
    /// Returns a view of the store, also while its memory is allocated.
    #[must_use]
    pub fn status(&self) -> StoreStatus {
        StoreStatus(self.state.clone())
    }

    /// Returns a handle that mounts further segments and unmounts segments, once the store serves.
    #[must_use]
    pub fn segments(&self) -> Segments {
        Segments(self.state.clone())
    }

    /// Returns a handle that changes the list of masters.
    #[must_use]
    pub fn masters(&self) -> MasterList {
        MasterList(self.state.clone())
    }

    /// Allocates the memory, or takes up what the last process has left, serves it, and returns. The store mounts it as soon as it
    /// finds a leader. `progress` receives the bytes that are ready and the bytes in total. A runtime with a single thread allocates
    /// in place, and its other tasks wait meanwhile.
    ///
    /// # Errors
    /// [`StartError`]
    ///
    /// # Panics
    /// Outside of a tokio runtime. The store serves on that runtime, which must outlive it.
    pub async fn start(
        self,
        progress: impl FnMut(ByteSize, ByteSize) + Send + 'static,
    ) -> Result<Store, StartError> {
        let Self { config, surroundings, data_dir, listener, data_address, state } = self;
        let Surroundings { network, tls_level, clock, request_seconds, link: shared } = surroundings;
        let (store, cluster) = (data_dir.store(), data_dir.cluster());
        let rdma = Rdma::for_process(config.transport, &config.rdma_devices, &config.rdma_options)?;
        let StartMemory { memory, dir, registration, announced } =
            start_memory(&config, store, state.clone(), Box::new(progress)).await?;
        let authority = Arc::new(Authority::new(clock.clone()));
        let runtime = tokio::runtime::Handle::current();
        let tls = network.tls().cloned();
        // A store without certificates has nothing to leave out.
        let data_encryption = if tls.is_some() { config.data_encryption } else { DataEncryption::On };
        let offer = Offer { transports: config.transport, shm: config.shm, rdma, tls, data_encryption };
        let lent = (memory.clone(), dir);
        let data = Arc::new(Data::new(store, lent, authority, listener, runtime, request_seconds, offer));
        data.serve_under(registration).await;
        // Of memory that was taken up, each page is pinned by that for the first time, which takes a second for some GiB.
        data.register_all_with_cards();
        let status = Arc::new(LinkStatus::new(clock, cluster, registration.epoch, memory.sizes()));
        let info = StoreInfo {
            store,
            name: state.name.clone(),
            data_encryption,
            advertised: Advertised::new(config.advertise.as_deref(), data_address, config.http_port),
        };
        let config = LinkConfig {
            masters: state.masters.subscribe(),
            tls: LinkTls::new(network.tls().cloned(), tls_level.is_none()),
            network,
            info,
            registration,
            announced,
            served: data.clone(),
            status: status.clone(),
            keep_cluster: Box::new(move |cluster| keep(&data_dir, cluster)),
        };
        let link = Link::start(config, shared.as_ref())
            .map_err(|source| StartError::System { what: "thread for heartbeats", source })?;
        let serving = Serving { data, link: status };
        state.start_serving(serving.clone());
        Ok(Store { state, data_address, serving, link })
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").field("data_address", &self.data_address).finish_non_exhaustive()
    }
}

impl Store {
    /// Locks the data directory and binds the data port. Blocks while a process that is ending still has the directory, for up to 2 s,
    /// and with a segment directory for up to 60 s. [`Opened::start`] does the rest, so that a process can show how
    /// far it is; [`Self::builder`] does both.
    ///
    /// # Errors
    /// [`StartError`]
    pub fn open(config: Config, surroundings: Surroundings) -> Result<Opened, StartError> {
        config.check()?;
        let patience = if config.segment_dir.is_some() { KEEPING_PATIENCE } else { PATIENCE };
        let data_dir = DataDir::open(config.data_dir.as_deref(), patience)?;
        let refused = |source| StartError::Listen { port: Port::Data, address: config.listen, source };
        let listener = mc_net::listen(config.listen).map_err(refused)?;
        let data_address = listener.local_addr().map_err(refused)?;
        if let (Some(tls), Some(level)) = (surroundings.network.tls(), surroundings.tls_level) {
            tls.set_level(level);
        }
        let identity = surroundings.network.tls().and_then(|tls| tls.id());
        let name =
            config.name.clone().unwrap_or_else(|| default_name(identity.as_ref(), data_address.port()));
        info!(
            store = %data_dir.store(), name, data = %data_address, masters = %joined(&config.masters),
            data_dir = config.data_dir.as_ref().map(|dir| tracing::field::display(dir.display())), "starting"
        );
        let lent = ByteSize(config.lent_bytes());
        let state = Arc::new(StoreState::new(data_dir.store(), name, lent, config.masters.clone()));
        Ok(Opened { config, surroundings, data_dir, listener, data_address, state })
    }

    /// Frees the memory that a store has left in its segment directory. Waits up to 2 s for a process that is ending. Blocks.
    ///
    /// # Errors
    /// [`SegmentDirError`]: another process uses it, or there is nothing.
    pub fn release_memory(segment_dir: &Path) -> Result<(), SegmentDirError> {
        SegmentDir::release(segment_dir, PATIENCE)
    }

    /// Returns the store's id, which the data directory keeps.
    #[must_use]
    pub fn id(&self) -> StoreId {
        self.state.store
    }

    /// Returns the epoch of the present allocation of its memory.
    #[must_use]
    pub fn epoch(&self) -> SegmentEpoch {
        self.serving.link.get().epoch
    }

    /// Returns the address at which the memory is served, with the port that was picked.
    #[must_use]
    pub fn data_address(&self) -> SocketAddr {
        self.data_address
    }

    /// Returns a view of the store for health, metrics and people.
    #[must_use]
    pub fn status(&self) -> StoreStatus {
        StoreStatus(self.state.clone())
    }

    /// Returns whether a leader had this store mounted within the last second.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.state.ready().is_ok()
    }

    /// Returns the term of the leader that last confirmed the mount; `None` if this epoch was never confirmed, or the
    /// leader denies the mount.
    #[must_use]
    pub fn mounted_in_term(&self) -> Option<u64> {
        self.serving.link.mounted_in_term()
    }

    /// Returns the memory itself, for a process that reads its own store's memory when no leader is in reach.
    #[must_use]
    pub fn memory(&self) -> &Arc<Memory> {
        self.serving.data.memory()
    }

    /// Returns the directory in which the memory outlives the process, if there is one.
    #[must_use]
    pub fn segment_dir(&self) -> Option<PathBuf> {
        Some(self.serving.data.dir()?.path().to_owned())
    }

    /// Returns a handle that mounts further segments and unmounts segments while the store serves.
    #[must_use]
    pub fn segments(&self) -> Segments {
        Segments(self.state.clone())
    }

    /// Returns a handle that changes the list of masters.
    #[must_use]
    pub fn masters(&self) -> MasterList {
        MasterList(self.state.clone())
    }

    /// Unmounts the memory at the masters within `unmount_within`, then closes every connection. Memory in a segment directory stays
    /// mounted: the next process goes on with it.
    pub async fn stop(self, unmount_within: Duration) {
        self.state.set_stopped();
        let unmount_within = self.segment_dir().is_none().then_some(unmount_within);
        self.link.stop(unmount_within).await;
        self.serving.data.stop().await;
        self.serving.data.leave();
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("id", &self.id())
            .field("data_address", &self.data_address)
            .finish_non_exhaustive()
    }
}

fn keep(data_dir: &DataDir, cluster: ClusterId) {
    if let Err(error) = data_dir.keep_cluster(cluster) {
        warn!(%error, %cluster, "cannot save the cluster's id: after a restart this store joins the first it meets");
    }
}

fn joined(masters: &[mc_types::HostPort]) -> String {
    masters.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Returns the name of a store that was given none. It is one that the store's certificate covers: that of the host, such as a
/// pod's, or the certificate's own with the port behind it.
fn default_name(identity: Option<&SpiffeId>, port: u16) -> String {
    let uname = rustix::system::uname();
    let host = uname.nodename().to_string_lossy();
    match identity {
        Some(id) if id.covers(&host) => host.into_owned(),
        Some(id) => format!("{}-{port}", id.name()),
        None => format!("{host}:{port}"),
    }
}
