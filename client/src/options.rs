use std::sync::{Arc, Weak};
use std::time::Duration;

use mc_net::{Network, TcpNetwork};
use mc_transfer::{HostMemory, Memory, RdmaDevices, RdmaOptions, ShmAccess, Transport, Transports};
use mc_types::{ByteSize, ClusterId, StoreId};
use tokio::runtime::Handle;

use crate::background::Background;
use crate::{Client, ConnectError, blocking};

/// Default port of the masters' client API.
pub const DEFAULT_MASTER_PORT: u16 = 50051;

/// Maximum of every configurable duration: clocks can't count up to [`Duration::MAX`].
pub(crate) const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Settings of a [`Client`], created by [`Client::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
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
    pub(crate) network: Arc<dyn Network>,
    pub(crate) shm: ShmAccess,
    pub(crate) transports: Transports,
    pub(crate) rdma_devices: RdmaDevices,
    pub(crate) rdma_options: RdmaOptions,
    pub(crate) host_memory: Option<HostMemory>,
    pub(crate) transport: Option<Arc<dyn Transport>>,
    pub(crate) runtime: Option<Handle>,
}

impl Default for Builder {
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
            network: TcpNetwork::shared(),
            shm: ShmAccess::default(),
            transports: Transports::default(),
            rdma_devices: RdmaDevices::default(),
            rdma_options: RdmaOptions::default(),
            host_memory: None,
            transport: None,
            runtime: None,
        }
    }
}

impl Builder {
    /// Sets the client addresses of the masters, comma-separated: `host`, `host:port`, `ip`, `[ipv6]:port`. The default
    /// port is 50051. A name with several DNS records stands for several masters. One reachable master is enough to
    /// find the others. Default: `127.0.0.1:50051`.
    #[must_use]
    pub fn masters(mut self, list: impl Into<String>) -> Self {
        self.masters = list.into();
        self
    }

    /// Sets the memory for objects recently read or written by this client. 0 switches the cache off. Local-only mode
    /// then reads only from an [embedded store](Self::embedded_store). [`Self::connect`] logs the size. Default: 256
    /// MiB.
    #[must_use]
    pub fn local_cache(mut self, size: ByteSize) -> Self {
        self.local_cache = size;
        self
    }

    /// Publishes the values that local-only mode kept to the pool once a leader is back, if their keys are absent
    /// there.
    ///
    /// The client retries a local put until it is published, refused for good (too large, an invalid key or parameter),
    /// evicted from the local cache, or overtaken by a later put or remove of this client. Unpublished local puts are
    /// lost when this client ends, so [`Put::LocalOnly`] is no acknowledgement in this mode either.
    /// [`Stats`](crate::Stats) counts them: [`puts_published`](crate::Stats::puts_published),
    /// [`local_puts_refused`](crate::Stats::local_puts_refused),
    /// [`local_puts_evicted`](crate::Stats::local_puts_evicted). Default: off.
    #[must_use]
    pub fn publish_local(mut self, on: bool) -> Self {
        self.publish_local = on;
        self
    }

    /// Sets whether a get, exist or size that misses in local-only mode fails with `NO_LEADER`. Such a miss says nothing about the pool, which
    /// was not asked. Default: off, it is a miss.
    #[must_use]
    pub fn fail_local_misses(mut self, on: bool) -> Self {
        self.fail_local_misses = on;
        self
    }

    /// Sets whether a get of a key fails with `REPLICA_IS_NOT_READY` if there is no object yet, but a put of it has started and has not ended.
    /// It goes for ranges and for the opening of get sessions, too; [`presence`](Client::presence) tells such a key from others in any case.
    /// Masters of older builds don't tell. Default: off, it is a miss.
    #[must_use]
    pub fn fail_unfinished_gets(mut self, on: bool) -> Self {
        self.fail_unfinished_gets = on;
        self
    }

    /// Sets whether [`Self::connect`] fails with [`ConnectError::NoLeader`] if it finds no leader. Default: off, the client starts in local-only
    /// mode and goes on looking; [`Client::last_error`] says why it found none.
    #[must_use]
    pub fn require_leader(mut self, on: bool) -> Self {
        self.require_leader = on;
        self
    }

    /// Names a store that runs in this process, by its id and memory: puts and gets copy its bytes without a connection, if
    /// [`Self::transports`] and [`Self::shared_memory`] permit shared memory. It also answers gets while no leader is in reach.
    ///
    /// The client remembers which objects of its own puts and gets lie there (in about 64 MiB, beside the local cache).
    /// It compares each value with the checksum that its writer recorded, whatever [`Self::checksum`] says. It does not
    /// keep the memory alive: once the store has stopped, these gets miss.
    /// [`Stats::embedded_hits`](crate::Stats::embedded_hits) counts the hits. Default: none.
    #[must_use]
    pub fn embedded_store(mut self, id: StoreId, memory: &Arc<Memory>) -> Self {
        self.embedded = Some((id, Arc::downgrade(memory)));
        self
    }

    /// Sets the time without a leader after which the client enters local-only mode. A shorter time gives up during an
    /// election; a longer one makes calls wait longer. Default: 1 s.
    #[must_use]
    pub fn leader_timeout(mut self, timeout: Duration) -> Self {
        self.leader_timeout = timeout.min(LONGEST);
        self
    }

    /// Sets the time limit for connecting to a master. Default: 300 ms.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout.min(LONGEST);
        self
    }

    /// Sets the deadline of every metadata call, retries included. Default: 5 s.
    #[must_use]
    pub fn call_timeout(mut self, timeout: Duration) -> Self {
        self.call_timeout = timeout.min(LONGEST);
        self
    }

    /// Sets the deadline of a get, metadata and transfer together. Default: 10 s.
    #[must_use]
    pub fn get_timeout(mut self, timeout: Duration) -> Self {
        self.get_timeout = timeout.min(LONGEST);
        self
    }

    /// Sets the tenant of every key of this client, at most 64 bytes. Default: the default tenant, whose name is empty.
    #[must_use]
    pub fn tenant(mut self, name: impl Into<String>) -> Self {
        self.tenant = name.into();
        self
    }

    /// Sets whether to compare every value read with the checksum that its writer recorded. Default: on. Objects whose
    /// places the leader can't vouch for are compared in any case.
    #[must_use]
    pub fn checksum(mut self, on: bool) -> Self {
        self.checksum = on;
        self
    }

    /// Sets the only cluster that the client may use. Default: the cluster that answers first.
    #[must_use]
    pub fn cluster(mut self, id: ClusterId) -> Self {
        self.cluster = Some(id);
        self
    }

    /// Sets the network that connects to masters. Default: this machine's sockets.
    #[must_use]
    pub fn network(mut self, network: Arc<dyn Network>) -> Self {
        self.network = network;
        self
    }

    /// Sets the stores of this host to share memory with, by the users of their processes: the client reads from theirs, and
    /// they copy puts out of its own. All others are used over TCP. It has no effect on a client with a [transport](Self::transport) of its own. Default:
    /// [`ShmAccess::SameUid`].
    #[must_use]
    pub fn shared_memory(mut self, access: ShmAccess) -> Self {
        self.shm = access;
        self
    }

    /// Sets the transports that move bytes to and from stores. Each store is reached by the best one that both have. With
    /// [`Transports::Rdma`] a client does not connect without a device, and a store that can't be reached by RDMA counts as
    /// unreachable. With [`Transports::Auto`], the default, other transports replace RDMA; [`Client::rdma_devices`] says whether and why.
    #[must_use]
    pub fn transports(mut self, transports: Transports) -> Self {
        self.transports = transports;
        self
    }

    /// Sets the RDMA devices to use. Default: all that have an active port.
    /// The client opens the system's libibverbs for them, unless the [transports](Self::transports) exclude RDMA.
    #[must_use]
    pub fn rdma_devices(mut self, devices: RdmaDevices) -> Self {
        self.rdma_devices = devices;
        self
    }

    /// Sets how the RDMA devices are used. Default: [`RdmaOptions::default`].
    #[must_use]
    pub fn rdma_options(mut self, options: RdmaOptions) -> Self {
        self.rdma_options = options;
        self
    }

    /// Sets the memory of this process that bytes move from and to where it is. Clients with the same one share what was allocated and
    /// registered there. It has no effect on a client with a [transport](Self::transport) of its own. Default: each client has
    /// its own.
    #[must_use]
    pub fn host_memory(mut self, memory: &HostMemory) -> Self {
        self.host_memory = Some(memory.clone());
        self
    }

    /// Sets a transport of your own to move bytes to and from stores. Default: by [RDMA, shared memory and
    /// TCP](Self::transports).
    #[must_use]
    pub fn transport(mut self, transport: Arc<dyn Transport>) -> Self {
        self.transport = Some(transport);
        self
    }

    /// Sets the runtime for the client's background work: the search for the leader, watches, connections to masters, and the
    /// publishing of local puts. It must have timers and I/O, be driven all the time, and outlive the client; when it ends, the
    /// client is [closed](Health::Closed). The connections to stores then belong to the runtimes of the calls that make them. Set it
    /// in a process with hundreds of clients, to save their threads. Default: a thread of the client's own, which works from any
    /// runtime or none.
    #[must_use]
    pub fn runtime(mut self, runtime: Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Looks for the leader and returns when it is found, or without one after the leader timeout.
    ///
    /// Without one the client starts in local-only mode and keeps looking in the background, unless
    /// [a leader is required](Self::require_leader): [`Client::last_error`] says why, and [`Client::connected`] waits for a leader.
    ///
    /// # Errors
    /// [`ConnectError`] when the settings are wrong, or the masters that answer cannot be used.
    pub async fn connect(self) -> Result<Client, ConnectError> {
        let background = self.background()?;
        background.clone().run("connect", 1, Client::connect(self, background)).await
    }

    /// [`connect`](Self::connect) for a thread without an async runtime.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    ///
    /// # Panics
    /// In a thread that drives async tasks: see [`blocking`].
    pub fn connect_blocking(self) -> Result<blocking::Client, ConnectError> {
        let background = self.background()?;
        let connect = background.run("connect", 1, Client::connect(self, background.clone()));
        background.wait(connect).map(Into::into)
    }

    fn background(&self) -> Result<Background, ConnectError> {
        let started = Background::start(self.runtime.clone());
        started.map_err(|error| ConnectError::Thread { why: error.to_string() })
    }
}

/// Behaviour of a put whose key exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PutMode {
    /// Keeps the existing object and returns [`Put::AlreadyExists`]. For content-addressed keys.
    #[default]
    IfAbsent,
    /// Replaces the existing object.
    Upsert,
}

/// Options of a put. One call sets what differs from the default:
///
/// ```
/// # use mc_client::{PutMode, PutOptions};
/// let options = PutOptions::default().with_mode(PutMode::Upsert).with_replicas(2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PutOptions {
    /// Behaviour when the key exists.
    pub mode: PutMode,
    /// Number of replicas.
    pub replicas: u32,
    /// Whether fewer replicas will do when fewer stores have room.
    pub replication: Replication,
    /// Time limit of the whole put, its transfer included. After it the masters free the space of a put that has not
    /// ended.
    pub deadline: Duration,
    /// Stores to prefer for the replicas, in this order.
    pub preferred: Vec<StoreId>,
    /// Stores to prefer after those, by name or by host:port. Unknown ones are passed over.
    pub preferred_names: Vec<String>,
    /// Host to prefer after these stores.
    pub near: Near,
    /// Tag of the objects, which the pool keeps and does not interpret. [`Description::data_type`](crate::Description)
    /// has it.
    pub data_type: u8,
    /// Group that the objects join, unless their items name another. Empty: none. See [`PutFrom::group`](crate::PutFrom).
    pub group: Vec<u8>,
    /// Protection of the object from eviction. A put-if-absent that finds its key changes nothing. A put that stays local
    /// (see [`Builder::publish_local`]) is published without a pin.
    pub pin: PinAction,
}

/// Whether a put may have fewer replicas than it asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Replication {
    /// As many as there is room for, at least one.
    #[default]
    BestEffort,
    /// All of them; otherwise the put fails with [`Code::NoAvailableHandle`](crate::Code::NoAvailableHandle).
    Strict,
}

/// Host whose stores a put prefers while they have room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Near {
    /// None: stores with more free space.
    #[default]
    Any,
    /// The host of this client, as the masters see its address.
    Client,
    /// One host for all objects of a call: the one with the most free space.
    EachOther,
}

/// Protection from eviction that a put requests for its object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PinAction {
    /// The object gets the pin of the one that it replaces, if any.
    #[default]
    Preserve,
    /// The object is not pinned.
    Disable,
    /// The object is evicted only when nothing without a pin can be, for this long: at most 24 hours. Reads do not
    /// renew it.
    Soft(Duration),
    /// The object is never evicted. The setting `hard-pin-limit` bounds the bytes of all such objects; beyond it the put
    /// fails with [`Code::NoAvailableHandle`](crate::Code::NoAvailableHandle).
    Hard,
}

impl PinAction {
    /// A soft pin of 30 minutes.
    pub const SOFT: Self = Self::Soft(Duration::from_secs(30 * 60));
}

impl Default for PutOptions {
    fn default() -> Self {
        Self {
            mode: PutMode::IfAbsent,
            replicas: 1,
            deadline: Duration::from_secs(30),
            replication: Replication::BestEffort,
            preferred: Vec::new(),
            preferred_names: Vec::new(),
            near: Near::Any,
            data_type: 0,
            group: Vec::new(),
            pin: PinAction::Preserve,
        }
    }
}

/// Longest soft pin.
const SOFT_PIN_MAX: Duration = Duration::from_secs(24 * 60 * 60);

impl PutOptions {
    /// Sets the [behaviour when the key exists](Self::mode). Default: the existing object stays.
    #[must_use]
    pub fn with_mode(mut self, mode: PutMode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the [number of replicas](Self::replicas). Default: 1.
    #[must_use]
    pub fn with_replicas(mut self, replicas: u32) -> Self {
        self.replicas = replicas;
        self
    }

    /// Sets [whether fewer replicas will do](Self::replication). Default: they do.
    #[must_use]
    pub fn with_replication(mut self, replication: Replication) -> Self {
        self.replication = replication;
        self
    }

    /// Sets the [time limit](Self::deadline). Default: 30 s.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the [stores to prefer](Self::preferred). Default: none.
    #[must_use]
    pub fn with_preferred(mut self, stores: impl Into<Vec<StoreId>>) -> Self {
        self.preferred = stores.into();
        self
    }

    /// Sets the [stores to prefer by name](Self::preferred_names). Default: none.
    #[must_use]
    pub fn with_preferred_names(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.preferred_names = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the [host to prefer](Self::near). Default: none.
    #[must_use]
    pub fn with_near(mut self, near: Near) -> Self {
        self.near = near;
        self
    }

    /// Sets the [tag of the objects](Self::data_type). Default: 0.
    #[must_use]
    pub fn with_data_type(mut self, data_type: u8) -> Self {
        self.data_type = data_type;
        self
    }

    /// Sets the [group that the objects join](Self::group). Default: none.
    #[must_use]
    pub fn with_group(mut self, group: impl Into<Vec<u8>>) -> Self {
        self.group = group.into();
        self
    }

    /// Sets the [protection from eviction](Self::pin). Default: that of the object that it replaces.
    #[must_use]
    pub fn with_pin(mut self, pin: PinAction) -> Self {
        self.pin = pin;
        self
    }

    /// Checks the options that no master can serve. Some would take a zero for their own default.
    ///
    /// # Errors
    /// The reason.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.deadline.is_zero() {
            return Err("a deadline of 0 s: a put needs some time".to_owned());
        }
        if self.replicas == 0 {
            return Err("0 replicas: at least 1 is needed".to_owned());
        }
        match self.pin {
            PinAction::Soft(length) if length.is_zero() || length > SOFT_PIN_MAX => {
                let length = length.as_secs_f64();
                Err(format!("a soft pin of {length} s: it can last from above 0 s to 24 hours"))
            }
            _ => Ok(()),
        }
    }
}

/// Result of a successful put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The value is in the pool, acknowledged by a majority of the masters.
    Stored,
    /// The key existed; its value stays.
    AlreadyExists,
    /// No leader was in reach, and this is no acknowledgement. The value is in this client's local cache. If the client knew a value of the
    /// key, that one stays, and this one is not published later either.
    LocalOnly,
}

/// Whether a client can work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// A leader is known, or the leader timeout has not passed yet without one.
    Healthy,
    /// No leader is in reach: see [`Mode::LocalOnly`].
    NoLeader,
    /// The client was closed, or the runtime that it was [given](Builder::runtime) has ended.
    Closed,
}

/// Whether the client reaches a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A leader is known, or the leader timeout has not passed yet without one.
    Connected,
    /// No leader has answered for the leader timeout. Gets read the local cache and an embedded store's memory, and
    /// puts stay in the cache.
    LocalOnly,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_no_put_can_have_are_named() {
        let of =
            |options: PutOptions| options.check().map_err(|why| why.split(':').next().unwrap().to_owned());
        let usual = PutOptions::default;
        assert_eq!(of(usual()), Ok(()));
        assert_eq!(of(usual().with_deadline(Duration::ZERO)), Err("a deadline of 0 s".to_owned()));
        assert_eq!(of(usual().with_replicas(0)), Err("0 replicas".to_owned()));
        for (length, ok) in [
            (Duration::ZERO, false),
            (Duration::from_millis(1), true),
            (Duration::from_secs(24 * 3600), true),
            (Duration::from_secs(24 * 3600 + 1), false),
            (Duration::MAX, false),
        ] {
            assert_eq!(of(usual().with_pin(PinAction::Soft(length))).is_ok(), ok, "{length:?}");
        }
    }
}
