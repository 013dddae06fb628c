use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use mc_net::{Tls, TlsNetwork};
use mc_transfer::{DataEncryption, RdmaDevices, RdmaOptions, ShmAccess, Transports};
use mc_types::{ByteSize, HostPort, ParseAddressError, TlsLevel, parse_list};

use crate::config::{Config, InvalidConfig};
use crate::error::StartError;
use crate::store::{Store, Surroundings};

/// Port of a master's client API where an address names none.
pub const DEFAULT_MASTER_PORT: u16 = 50051;

type Progress = dyn FnMut(ByteSize, ByteSize) + Send;

/// Configures and starts a [`Store`]. [`Store::builder`] makes one.
///
/// A store needs a [segment](Self::segment) and its [masters](Self::masters); everything else has a default.
#[must_use = "a builder does nothing until it is started"]
pub struct Builder {
    config: Config,
    masters: Result<Vec<HostPort>, ParseAddressError>,
    surroundings: Option<Surroundings>,
    tls_dir: Option<PathBuf>,
    tls_level: Option<TlsLevel>,
    progress: Box<Progress>,
}

impl Builder {
    /// Lends a segment of this size. Called several times, it lends several; an object must fit into one segment.
    pub fn segment(mut self, size: ByteSize) -> Self {
        self.config.segment.push(size);
        self
    }

    /// Sets the client addresses of the masters, comma-separated, such as `a,b:50051`. One reachable master is enough
    /// to find the others. The default port is [`DEFAULT_MASTER_PORT`].
    pub fn masters(self, addresses: impl AsRef<str>) -> Self {
        Self { masters: parse_list(addresses.as_ref(), DEFAULT_MASTER_PORT), ..self }
    }

    /// Sets the directory that keeps the id of the store. Without one the store is a new one each time: the masters
    /// count its former self as suspect until they drop it.
    pub fn data_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.config.data_dir = Some(dir.into());
        self
    }

    /// Sets a directory on a tmpfs or hugetlbfs in which the memory outlives the process: the next one with the same [data
    /// directory](Self::data_dir) serves what is there.
    pub fn segment_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.config.segment_dir = Some(dir.into());
        self
    }

    /// Sets the listen address for clients that read and write the memory. Default: a free port on every address.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.config.listen = address;
        self
    }

    /// Sets the host under which clients reach this store. Default: the address that it listens on, or the local
    /// address that routes to the master.
    pub fn advertise(mut self, host: impl Into<String>) -> Self {
        self.config.advertise = Some(host.into());
        self
    }

    /// Sets the port of this process' health and metrics, which the masters show. Default: none.
    pub fn http_port(mut self, port: u16) -> Self {
        self.config.http_port = Some(port);
        self
    }

    /// Sets the name for display. Default: the host name and the port.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.config.name = Some(name.into());
        self
    }

    /// Sets which processes of this host may share memory with the store. Default: those of the same user, and root, and nobody
    /// where TLS is required.
    pub fn shared_memory(mut self, access: ShmAccess) -> Self {
        self.config.shm = access;
        self
    }

    /// Sets the transports to offer besides TCP. Default: all that there are.
    pub fn transports(mut self, transports: Transports) -> Self {
        self.config.transport = transports;
        self
    }

    /// Sets the RDMA devices to use. Default: all with an active port.
    pub fn rdma_devices(mut self, devices: RdmaDevices) -> Self {
        self.config.rdma_devices = devices;
        self
    }

    /// Sets how RDMA connections are made. Default: what suits most networks.
    pub fn rdma_options(mut self, options: RdmaOptions) -> Self {
        self.config.rdma_options = options;
        self
    }

    /// Sets whether bytes to and from clients go through TLS, where the store has certificates. Default: they do. Off is faster, and lets
    /// everybody on the way read and change them.
    pub fn data_encryption(mut self, encryption: DataEncryption) -> Self {
        self.config.data_encryption = encryption;
        self
    }

    /// Sets what the store takes from its process, such as a network of a simulation or histograms of transfers.
    pub fn surroundings(self, surroundings: Surroundings) -> Self {
        Self { surroundings: Some(surroundings), ..self }
    }

    /// Sets the folder with this store's certificate (`tls.crt`, `tls.key`) and the authorities that it trusts (`ca.crt`). Default: the
    /// folder in the variable `MC_TLS_DIR`, else `mc-data/tls` if it has some, else plain connections; `none` is for plain
    /// connections in any case. It has no effect with [surroundings](Self::surroundings) of its own.
    pub fn tls_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.tls_dir = Some(dir.into());
        self
    }

    /// Sets how far a store with certificates insists on TLS, whatever its cluster does. Default: as far as its cluster; TLS is
    /// required while that is not known. It has no effect with [surroundings](Self::surroundings) of its own.
    pub fn tls_level(mut self, level: TlsLevel) -> Self {
        self.tls_level = Some(level);
        self
    }

    /// Sets a callback that receives the bytes that are ready and the bytes in total while the memory is allocated.
    pub fn progress(self, progress: impl FnMut(ByteSize, ByteSize) + Send + 'static) -> Self {
        Self { progress: Box::new(progress), ..self }
    }

    /// Allocates the memory, serves it, and returns. The store mounts it as soon as it finds a leader.
    ///
    /// # Errors
    /// [`StartError`]; a failed start leaves nothing behind.
    ///
    /// # Panics
    /// Outside of a tokio runtime. The store serves on that runtime, which must outlive it.
    pub async fn start(self) -> Result<Store, StartError> {
        let Self { config, masters, surroundings, tls_dir, tls_level, progress } = self;
        let masters = masters.map_err(InvalidConfig::Masters)?;
        let surroundings = match surroundings {
            Some(surroundings) => surroundings,
            None => {
                let network = TlsNetwork::shared(Tls::find(tls_dir.as_deref())?);
                Surroundings { network, tls_level, ..Surroundings::default() }
            }
        };
        Store::open(Config { masters, ..config }, surroundings)?.start(progress).await
    }
}

impl Store {
    /// Begins the configuration of a store.
    pub fn builder() -> Builder {
        Builder::from(Config::default())
    }
}

impl From<Config> for Builder {
    fn from(config: Config) -> Self {
        let masters = Ok(config.masters.clone());
        let progress = Box::new(|_, _| {});
        Self { config, masters, surroundings: None, tls_dir: None, tls_level: None, progress }
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { config, masters, .. } = self;
        f.debug_struct("Builder").field("config", config).field("masters", masters).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(builder: Builder) -> StartError {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(builder.start()).unwrap_err()
    }

    #[test]
    fn a_store_needs_a_segment_and_masters_and_each_error_names_what_lacks() {
        let mib = ByteSize(1 << 20);
        let lacks = |builder| match refused(builder) {
            StartError::Config(why) => why,
            other => panic!("{other}"),
        };
        assert_eq!(lacks(Store::builder().masters("a,b")), InvalidConfig::NoSegment);
        assert_eq!(lacks(Store::builder().segment(mib)), InvalidConfig::NoMasters);
        let small = lacks(Store::builder().segment(mib).segment(ByteSize(7)).masters("a"));
        assert_eq!(small, InvalidConfig::SmallSegment(ByteSize(7)));
        let address = lacks(Store::builder().segment(mib).masters("a,b:c:d"));
        assert!(
            matches!(&address, InvalidConfig::Masters(why) if why.to_string().contains("b:c:d")),
            "{address}"
        );
        for error in [InvalidConfig::NoSegment, InvalidConfig::NoMasters, small, address] {
            assert!(!error.to_string().contains("--"), "a program has no flags: {error}");
        }
    }

    #[test]
    fn a_store_without_a_data_directory_is_a_new_one_each_time() {
        let config = || Config { masters: parse_list("127.0.0.1:1", 1).unwrap(), ..one_mib() };
        let open = || Store::open(config(), Surroundings::default()).unwrap();
        assert_ne!(open().status().report().id, open().status().report().id);
    }

    fn one_mib() -> Config {
        Config { segment: vec![ByteSize(1 << 20)], listen: ([127, 0, 0, 1], 0).into(), ..Config::default() }
    }
}
