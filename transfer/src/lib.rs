//! Moves bytes between clients and the memory that stores lend.
//!
//! [`Transport`] is the client library's interface: batches of (remote range, local buffers), each checked by the store
//! against a grant. Its shape suits one-sided transports, too: remote ranges rather than keys, scatter/gather lists on
//! the local side, batches, and registration of local memory. [`TcpTransport`] and [`DataServer`] are the two ends of
//! the first implementation. Beside them bytes go by RDMA where both have it ([`Rdma`]); [`ShmTransport`] reads past the store
//! where both are on one host. A store lends the
//! [`Segment`]s of its [`Memory`] and knows the cluster's time through an [`Authority`].

mod authority;
mod blocking_drop;
mod checksum;
mod choice;
mod client;
mod control;
mod data_encryption;
mod fence;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod fuzz;
mod memory;
mod path;
mod report;
mod server;
mod staged;
mod transport;

pub use authority::Authority;
pub use checksum::{Checksum, Sums};
pub use choice::{ParseTransportsError, Transports};
pub use control::client::TcpOptions;
pub use control::server::{Counters, Memory, RequestSeconds, Timeouts};
pub use data_encryption::{DataEncryption, ParseDataEncryptionError};
pub use fence::fence_limit;
pub use memory::{
    AllocateError, DeviceError, DeviceReport, HostMemory, KeptMemory, LentMemory, LostMemory, NoRdma,
    NotKept, ParseRdmaDevicesError, ParseRdmaOptionsError, RawBytes, Rdma, RdmaDevices, RdmaOptions,
    ReadBuffer, RegisterError, RegisteredMemory, Segment, SegmentDir, SegmentDirError, WriteBuffer,
};
pub use path::rdma::client::OnRdma;
pub use path::shm::client::{OnShared, ShmTransport};
pub use path::shm::{ParseShmAccessError, ShmAccess, socket_name};
pub use path::tcp::client::TcpTransport;
pub use report::{PeerReport, PeerTransport};
pub use server::{DataServer, DataServerConfig, Withdrawn};
pub use staged::StagedTransport;
pub use transport::{Peer, PeerEndpoint, ReadOp, Seal, TransferError, Transport, WriteOp, Written};
