use std::net::SocketAddr;
use std::path::PathBuf;

use mc_transfer::{RdmaDevices, RdmaOptions, ShmAccess, Transports};
use mc_types::{ByteSize, HostPort, ParseAddressError};

/// Smallest segment that a store accepts; a smaller one holds next to nothing.
pub(crate) const SMALLEST_SEGMENT: ByteSize = ByteSize(1 << 20);

/// Configuration of a store.
#[derive(Clone, Debug)]
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
    /// Directory for the id of the store; the memory itself is never written to disk.
    pub data_dir: PathBuf,
    /// Name for display. `None`: the host name and the port of `listen`.
    pub name: Option<String>,
    /// Processes of this host that may share memory with the store.
    pub shm: ShmAccess,
    /// Transports to offer.
    pub transport: Transports,
    /// RDMA devices to offer them with.
    pub rdma_devices: RdmaDevices,
    /// How to use them.
    pub rdma_options: RdmaOptions,
}

/// A configuration value that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidConfig {
    /// A segment is smaller than the smallest that a store accepts.
    #[error("--segment {0} is too small: lend at least {SMALLEST_SEGMENT}")]
    SmallSegment(ByteSize),
    /// The segments add up to more bytes than an address can name.
    #[error("--segment adds up to more than 2^63 bytes")]
    TooMuch,
    /// The list of masters is empty.
    #[error("--masters is empty: name at least one master, such as 10.0.0.1:50051")]
    NoMasters,
    /// The advertised host is neither a name nor an IP address.
    #[error("--advertise {given}: {why}")]
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
    /// [`InvalidConfig`], which names the flag.
    pub fn check(&self) -> Result<(), InvalidConfig> {
        if let Some(small) = self.segment.iter().find(|size| **size < SMALLEST_SEGMENT) {
            return Err(InvalidConfig::SmallSegment(*small));
        }
        if self.lent_bytes() > i64::MAX as u64 {
            return Err(InvalidConfig::TooMuch);
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
