use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use mc_net::{Network, Tls, TlsNetwork};
use mc_transfer::{HostMemory, Memory, RdmaDevices, RdmaOptions, ShmAccess, Transport, Transports};
use mc_types::{ByteSize, ClusterId, StoreId};
use tokio::runtime::Handle;

use crate::error::ConnectError;

/// Default port of the masters' client API.
pub const DEFAULT_MASTER_PORT: u16 = 50051;

/// Maximum of every configurable duration: clocks can't count up to [`Duration::MAX`].
pub(crate) const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Settings of a client. [`Builder`](crate::Builder) has a setter for each, with its meaning.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) masters: String,
    pub(crate) local_cache: ByteSize,
    pub(crate) publish_local: bool,
    pub(crate) fail_local_misses: bool,
    pub(crate) fail_unfinished_gets: bool,
    pub(crate) require_leader: bool,
    pub(crate) embedded: Option<(StoreId, Weak<Memory>)>,
    pub(crate) leader_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) call_timeout: Duration,
    pub(crate) get_timeout: Duration,
    pub(crate) tenant: String,
    pub(crate) checksum: bool,
    pub(crate) cluster: Option<ClusterId>,
    pub(crate) network: Option<Arc<dyn Network>>,
    pub(crate) tls_dir: Option<PathBuf>,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) shm: ShmAccess,
    pub(crate) transports: Transports,
    pub(crate) rdma_devices: RdmaDevices,
    pub(crate) rdma_options: RdmaOptions,
    pub(crate) host_memory: Option<HostMemory>,
    pub(crate) transport: Option<Arc<dyn Transport>>,
    pub(crate) runtime: Option<Handle>,
}

impl Config {
    /// Returns the network that was set, or this machine's with the certificates that are found.
    pub(crate) fn network(&self) -> Result<Arc<dyn Network>, ConnectError> {
        if let Some(network) = &self.network {
            return Ok(network.clone());
        }
        let dir = self.tls_dir.as_deref();
        let tls = match &self.token_file {
            Some(token) => Tls::find_with_token(dir, token).map(Some),
            None => Tls::find(dir),
        };
        Ok(TlsNetwork::shared(tls.map_err(|error| ConnectError::Tls { why: error.to_string() })?))
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            masters: format!("127.0.0.1:{DEFAULT_MASTER_PORT}"),
            local_cache: ByteSize(256 << 20),
            publish_local: false,
            fail_local_misses: false,
            fail_unfinished_gets: false,
            require_leader: false,
            embedded: None,
            leader_timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_millis(300),
            call_timeout: Duration::from_secs(5),
            get_timeout: Duration::from_secs(10),
            tenant: String::new(),
            checksum: true,
            cluster: None,
            network: None,
            tls_dir: None,
            token_file: None,
            shm: ShmAccess::SameUid,
            transports: Transports::default(),
            rdma_devices: RdmaDevices::default(),
            rdma_options: RdmaOptions::default(),
            host_memory: None,
            transport: None,
            runtime: None,
        }
    }
}
