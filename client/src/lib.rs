//! The Rust client library of mc, a replicated pool of memory for KV caches.
//!
//! [`Client`] finds the leader from any master, moves bytes directly between the caller's buffers and the stores, and
//! retries failed calls where that is safe. While no leader is in reach, it answers gets from its [local
//! cache](Builder::local_cache) and keeps puts there, to publish them later if
//! [`publish_local`](Builder::publish_local) is on. [`Admin`] queries the state of the masters and changes the cluster.
//!
//! Parts of objects are read with [`Client::batch_get_ranges`]. A [`GetSession`] reads one version of an object range by
//! range, and a [`PutSession`] writes one; both ask the leader once for a whole batch of objects, for example for all
//! blocks of a prompt, and then move layer after layer. [`GetSession::into_reader`] and [`PutSession::into_writer`] make streams of
//! bytes of them, for code that copies between files, sockets and objects. [`Client::list`] is a stream of keys.
//!
//! [`blocking`] has the client for threads without an async runtime.
//!
//! Each call runs in a `tracing` span `mc_client` at debug level, with its `operation` and its number of `items`, never a key.
//!
//! Runnable examples are in `client/examples/`: `put_get`, `batches`, `sessions` and `outcomes`. To run one: `cargo run
//! -p mc-client --example put_get -- 127.0.0.1:50051`.

mod admin;
mod avoid;
mod background;
pub mod blocking;
mod builder;
mod call;
mod client;
mod config;
mod connect;
mod core;
mod debug;
mod error;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod fuzz;
mod get;
mod keys;
mod local;
mod masters;
mod metrics;
mod mode;
mod options;
mod placement;
mod put;
mod range;
mod raw;
mod session;

pub use admin::{
    Admin, AuditKind, AuditLog, AuditRecord, ClusterStatus, Config, CutOff, Lookup, MasterReport,
    MasterStatus, Member, Members, OutdatedCaller, PlacedReplica, Principal, PrincipalChange, Quota,
    Security, SegmentStatus, Setting, StoreState, StoreStatus, Tenant, TenantRules, TransportStatus, WhoAmI,
};
pub use builder::Builder;
pub use bytes::Bytes;
pub use client::Client;
pub use config::DEFAULT_MASTER_PORT;
pub use error::{ConnectError, Error, Outcome};
pub use get::{GetInto, GetIntoOwned, GetRangesInto, GotOwned, RangeInto, Source};
pub use keys::{
    DescribedGroup, DescribedReplica, Description, KeyPage, ListPosition, ListedKey, Pin, Presence, Removed,
};
pub use mc_discovery::Leader;
pub use mc_net::{
    ChannelOptions, Connection, CredentialPaths, Incoming, Listener, Network, TcpNetwork, Tls, TlsError,
    TlsNetwork,
};
pub use mc_transfer::{
    AllocateError, Checksum, DeviceError, HostMemory, LentMemory, LostMemory, Memory, NoRdma,
    ParseRdmaDevicesError, ParseRdmaOptionsError, ParseShmAccessError, ParseTransportsError, Peer,
    PeerEndpoint, PeerReport, PeerTransport, RawBytes, RdmaDevices, RdmaOptions, ReadBuffer, ReadOp,
    RegisterError, RegisteredMemory, Seal, Segment, ShmAccess, TransferError, Transport, Transports,
    WriteBuffer, WriteOp, Written,
};
pub use mc_types::{
    ByteSize, ClientId, ClusterId, Code, Metric, MetricKind, NodeId, Nonce, ParseAddressError,
    ParseLevelError, ParseSizeError, ParseSpiffeError, ParseTokenError, PinAction, Proof, ProofKey, PutId,
    PutMode, Receipt, Replication, Role, SealedGrant, SegmentEpoch, SegmentNumber, SpiffeId, StoreId,
    TenantAccess, TlsLevel, Token, TokenHash, UnknownCode,
};
pub use metrics::{Stats, metrics_reference};
pub use mode::{Health, Mode};
pub use options::{Near, Put, PutOptions};
pub use put::PutFrom;
pub use range::ByteRange;
pub use raw::{
    GetIntoRaw, GetRangesIntoRaw, PutFromRaw, RangeFromRaw, RangeIntoRaw, ReadIntoRaw, WriteFromRaw,
};
pub use session::{GetSession, ObjectReader, ObjectWriter, PutSession, RangeFrom, ReadInto, WriteFrom};
