//! Values that the processes of mc exchange, and values computed from them. No I/O, no runtime.
//!
//! - Ids ([`NodeId`], [`StoreId`], ...), [`Grant`], the short-lived permission to touch ranges of a store's memory;
//!   [`Proof`], a client's proof that it is the holder of one; and [`Receipt`], a store's proof that a range was written.
//! - [`Code`]: the result of an operation on one item.
//! - [`PutMode`], [`Replication`], [`PinAction`]: options of a put.
//! - [`HostPort`], [`ByteSize`], [`Span`], [`Ratio`]: addresses, sizes, durations and shares as people write them.
//! - [`SpiffeId`]: the identity in a certificate; [`Token`], a secret that stands for one; [`TlsLevel`].
//! - [`Metric`]: a metric as the reference page lists it.
//! - [`ClusterTime`], and [`Clock`], the injected monotonic clock beneath it.

mod addr;
mod clock;
mod code;
mod endpoint;
mod grant;
mod ids;
mod limits;
mod metric;
mod proof;
mod put;
mod ratio;
mod receipt;
mod secret;
mod size;
mod spiffe;
mod tls_level;
mod token;

pub use addr::{HostPort, ParseAddressError, parse_list};
pub use clock::{Clock, ClusterTime};
pub use code::{Code, UnknownCode};
pub use endpoint::{GRANT_FORMAT, STORE_INCARNATION, STORE_NAME, STORE_TENANT};
pub use grant::{Access, Grant, GrantError, GrantKey, GrantedRange, SealedGrant};
pub use ids::{ClientId, ClusterId, NodeId, PutId, SegmentEpoch, SegmentNumber, StoreId};
pub use limits::{
    ALLOCATION_ALIGN, MAX_COMMAND_BYTES, MAX_GRANT_LIFETIME, MAX_GROUP_LEN, MAX_GROUP_MEMBERS, MAX_ITEMS,
    MAX_KEY_LEN, MAX_NAMED_STORES, MAX_SEGMENTS, MAX_TENANT_LEN,
};
pub use metric::{Metric, MetricKind};
pub use proof::{Nonce, Proof, ProofKey};
pub use put::{PinAction, PutMode, Replication, SOFT_PIN, SOFT_PIN_MAX};
pub use ratio::{ParseRatioError, Ratio};
pub use receipt::{Receipt, ReceiptKey};
pub use size::{ByteSize, ParseSizeError, ParseSpanError, Span};
pub use spiffe::{DEFAULT_TENANT, ParseSpiffeError, Role, SpiffeId, TenantAccess};
pub use tls_level::{ParseLevelError, TlsLevel};
pub use token::{ParseTokenError, Token, TokenHash};
