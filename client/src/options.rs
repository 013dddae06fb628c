use std::sync::{Arc, Weak};
use std::time::Duration;

use mc_net::{Network, TcpNetwork};
use mc_transfer::{Segment, TcpTransport, Transport};
use mc_types::{ByteSize, ClusterId, StoreId};

use crate::{Client, ConnectError};

/// Default port of the masters' client API.
pub const DEFAULT_MASTER_PORT: u16 = 50051;

/// Longer durations count as this one: clocks can't count up to [`Duration::MAX`].
pub(crate) const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Settings of a [`Client`]; made by [`Client::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    pub(crate) masters: String,
    pub(crate) local_cache: ByteSize,
    pub(crate) publish_local: bool,
    pub(crate) embedded: Option<(StoreId, Vec<Weak<Segment>>)>,
    pub(crate) leader_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) call_timeout: Duration,
    pub(crate) get_timeout: Duration,
    pub(crate) tenant: String,
    pub(crate) checksum: bool,
    pub(crate) cluster: Option<ClusterId>,
    pub(crate) network: Arc<dyn Network>,
    pub(crate) transport: Arc<dyn Transport>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            masters: format!("127.0.0.1:{DEFAULT_MASTER_PORT}"),
            local_cache: ByteSize(256 << 20),
            publish_local: false,
            embedded: None,
            leader_timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_millis(300),
            call_timeout: Duration::from_secs(5),
            get_timeout: Duration::from_secs(10),
            tenant: String::new(),
            checksum: true,
            cluster: None,
            network: TcpNetwork::shared(),
            transport: Arc::new(TcpTransport::default()),
        }
    }
}

impl Builder {
    /// Client addresses of the masters, comma-separated: `host`, `host:port`, `ip`, `[ipv6]:port`. The default port is
    /// 50051, and a name with several records is several masters. One reachable master is enough to find the
    /// others. Default: `127.0.0.1:50051`.
    #[must_use]
    pub fn masters(mut self, list: impl Into<String>) -> Self {
        self.masters = list.into();
        self
    }

    /// Memory for objects recently read or written here. 0 switches the cache off, and with it local-only reads of all
    /// that does not lie in an [embedded store](Self::embedded_store).
    /// [`Self::connect`] logs what it is. Default: 256 MiB.
    #[must_use]
    pub fn local_cache(mut self, size: ByteSize) -> Self {
        self.local_cache = size;
        self
    }

    /// Put what local-only mode kept into the pool once a leader is back, if its key is absent there. A local put is
    /// tried until it is published, refused for good (too large, an invalid key or parameter), evicted from the local
    /// cache, or overtaken by a later put or remove of this client; all of them are gone with this client.
    /// [`Put::LocalOnly`] is no acknowledgement with this either. [`Stats`](crate::Stats) counts them:
    /// [`puts_published`](crate::Stats::puts_published), [`local_puts_refused`](crate::Stats::local_puts_refused),
    /// [`local_puts_evicted`](crate::Stats::local_puts_evicted). Default: off.
    #[must_use]
    pub fn publish_local(mut self, on: bool) -> Self {
        self.publish_local = on;
        self
    }

    /// A store that runs in this process, by its id and its memory: without a leader, gets are answered from there too.
    /// The client remembers what of its own puts and gets lies there (in about 64 MiB, beside the local cache),
    /// and compares each value with the checksum that its writer recorded, whatever [`Self::checksum`] says. It does not
    /// keep the memory: once the store has stopped, these are misses. [`Stats::embedded_hits`](crate::Stats::embedded_hits)
    /// counts the others. Default: none.
    #[must_use]
    pub fn embedded_store(mut self, id: StoreId, segments: &[Arc<Segment>]) -> Self {
        self.embedded = Some((id, segments.iter().map(Arc::downgrade).collect()));
        self
    }

    /// How long no leader may answer before the client goes into local-only mode. Shorter gives up on an election
    /// that is under way; longer holds calls that long. Default: 1 s.
    #[must_use]
    pub fn leader_timeout(mut self, timeout: Duration) -> Self {
        self.leader_timeout = timeout.min(LONGEST);
        self
    }

    /// Longest connect to a master. Default: 300 ms.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout.min(LONGEST);
        self
    }

    /// Deadline of every metadata call, retries included. Default: 5 s.
    #[must_use]
    pub fn call_timeout(mut self, timeout: Duration) -> Self {
        self.call_timeout = timeout.min(LONGEST);
        self
    }

    /// Deadline of a get, metadata and transfer together. Default: 10 s.
    #[must_use]
    pub fn get_timeout(mut self, timeout: Duration) -> Self {
        self.get_timeout = timeout.min(LONGEST);
        self
    }

    /// Tenant of every key of this client, at most 64 bytes. Default: the default tenant, whose name is empty.
    #[must_use]
    pub fn tenant(mut self, name: impl Into<String>) -> Self {
        self.tenant = name.into();
        self
    }

    /// Compare the checksum of everything that is read with the one that its writer recorded. Default: on.
    #[must_use]
    pub fn checksum(mut self, on: bool) -> Self {
        self.checksum = on;
        self
    }

    /// The cluster that is meant, when it is known beforehand. Default: the one that answers first.
    #[must_use]
    pub fn cluster(mut self, id: ClusterId) -> Self {
        self.cluster = Some(id);
        self
    }

    /// How connections to masters are made. Default: this machine's sockets.
    #[must_use]
    pub fn network(mut self, network: Arc<dyn Network>) -> Self {
        self.network = network;
        self
    }

    /// How bytes are moved. Default: TCP.
    #[must_use]
    pub fn transport(mut self, transport: Arc<dyn Transport>) -> Self {
        self.transport = transport;
        self
    }

    /// Looks for the leader and returns when it is found, or after the leader timeout in local-only mode: the client
    /// then goes on looking by itself ([`Client::connected`] waits for it).
    ///
    /// # Errors
    /// [`ConnectError`] when the settings are wrong, or the masters that answer cannot be used.
    pub async fn connect(self) -> Result<Client, ConnectError> {
        Client::connect(self).await
    }
}

/// Behaviour of a put whose key exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PutMode {
    /// The object that is there stays, and the put answers [`Put::AlreadyExists`]. For content-addressed keys.
    #[default]
    IfAbsent,
    /// The new value replaces it.
    Upsert,
}

/// How to put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutOptions {
    /// Behaviour when the key exists.
    pub mode: PutMode,
    /// Replicas; fewer are placed when fewer stores have room.
    pub replicas: u32,
    /// Deadline of the whole put, its transfer included. The masters free what an abandoned put holds by then.
    pub deadline: Duration,
    /// Stores to place on first, in this order.
    pub preferred: Vec<StoreId>,
}

impl Default for PutOptions {
    fn default() -> Self {
        Self {
            mode: PutMode::IfAbsent,
            replicas: 1,
            deadline: Duration::from_secs(30),
            preferred: Vec::new(),
        }
    }
}

/// Result of a successful put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The value is in the pool, acknowledged by a majority of the masters.
    Stored,
    /// The key was there already; its value stays.
    AlreadyExists,
    /// No leader was in reach: the value is in this client's local cache only, and that is not an acknowledgement.
    LocalOnly,
}

/// Whether the client reaches a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A leader is known, or one was a moment ago.
    Connected,
    /// No leader has answered for the leader timeout: gets answer from the local cache and an embedded store's memory,
    /// puts stay in the cache.
    LocalOnly,
}
