//! A store: allocates memory, serves it, mounts it at the masters, and keeps it mounted through their failovers.
//!
//! [`Store`] is a value that any process can embed; nothing here is global. `mc-store-server` is the process around it.
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let store = mc_store::Store::builder().segment("50gb".parse()?).masters("a,b,c").start().await?;
//! // ... until the process ends:
//! store.stop(std::time::Duration::from_secs(2)).await;
//! # Ok(())
//! # }
//! ```

mod builder;
mod config;
mod data;
mod data_dir;
mod descriptors;
mod error;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod fuzz;
mod link;
mod masters;
mod segments;
mod start;
mod state;
mod store;
mod transports;

pub use builder::{Builder, DEFAULT_MASTER_PORT};
pub use config::{Config, InvalidConfig};
pub use data::Totals;
pub use error::{Port, StartError};
pub use masters::MasterList;
pub use mc_durable::DurableError;
pub use mc_net::{
    CallerRecord, CallerRecords, ChannelOptions, Connection, CredentialPaths, Incoming, Listener, Network,
    TcpNetwork, Tls, TlsError, TlsNetwork,
};
pub use mc_transfer::{
    AllocateError, Checksum, DataEncryption, DeviceError, LostMemory, Memory, NoRdma, NotKept,
    ParseDataEncryptionError, ParseRdmaDevicesError, ParseRdmaOptionsError, ParseShmAccessError,
    ParseTransportsError, RawBytes, RdmaDevices, RdmaOptions, ReadBuffer, RequestSeconds, Segment,
    SegmentDirError, ShmAccess, Transports,
};
pub use mc_types::{
    ByteSize, Clock, ClusterId, HostPort, ParseAddressError, ParseLevelError, ParseSizeError,
    ParseSpiffeError, ParseTokenError, Role, SegmentEpoch, SegmentNumber, SpiffeId, StoreId, TenantAccess,
    TlsLevel, TokenHash,
};
pub use segments::{SegmentError, Segments};
pub use state::{MemoryStart, StoreReport, StoreStatus};
pub use store::{Opened, Store, Surroundings};
pub use transports::TransportReport;
