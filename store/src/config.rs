use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use mc_transfer::{DataEncryption, RdmaDevices, RdmaOptions, ShmAccess, Transports};
use mc_types::{ByteSize, HostPort, MAX_SEGMENTS, ParseAddressError};

/// Smallest segment that a store accepts; a smaller one holds next to nothing.
pub(crate) const SMALLEST_SEGMENT: ByteSize = ByteSize(1 << 20);

/// Configuration of a store. Without a segment and masters it is not complete: see [`Self::check`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Memory to lend. Several values make several segments; an object must fit into one segment.
    pub segment: Vec<ByteSize>,
    /// Client addresses of the masters; one reachable master is enough to find the others.
    pub masters: Vec<HostPort>,
    /// Listen address for clients that read and write the memory; port 0 picks a free port.
    pub listen: SocketAddr,
    /// Host under which clients reach this store. `None`: the address of `listen`, or the local address that routes to
    /// the master.
    pub advertise: Option<String>,
    /// Port of this process' health and metrics on the same host, for the masters to show; `None` if it serves none.
    pub http_port: Option<u16>,
    /// Directory for the id of the store; the memory itself is never written to disk. `None`: the store gets a new id at
    /// each start.
    pub data_dir: Option<PathBuf>,
    /// Directory on a tmpfs or hugetlbfs in which the memory outlives the process: the next one of the same `data_dir` serves what is there. `None`:
    /// the memory ends with the process.
    pub segment_dir: Option<PathBuf>,
    /// Name for display. `None`: the host name if the store's certificate covers it, else the certificate's own and the port of
    /// `listen`; without one the host name and that port.
    pub name: Option<String>,
    /// Processes of this host that may share memory with the store.
    pub shm: ShmAccess,
    /// Transports to offer.
    pub transport: Transports,
    /// RDMA devices to offer them with.
    pub rdma_devices: RdmaDevices,
    /// Options of those devices.
    pub rdma_options: RdmaOptions,
    /// Whether bytes to and from clients go through TLS, where the store has certificates.
    pub data_encryption: DataEncryption,
}

impl Default for Config {
    /// Lends nothing and names no masters; listens on a free port of every address.
    fn default() -> Self {
        Self {
            segment: Vec::new(),
            masters: Vec::new(),
            listen: (Ipv4Addr::UNSPECIFIED, 0).into(),
            advertise: None,
            http_port: None,
            data_dir: None,
            segment_dir: None,
            name: None,
            shm: ShmAccess::default(),
            transport: Transports::default(),
            rdma_devices: RdmaDevices::default(),
            rdma_options: RdmaOptions::default(),
            data_encryption: DataEncryption::default(),
        }
    }
}

/// A configuration value that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidConfig {
    /// There is no segment.
    #[error("no segment is lent: lend at least one, of {SMALLEST_SEGMENT} or more")]
    NoSegment,
    /// A segment is smaller than the smallest that a store accepts.
    #[error("a segment of {0} is too small: lend at least {SMALLEST_SEGMENT}")]
    SmallSegment(ByteSize),
    /// The segments add up to more bytes than an address can name.
    #[error("the segments add up to more than 2^63 bytes")]
    TooMuch,
    /// The store has used up the numbers of segments.
    #[error("a store has at most {MAX_SEGMENTS} segments, those included that were unmounted")]
    TooManySegments,
    /// Memory can't be kept for a store that gets a new id at each start.
    #[error("memory is kept for a store that has a data directory: name one")]
    KeptWithoutId,
    /// The list of masters is empty.
    #[error("the list of masters is empty: name at least one, such as 10.0.0.1:50051")]
    NoMasters,
    /// An entry of the list of masters is not an address.
    #[error("the list of masters has an invalid entry: {0}")]
    Masters(ParseAddressError),
    /// The advertised host is neither a name nor an IP address.
    #[error("the advertised host {given}: {why}")]
    Advertise {
        /// The value as given.
        given: String,
        /// Why it is not a host.
        why: ParseAddressError,
    },
}

impl Config {
    /// Returns the bytes of all segments together.
    #[must_use]
    pub fn lent_bytes(&self) -> u64 {
        self.segment.iter().fold(0, |sum, size| sum.saturating_add(size.0))
    }

    /// Checks the constraints that parsing alone cannot check.
    ///
    /// # Errors
    /// [`InvalidConfig`], which names the value.
    pub fn check(&self) -> Result<(), InvalidConfig> {
        if self.segment.is_empty() {
            return Err(InvalidConfig::NoSegment);
        }
        if let Some(small) = self.segment.iter().find(|size| **size < SMALLEST_SEGMENT) {
            return Err(InvalidConfig::SmallSegment(*small));
        }
        if self.lent_bytes() > i64::MAX as u64 {
            return Err(InvalidConfig::TooMuch);
        }
        if self.segment_dir.is_some() && self.data_dir.is_none() {
            return Err(InvalidConfig::KeptWithoutId);
        }
        if self.masters.is_empty() {
            return Err(InvalidConfig::NoMasters);
        }
        if let Some(host) = &self.advertise {
            HostPort::new(host, 0).map_err(|why| InvalidConfig::Advertise { given: host.clone(), why })?;
        }
        Ok(())
    }
}
