use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use mc_net::{Tls, TlsNetwork};
use mc_store::{ByteSize, RdmaDevices, ShmAccess, Store, Surroundings};
use tokio::runtime::Runtime;

/// Maximum number of stores that start at the same time; each allocates its memory on a thread.
const AT_ONCE: usize = 32;
const LOOK: Duration = Duration::from_millis(5);

/// Many stores in this process. Their links to masters share two threads; their data servers share the clients'
/// threads.
pub(super) struct Stores {
    stores: Vec<Store>,
    links: Links,
}

/// Runtime of the links. It shuts down in the background, because a runtime must not be dropped in async code.
struct Links(Option<Runtime>);

impl Drop for Links {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Stores {
    /// Starts stores with the certificates in `tls_dir`, and their data below `dir`.
    pub(super) async fn start(count: u32, masters: &str, dir: &Path, tls_dir: &Path) -> Result<Self> {
        let network = TlsNetwork::shared(Tls::find(Some(tls_dir))?);
        let links = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("fleet-links")
            .enable_all()
            .build()
            .context("cannot start the threads for the stores' heartbeats")?;
        let handle = links.handle().clone();
        let links = Links(Some(links));
        let start = |number: u32| {
            let data_dir = dir.join(format!("store-{number}"));
            let (link, network) = (handle.clone(), network.clone());
            async move {
                let name = format!("store-{number}");
                let mut surroundings = Surroundings::default();
                (surroundings.link, surroundings.network) = (Some(link), network);
                let store = Store::builder()
                    .segment(ByteSize(1 << 20))
                    .masters(masters)
                    .listen((Ipv4Addr::LOCALHOST, 0).into())
                    .data_dir(data_dir)
                    .name(&name)
                    .shared_memory(ShmAccess::Off)
                    .rdma_devices(RdmaDevices::Off)
                    .surroundings(surroundings);
                store.start().await.context(name)
            }
        };
        let stores = stream::iter((0..count).map(start)).buffer_unordered(AT_ONCE).try_collect().await?;
        Ok(Self { stores, links })
    }

    /// Returns the newest term in which a leader has confirmed a store as mounted.
    pub(super) fn newest_term(&self) -> u64 {
        self.stores.iter().filter_map(Store::mounted_in_term).max().unwrap_or(0)
    }

    /// Waits until all stores are mounted at leaders of terms after `term`.
    pub(super) async fn until_all(&self, term: u64) {
        self.until(self.stores.len(), term).await;
    }

    /// Waits until 99 % of the stores are mounted at leaders of terms after `term`.
    pub(super) async fn until_99(&self, term: u64) {
        self.until((self.stores.len() * 99).div_ceil(100), term).await;
    }

    async fn until(&self, enough: usize, term: u64) {
        let heard = |store: &&Store| store.ready() && store.mounted_in_term().is_some_and(|now| now > term);
        while self.stores.iter().filter(heard).count() < enough {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Ends all stores without telling the masters, which are about to end too.
    pub(super) fn stop(self) {
        let Self { stores, links } = self;
        drop(stores);
        drop(links);
    }
}
