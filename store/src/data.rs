//! The data server of the present epoch.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use mc_base::{ClusterId, ClusterTime, StoreId};
use mc_transfer::{Authority, DataServer, DataServerConfig, Segment};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::link::{Identity, Served};

/// How long a grant is good for at most, and so how long the store remembers what it saw of a range.
const GRANT_LIFETIME: Duration = Duration::from_secs(600);
/// How long until a port that could not be bound again is tried again.
const REBIND: Duration = Duration::from_millis(100);
