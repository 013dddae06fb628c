use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mc_net::{Listener, Network};
use mc_process::metrics::Registry;
use mc_transfer::{AllocateError, Authority, Segment};
use mc_types::{ByteSize, Clock, ClusterId, SegmentEpoch, StoreId};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{error, info, warn};

use crate::config::Config;
use crate::data::{self, Data};
use crate::data_dir::DataDir;
use crate::error::StartError;
use crate::http;
use crate::link::{Advertised, Identity, Lent, Link, LinkConfig, LinkStatus, Served};
use crate::state::{Serving, StoreState};

/// Surroundings of a store: handed in, so that any process can embed one, and a test many.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// Listens for HTTP and connects to masters.
    pub network: Arc<dyn Network>,
    /// The monotonic clock.
    pub clock: Clock,
    /// Where metrics are registered.
    pub registry: Registry,
    /// Where heartbeats and all else between this store and the masters runs. `None`: on a thread of its own, which a
    /// store needs that shares its process with other work. A process with many stores hands them one runtime.
    pub link: Option<Handle>,
}

/// A running store: memory that is allocated, served, and mounted as soon as there is a leader.
///
/// Dropping it stops it at once; [`Store::stop`] takes the memory back from the masters first.
pub struct Store {
    state: Arc<StoreState>,
    data_address: SocketAddr,
    http_address: SocketAddr,
    serving: Serving,
    link: Link,
    http: Http,
    _upkeep: AbortOnDropHandle<()>,
}

impl Store {
    /// Starts a store on the present tokio runtime. Returns when its memory is allocated and served; it mounts by
    /// itself as soon as it finds a leader, and health is served meanwhile. `progress` is told how many bytes of how
    /// many are ready.
    ///
    /// # Errors
    /// [`StartError`], which names the flag.
    pub async fn start(
        config: Config,
        surroundings: Surroundings,
        progress: impl FnMut(ByteSize, ByteSize) + Send + 'static,
    ) -> Result<Self, StartError> {
        config.check()?;
        let Surroundings { network, clock, registry, link: shared } = surroundings;
        let data_dir = DataDir::open(&config.data_dir)?;
        let (store, cluster) = (data_dir.store(), data_dir.cluster());
        let listener = data::bind(config.listen).map_err(listen("--listen", config.listen))?;
        let data_address = listener.local_addr().map_err(listen("--listen", config.listen))?;
        let http = network
            .listen(&config.http_listen.to_string())
            .await
            .map_err(listen("--http-listen", config.http_listen))?;
        let http_address = http.address;
        let name = config.name.clone().unwrap_or_else(|| default_name(data_address.port()));
        info!(
            %store, name, data = %data_address, http = %http_address, masters = %joined(&config.masters),
            data_dir = %config.data_dir.display(), "starting"
        );
        let capacity = ByteSize(config.lent_bytes());
        let state = Arc::new(StoreState::new(store, name.clone(), capacity, registry));
        let http = Http::serve(http, http::routes(state.clone()));

        let segments = allocate(&config.segment, state.clone(), progress).await?;
        let authority = Arc::new(Authority::new(clock.clone()));
        let runtime = tokio::runtime::Handle::current();
        let seconds = state.metrics.transfer_seconds.clone();
        let data = Arc::new(Data::new(store, segments.clone(), authority, listener, runtime, seconds));
        let identity = Identity::draw();
        data.register(identity).await;
        let status = Arc::new(LinkStatus::new(clock, cluster, identity.epoch));
        let lent = Lent {
            store,
            name,
            advertised: Advertised::new(config.advertise.as_deref(), data_address, http_address),
            segment_bytes: config.segment.iter().map(|size| size.0).collect(),
        };
        let config = LinkConfig {
            masters: config.masters,
            network,
            lent,
            identity,
            served: data.clone(),
            status: status.clone(),
            keep_cluster: Box::new(move |cluster| keep(&data_dir, cluster)),
        };
        let link = Link::start(config, shared.as_ref())
            .map_err(|source| StartError::System { what: "thread for heartbeats", source })?;
        let serving = Serving { segments, data, link: status };
        state.start_serving(serving.clone());
        let upkeep = AbortOnDropHandle::new(tokio::spawn(keep_metrics(state.clone())));
        Ok(Self { state, data_address, http_address, serving, link, http, _upkeep: upkeep })
    }

    /// Its id, which the data directory keeps.
    #[must_use]
    pub fn id(&self) -> StoreId {
        self.state.store
    }

    /// The present allocation of its memory.
    #[must_use]
    pub fn epoch(&self) -> SegmentEpoch {
        self.serving.link.get().epoch
    }

    /// Where the memory is served, with the port that was picked.
    #[must_use]
    pub fn data_address(&self) -> SocketAddr {
        self.data_address
    }

    /// Where health and metrics are served.
    #[must_use]
    pub fn http_address(&self) -> SocketAddr {
        self.http_address
    }

    /// Whether a leader had this store mounted within the last second.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.state.ready().is_ok()
    }

    /// The term of the leader that last said that this store is mounted; `None` while no leader says so.
    #[must_use]
    pub fn mounted_in_term(&self) -> Option<u64> {
        self.serving.link.mounted_in_term()
    }

    /// The memory itself, for a process that reads its own store's memory when no leader is in reach.
    #[must_use]
    pub fn segments(&self) -> &[Arc<Segment>] {
        &self.serving.segments
    }

    /// Takes the memory back from the masters, for at most `unmount_within`, then closes every connection.
    pub async fn stop(self, unmount_within: Duration) {
        self.link.unmount(unmount_within).await;
        self.serving.data.stop().await;
        self.http.stop().await;
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

/// The HTTP server, which ends with its owner.
struct Http {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Http {
    fn serve(listener: Listener, routes: axum::Router) -> Self {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            if let Err(error) = mc_process::http::serve(listener, routes, stopped.cancelled_owned()).await {
                error!(%error, "health and metrics are no longer served");
            }
        });
        Self { stop, task }
    }

    async fn stop(mut self) {
        self.stop.cancel();
        // It has logged what went wrong, if anything did.
        let _ = (&mut self.task).await;
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        self.stop.cancel();
        self.task.abort();
    }
}

async fn keep_metrics(state: Arc<StoreState>) {
    let mut second = tokio::time::interval(Duration::from_secs(1));
    loop {
        second.tick().await;
        state.metrics.upkeep();
    }
}

async fn allocate(
    sizes: &[ByteSize],
    state: Arc<StoreState>,
    mut progress: impl FnMut(ByteSize, ByteSize) + Send + 'static,
) -> Result<Vec<Arc<Segment>>, StartError> {
    let sizes = sizes.to_vec();
    let all = move || -> Result<Vec<Arc<Segment>>, AllocateError> {
        let mut segments = Vec::with_capacity(sizes.len());
        let mut before = 0;
        for (number, size) in (0..).zip(&sizes) {
            let mut told = |ready: u64| {
                state.set_allocated(before + ready);
                progress(state.allocated(), state.capacity);
            };
            segments.push(Segment::allocate(number, size.0, &mut told)?);
            before += size.0;
        }
        Ok(segments)
    };
    match tokio::task::spawn_blocking(all).await {
        Ok(segments) => Ok(segments?),
        Err(failed) => {
            Err(StartError::System { what: "memory", source: std::io::Error::other(failed.to_string()) })
        }
    }
}

fn keep(data_dir: &DataDir, cluster: ClusterId) {
    if let Err(error) = data_dir.keep_cluster(cluster) {
        warn!(%error, %cluster, "the cluster's id was not kept: after a restart this store takes the first it meets");
    }
}

fn listen(flag: &'static str, address: SocketAddr) -> impl Fn(std::io::Error) -> StartError {
    move |source| StartError::Listen { flag, address, source }
}

fn joined(masters: &[mc_types::HostPort]) -> String {
    masters.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn default_name(port: u16) -> String {
    format!("{}:{port}", rustix::system::uname().nodename().to_string_lossy())
}
