use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mc_net::{Guard, Listener, Network};
use mc_process::HttpAccess;
use mc_process::metrics::Registry;
use mc_store::{Port, StartError, Store, Surroundings};
use mc_types::{ByteSize, Clock, TlsLevel};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::error;

use crate::StoreArgs;
use crate::http;
use crate::metrics::StoreMetrics;

/// Longest life of an HTTP connection. The longest request mounts a segment, and a terabyte takes minutes to allocate.
const LIFETIME: Duration = Duration::from_secs(600);

/// A store with its health and metrics over HTTP.
#[derive(Debug)]
pub struct Server {
    store: Store,
    http_address: SocketAddr,
    http: Http,
    _upkeep: AbortOnDropHandle<()>,
}

impl Server {
    /// Starts a store on the present tokio runtime. Health is served while its memory is allocated. `progress` receives
    /// the bytes that are ready and the bytes in total. With `tls_level` the store insists on TLS that far, else as far as its
    /// cluster.
    pub async fn start(
        args: StoreArgs,
        network: Arc<dyn Network>,
        tls_level: Option<TlsLevel>,
        clock: Clock,
        progress: impl FnMut(ByteSize, ByteSize) + Send + 'static,
    ) -> Result<Self, StartError> {
        // Report a wrong value before a port that is in use.
        args.config(0).check()?;
        let listener = network
            .listen(&args.http_listen.to_string())
            .await
            .map_err(|source| StartError::Listen { port: Port::Http, address: args.http_listen, source })?;
        let http_address = listener.address;
        let metrics = Arc::new(StoreMetrics::new(Registry::new(), network.tls().cloned()));
        let guard = Guard::new(network.tls().cloned(), |_, _| {});
        let request_seconds = metrics.transfer_seconds.clone();
        let mut surroundings = Surroundings::default();
        (surroundings.network, surroundings.tls_level, surroundings.clock) = (network, tls_level, clock);
        surroundings.request_seconds = request_seconds;
        let config = args.config(http_address.port());
        // It may wait for a process that is ending.
        let opened = mc_durable::blocking(move || Store::open(config, surroundings)).await;
        let opened = opened.map_err(|failed| StartError::System {
            what: "thread to open the data directory",
            source: std::io::Error::other(failed.to_string()),
        })??;
        guard.consult(opened.status());
        tracing::info!(http = %http_address, "serving health and metrics");
        let routes = http::routes(opened.status(), opened.segments(), opened.masters(), metrics.clone());
        let http = Http::serve(listener, routes, HttpAccess::standard(guard));
        let upkeep = AbortOnDropHandle::new(tokio::spawn(keep_metrics(metrics)));
        let store = opened.start(progress).await?;
        Ok(Self { store, http_address, http, _upkeep: upkeep })
    }

    /// Returns the store itself.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the address at which health and metrics are served.
    pub fn http_address(&self) -> SocketAddr {
        self.http_address
    }

    /// Stops the store, as [`Store::stop`] does, and closes every connection.
    pub async fn stop(self, unmount_within: Duration) {
        self.store.stop(unmount_within).await;
        self.http.stop().await;
    }
}

/// The HTTP server, which stops when it is dropped.
#[derive(Debug)]
struct Http {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Http {
    fn serve(listener: Listener, routes: axum::Router, access: HttpAccess) -> Self {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let served =
                mc_process::http::serve(listener, routes, access, LIFETIME, stopped.cancelled_owned());
            if let Err(error) = served.await {
                error!(%error, "health and metrics are no longer served");
            }
        });
        Self { stop, task }
    }

    async fn stop(mut self) {
        self.stop.cancel();
        // The task has logged its own error.
        let _ = (&mut self.task).await;
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        self.stop.cancel();
        self.task.abort();
    }
}

async fn keep_metrics(metrics: Arc<StoreMetrics>) {
    let mut second = tokio::time::interval(Duration::from_secs(1));
    loop {
        second.tick().await;
        metrics.upkeep();
    }
}
