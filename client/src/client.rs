use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mc_transfer::{
    HostMemory, NoRdma, PeerReport, Rdma, ReadBuffer, RegisterError, RegisteredMemory, ShmAccess,
    ShmTransport, StagedTransport, Sums, TcpOptions, TcpTransport, Transport, Transports, WriteBuffer,
};
use mc_types::{Access, MAX_TENANT_LEN};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::avoid::AvoidList;
use crate::background::Background;
use crate::core::{Core, Follow, Lanes, nonsense};
use crate::get::{Destination, Got};
use crate::keys::{Asked, Lease};
use crate::local::Local;
use crate::masters::{self, Link, MasterList, Masters};
use crate::metrics::Counters;
use crate::options::{Builder, LONGEST};
use crate::put::{Fill, PutItem, publish};
use crate::{
    Admin, Code, ConnectError, Description, Error, Health, Mode, Presence, Put, PutOptions, Removed, Source,
    Stats,
};

/// A client of one cluster and one tenant.
///
/// It is cheap to clone and safe to share between tasks, threads and runtimes. Its background work runs on a thread of its own,
/// which ends when the last clone is dropped; its calls can be awaited on any executor. See [`Builder::runtime`].
///
/// Every call ends by its deadline, even if every master and store is down. Dropping a call's future abandons the call: the client
/// frees the room of puts that it had started, and other calls are not affected. A burst of single calls is sent in few messages.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use mc_client::Client;
///
/// let client = Client::builder().masters("a:50051,b:50051,c:50051").local_cache("4gb".parse()?).connect().await?;
/// client.put("k", b"value").await?;
/// assert_eq!(client.get("k").await?.as_deref(), Some(&b"value"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    core: Arc<Core>,
    shared: Arc<Shared>,
}

/// State that all handles of a client share, whatever their deadlines.
struct Shared {
    background: Background,
    /// The devices, or why there are none.
    rdma: Result<Arc<Rdma>, NoRdma>,
    closed: CancellationToken,
    /// Closes the client when the last clone is dropped.
    _life: DropGuard,
}

/// One object to read into the caller's memory.
#[non_exhaustive]
pub struct GetInto<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Buffers that receive its bytes, one after the other; in sum they may be longer than the object.
    pub into: Vec<&'a mut [u8]>,
}

/// One object to write from the caller's memory.
#[derive(Clone)]
#[non_exhaustive]
pub struct PutFrom<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Slices that make up its value, in order; read in place.
    pub slices: &'a [&'a [u8]],
    /// Name of the group that it joins, at most 256 bytes; empty for that of the options.
    ///
    /// The members of a group are evicted together or not at all, and a use of one renews all. A group has 1,024 members
    /// at most. A put that has started protects its group from eviction until it ends or its deadline is over.
    pub group: &'a [u8],
}

impl<'a> GetInto<'a> {
    /// The object of this key, to be read into these buffers.
    #[must_use]
    pub fn new<K: AsRef<[u8]> + ?Sized>(key: &'a K, into: Vec<&'a mut [u8]>) -> Self {
        Self { key: key.as_ref(), into }
    }
}

impl<'a> PutFrom<'a> {
    /// An object of this key and value, in the group that the options name.
    #[must_use]
    pub fn new<K: AsRef<[u8]> + ?Sized>(key: &'a K, slices: &'a [&'a [u8]]) -> Self {
        Self { key: key.as_ref(), slices, group: &[] }
    }

    /// Sets the [group](Self::group).
    #[must_use]
    pub fn with_group<G: AsRef<[u8]> + ?Sized>(mut self, group: &'a G) -> Self {
        self.group = group.as_ref();
        self
    }
}

impl Client {
    /// Returns default settings, to be changed and connected with.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Connects a client whose background work runs on `background`, in whose context this is called.
    pub(crate) async fn connect(builder: Builder, background: Background) -> Result<Self, ConnectError> {
        let list = MasterList::parse(&builder.masters)?;
        let len = builder.tenant.len();
        if len > MAX_TENANT_LEN {
            return Err(ConnectError::Tenant { len, max: MAX_TENANT_LEN });
        }
        let counters = Arc::new(Counters::new());
        let (transport, rdma) = match &builder.transport {
            Some(own) => (own.clone(), Err(NoRdma::new("this client has a transport of its own"))),
            None => {
                let memory = builder.host_memory.clone().unwrap_or_default();
                let rdma = memory.rdma(builder.transports, &builder.rdma_devices, &builder.rdma_options)?;
                (transport(&builder, &memory, &rdma, &counters), rdma)
            }
        };
        let listed = list.resolve().await;
        let (local, avoid) = (Arc::new(Local::new(&builder)), Arc::new(AvoidList::new()));
        let follow = Follow { local: local.clone(), avoid: avoid.clone(), counters: counters.clone() };
        let runtime = background.handle().clone();
        let masters = Masters::new(&builder, list, listed, counters.clone(), Box::new(follow), runtime);
        let masters = Arc::new(masters);
        tracing::info!("{}", local.cache);
        let mut beacon = masters.beacon.subscribe();
        let dropped = CancellationToken::new();
        let closed = dropped.child_token();
        let life = dropped.clone().drop_guard();
        let work = masters::run(Arc::clone(&masters), closed.clone());
        let kept = background.clone();
        background.handle().spawn(async move {
            work.await;
            drop(kept);
        });

        // Wait until every listed master has answered or failed: the list may name two clusters, or only skewed
        // masters.
        let settled = beacon.wait_for(|beacon| beacon.all_tried && !matches!(beacon.link, Link::Searching));
        let link = match timeout(builder.leader_timeout + builder.connect_timeout, settled).await {
            Ok(Ok(beacon)) => beacon.link.clone(),
            _ => Link::Searching,
        };
        if let Link::Refused(refusal) = link {
            return Err(refusal.connect_error());
        }
        if let Some(conflict) = masters.conflict() {
            return Err(conflict.connect_error());
        }
        let revokes = Arc::default();
        // The state now: the wait ends without one if a master of the list is silent, also with a leader.
        if builder.require_leader && !matches!(masters.link(), Link::Leader(_)) {
            let within = builder.leader_timeout + builder.connect_timeout;
            let why = masters.failure().unwrap_or_else(|| "no master knows one".to_owned());
            return Err(ConnectError::NoLeader { within, why });
        }
        let core = Core {
            lanes: Arc::new(Lanes::new(&masters, &revokes)),
            revokes,
            masters,
            local,
            avoid,
            counters,
            transport: StagedTransport::new(transport),
            tenant: builder.tenant,
            checksum: builder.checksum,
            call_timeout: builder.call_timeout,
            get_timeout: builder.get_timeout,
            fail_local_misses: builder.fail_local_misses,
            fail_unfinished_gets: builder.fail_unfinished_gets,
        };
        let (revoking, kept) = (core.clone().revoke_abandoned(closed.clone(), dropped), background.clone());
        background.handle().spawn(async move {
            revoking.await;
            drop(kept);
        });
        if builder.publish_local {
            background.handle().spawn(publish(core.clone(), closed.clone()));
        }
        let shared = Arc::new(Shared { background, rdma, closed, _life: life });
        Ok(Self { core: Arc::new(core), shared })
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// Runs a call of that many items in a span, and in the context of the client's runtime.
    pub(crate) fn run<F: Future>(
        &self,
        operation: &'static str,
        items: usize,
        call: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        self.shared.background.run(operation, items, call)
    }

    /// Runs a call to its end, blocking this thread: see [`Background::wait`].
    pub(crate) fn wait<F: Future>(&self, call: F) -> F::Output {
        self.shared.background.wait(call)
    }

    /// Returns the token that [`close`](Self::close) and the drop of the last clone cancel.
    pub(crate) fn closed(&self) -> &CancellationToken {
        &self.shared.closed
    }

    /// Returns once a leader is known, or `false` when `timeout` has passed without one.
    pub async fn connected(&self, timeout: Duration) -> bool {
        let mut beacon = self.core().masters.beacon.subscribe();
        let found = beacon.wait_for(|beacon| matches!(beacon.link, Link::Leader(_)));
        let found = self.run("connected", 1, async { tokio::time::timeout(timeout, found).await });
        matches!(found.await, Ok(Ok(_)))
    }

    /// Puts one object if its key is absent: [`put_with`](Self::put_with) with the default options.
    ///
    /// # Errors
    /// See [`put_with`](Self::put_with).
    pub async fn put(&self, key: impl AsRef<[u8]>, value: &[u8]) -> Result<Put, Error> {
        self.put_with(key, value, &PutOptions::default()).await
    }

    /// Puts one object of 1 byte up to the largest segment, under a key of 1 to 4,096 bytes.
    ///
    /// # Errors
    /// [`Error`], which says whether the outcome is definite or unknown.
    pub async fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: &[u8],
        options: &PutOptions,
    ) -> Result<Put, Error> {
        let key = key.as_ref();
        let items = PutItem::of_values([(key, value)].into_iter());
        let mut results = self.run("put", 1, self.core().puts(&items, options, Fill::Cache)).await;
        results.pop().unwrap_or_else(|| Err(nonsense("put")))
    }

    /// Puts objects; returns one result per item, in order.
    ///
    /// If several items have the same key, only one of them is sent: the last one in an upsert, else the first. The
    /// others get a result that follows from its result.
    pub async fn batch_put<K, V>(&self, items: &[(K, V)], options: &PutOptions) -> Vec<Result<Put, Error>>
    where
        K: AsRef<[u8]> + Sync,
        V: AsRef<[u8]> + Sync,
    {
        let items = PutItem::of_values(items.iter().map(|(key, value)| (key.as_ref(), value.as_ref())));
        self.run("put", items.len(), self.core().puts(&items, options, Fill::Cache)).await
    }

    /// Puts objects from scattered memory without copying them.
    ///
    /// The local cache is therefore not filled, except in local-only mode, where it is the only place for the value.
    pub async fn batch_put_from(
        &self,
        items: &[PutFrom<'_>],
        options: &PutOptions,
    ) -> Vec<Result<Put, Error>> {
        let buffers = |slices: &[_]| slices.iter().copied().map(WriteBuffer::from).collect();
        let items = items.iter().map(|item| (item.key, buffers(item.slices), item.group));
        let items = PutItem::all(items);
        self.run("put", items.len(), self.core().puts(&items, options, Fill::Nothing)).await
    }

    /// Puts an object whose bytes the caller gives away: the local cache keeps them and copies nothing. A value that is part
    /// of a larger buffer keeps all of that buffer in memory.
    ///
    /// # Errors
    /// As for [`put_with`](Self::put_with).
    pub async fn put_bytes(
        &self,
        key: impl AsRef<[u8]>,
        value: Bytes,
        options: &PutOptions,
    ) -> Result<Put, Error> {
        let mut results = self.batch_put_bytes(&[(key.as_ref(), value)], options).await;
        results.pop().unwrap_or_else(|| Err(nonsense("put")))
    }

    /// [`put_bytes`](Self::put_bytes) for many objects; one result each, in order, as for [`batch_put`](Self::batch_put).
    pub async fn batch_put_bytes<K: AsRef<[u8]> + Sync>(
        &self,
        items: &[(K, Bytes)],
        options: &PutOptions,
    ) -> Vec<Result<Put, Error>> {
        let values: Vec<Bytes> = items.iter().map(|(_, value)| value.clone()).collect();
        let items = PutItem::of_values(items.iter().map(|(key, value)| (key.as_ref(), &value[..])));
        self.run("put", items.len(), self.core().puts_given(&items, &values, options)).await
    }

    /// Returns a handle of this client whose gets have this deadline, metadata and transfer together, in place of
    /// [`Builder::get_timeout`]. It is cheap, so each call can have its own: `client.with_get_timeout(left).get("k")`. What
    /// the handle opens, such as a [`GetSession`](crate::GetSession), has it, too.
    #[must_use]
    pub fn with_get_timeout(&self, timeout: Duration) -> Self {
        let core = Core { get_timeout: timeout.min(LONGEST), ..(*self.core).clone() };
        Self { core: Arc::new(core), shared: self.shared.clone() }
    }

    /// Reads one object; `None` is a miss.
    ///
    /// A miss means that the pool has no such object *that can be read now*: there is none, it is being written (see
    /// [`Builder::fail_unfinished_gets`]), its stores are suspect, or its only replicas could not be read (counted as `unreachable_replicas`) or had wrong bytes (counted as
    /// `checksum_mismatches`). When the connection to a store fails, the client reads other replicas first, then asks
    /// the leader again and tries that store once more before it reports a miss.
    ///
    /// In local-only mode the local cache and an [embedded store](Builder::embedded_store)'s memory answer. Their value
    /// may have been removed or replaced since. A miss is then not one of the pool: see
    /// [`get_with_source`](Self::get_with_source) and [`Builder::fail_local_misses`].
    ///
    /// # Errors
    /// [`Error`] when no leader answers in time, or the key has an invalid length. A get changes nothing, so its
    /// outcome is always definite.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>, Error> {
        let mut results = self.batch_get(&[key.as_ref()]).await;
        results.pop().unwrap_or_else(|| Err(nonsense("get")))
    }

    /// [`get`](Self::get) for many keys; one result each, in order.
    pub async fn batch_get<K: AsRef<[u8]> + Sync>(&self, keys: &[K]) -> Vec<Result<Option<Bytes>, Error>> {
        let items = copied(keys).into_iter().map(|key| (key, Destination::whole())).collect();
        let results = self.run("get", keys.len(), self.core().gets(items)).await;
        results.into_iter().map(|result| Ok(result?.and_then(Got::bytes))).collect()
    }

    /// [`batch_get`](Self::batch_get) into memory that is the caller's alone: the local cache shares none of it, and keeps a copy.
    pub async fn batch_get_owned<K: AsRef<[u8]> + Sync>(
        &self,
        keys: &[K],
    ) -> Vec<Result<Option<Vec<u8>>, Error>> {
        let items = copied(keys).into_iter().map(|key| (key, Destination::whole_owned())).collect();
        let results = self.run("get", keys.len(), self.core().gets(items)).await;
        results.into_iter().map(|result| Ok(result?.and_then(Got::owned))).collect()
    }

    /// [`get`](Self::get), with who answered. It tells a hit of the pool from one of the cache, and a miss of the pool from one without a
    /// leader.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn get_with_source(&self, key: impl AsRef<[u8]>) -> Result<(Option<Bytes>, Source), Error> {
        let mut results = self.batch_get_with_source(&[key.as_ref()]).await;
        results.pop().unwrap_or_else(|| Err(nonsense("get")))
    }

    /// [`get_with_source`](Self::get_with_source) for many keys; one result each, in order.
    pub async fn batch_get_with_source<K: AsRef<[u8]> + Sync>(
        &self,
        keys: &[K],
    ) -> Vec<Result<(Option<Bytes>, Source), Error>> {
        let items = copied(keys).into_iter().map(|key| (key, Destination::whole())).collect();
        let results = self.run("get", keys.len(), self.core().gets_with_source(items)).await;
        results.into_iter().map(|(result, source)| Ok((result?.and_then(Got::bytes), source))).collect()
    }

    /// Reads objects into the caller's memory; each result is the number of bytes, or `None` for a miss.
    ///
    /// Nothing is copied on the way, so the local cache is not filled. The buffers of an item are filled by one read. An
    /// item whose memory is shorter than its object fails with `INVALID_PARAMS`. If an item returns no bytes, the content
    /// of its memory is unspecified.
    pub async fn batch_get_into(&self, items: &mut [GetInto<'_>]) -> Vec<Result<Option<usize>, Error>> {
        let items: Vec<_> = items
            .iter_mut()
            .map(|GetInto { key, into }| {
                let into = into.iter_mut().map(|buffer| ReadBuffer::from(&mut **buffer));
                (Bytes::copy_from_slice(key), Destination::whole_into(into))
            })
            .collect();
        self.get_into(items).await
    }

    /// Reads objects or parts of them into the caller's memory.
    pub(crate) async fn get_into(
        &self,
        items: Vec<(Bytes, Destination<'_>)>,
    ) -> Vec<Result<Option<usize>, Error>> {
        let results = self.run("get", items.len(), self.core().gets(items)).await;
        results.into_iter().map(|result| Ok(result?.map(|got| got.len()))).collect()
    }

    /// Registers memory with the transports, for zero-copy calls.
    ///
    /// Pass parts of it to [`batch_get_into`](Self::batch_get_into) and [`batch_put_from`](Self::batch_put_from), which
    /// work as well with any other memory. Register memory of another owner with [`HostMemory::register`]. Memory of
    /// [`allocate`](Self::allocate) saves a copy.
    #[must_use]
    pub fn register(&self, buffer: Vec<u8>) -> RegisteredMemory {
        RegisteredMemory::from_vec(buffer)
    }

    /// Allocates registered memory, page aligned and zeroed.
    ///
    /// Stores take the bytes of puts out of it by themselves, those of the same host by a copy and others by RDMA; other memory is
    /// copied once more. With [`batch_get_into_owned`](Self::batch_get_into_owned), the bytes of gets come straight into it by RDMA.
    /// That goes for up to 128 allocations at a time, of 16 KiB and more: further ones are as good as other memory. Each takes a
    /// descriptor, is faulted in and pinned, which takes about a second for every few GiB, and is shared by a process that is forked.
    ///
    /// # Errors
    /// When the memory cannot be allocated.
    pub fn allocate(&self, len: usize) -> Result<RegisteredMemory, RegisterError> {
        self.core().transport.allocate(len)
    }

    /// Returns whether the object exists and can be read now.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn exist(&self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        Ok(self.size(key).await?.is_some())
    }

    /// [`exist`](Self::exist) for many keys; one result each, in order.
    pub async fn batch_exist<K: AsRef<[u8]> + Sync>(&self, keys: &[K]) -> Vec<Result<bool, Error>> {
        let sizes = self.batch_size(keys).await;
        sizes.into_iter().map(|size| Ok(size?.is_some())).collect()
    }

    /// Returns the size of an object in bytes; `None` is a miss.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn size(&self, key: impl AsRef<[u8]>) -> Result<Option<u64>, Error> {
        let mut results = self.batch_size(&[key.as_ref()]).await;
        results.pop().unwrap_or_else(|| Err(nonsense("exist")))
    }

    /// [`size`](Self::size) for many keys; one result each, in order.
    pub async fn batch_size<K: AsRef<[u8]> + Sync>(&self, keys: &[K]) -> Vec<Result<Option<u64>, Error>> {
        let size = |presence| match presence {
            Presence::Present(size) => Some(size),
            Presence::Unavailable | Presence::BeingWritten | Presence::Absent => None,
        };
        self.run("exist", keys.len(), self.core().presences(Asked::of(keys), Lease::Grant))
            .await
            .into_iter()
            .map(|presence| presence.map(size))
            .collect()
    }

    /// Returns whether the object exists, and whether it can be read.
    ///
    /// [`exist`](Self::exist) and [`size`](Self::size) do not tell an absent object from one that can't be read now or is being
    /// written.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn presence(&self, key: impl AsRef<[u8]>) -> Result<Presence, Error> {
        let mut results =
            self.run("exist", 1, self.core().presences(Asked::of(&[key.as_ref()]), Lease::Grant)).await;
        results.pop().unwrap_or_else(|| Err(nonsense("exist")))
    }

    /// Returns what [`presence`](Self::presence) does, without a read lease and without counting as a use of the object:
    /// it may be evicted at any time.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn peek(&self, key: impl AsRef<[u8]>) -> Result<Presence, Error> {
        let mut results = self.batch_peek(&[key.as_ref()]).await;
        results.pop().unwrap_or_else(|| Err(nonsense("exist")))
    }

    /// [`peek`](Self::peek) for many keys; one result each, in order.
    pub async fn batch_peek<K: AsRef<[u8]> + Sync>(&self, keys: &[K]) -> Vec<Result<Presence, Error>> {
        self.run("exist", keys.len(), self.core().presences(Asked::of(keys), Lease::None)).await
    }

    /// Describes an object: its version, size, checksum, pin and replicas; `None` when there is none.
    ///
    /// The call grants no read lease and does not count as a use of the object.
    ///
    /// # Errors
    /// [`Error`] when no leader answers in time.
    pub async fn describe(&self, key: impl AsRef<[u8]>) -> Result<Option<Description>, Error> {
        let mut results = self.batch_describe(&[key.as_ref()]).await;
        results.pop().unwrap_or_else(|| Err(nonsense("describe")))
    }

    /// [`describe`](Self::describe) for many keys; one result each, in order.
    pub async fn batch_describe<K: AsRef<[u8]> + Sync>(
        &self,
        keys: &[K],
    ) -> Vec<Result<Option<Description>, Error>> {
        self.run("describe", keys.len(), self.core().descriptions(copied(keys))).await
    }

    /// Removes an object; returns `false` when there was none.
    ///
    /// With `force` it also removes an object that is being read. The client does not repeat a remove that may have
    /// been applied: the repetition could remove an object that another client has put since.
    ///
    /// # Errors
    /// [`Error`], which says whether the outcome is definite or unknown.
    pub async fn remove(&self, key: impl AsRef<[u8]>, force: bool) -> Result<bool, Error> {
        let mut results = self.batch_remove(&[key.as_ref()], force).await;
        results.pop().unwrap_or_else(|| Err(nonsense("remove")))
    }

    /// [`remove`](Self::remove) for many keys; one result each, in order.
    pub async fn batch_remove<K: AsRef<[u8]> + Sync>(
        &self,
        keys: &[K],
        force: bool,
    ) -> Vec<Result<bool, Error>> {
        self.run("remove", keys.len(), self.core().removals(copied(keys), force)).await
    }

    /// Removes all objects of this client's tenant, pinned ones included; with `force`, leased ones, too.
    ///
    /// With `force`, all objects that exist at one moment are removed at once. Otherwise they are removed bit by bit, and
    /// objects that are put meanwhile may be removed or not.
    ///
    /// # Errors
    /// [`Error`]; what was removed before a failure stays removed.
    pub async fn remove_all(&self, force: bool) -> Result<Removed, Error> {
        self.run("remove all", 1, self.core().remove_matching("", force)).await
    }

    /// Removes the objects of this client's tenant whose keys match a regular expression, which is not anchored; with
    /// `force`, leased ones, too. Pinned ones are removed as well.
    ///
    /// Keys are matched as bytes, in the syntax of the crate `regex`. Objects that are put meanwhile may be removed or
    /// not.
    ///
    /// # Errors
    /// [`Error`], with `INVALID_PARAMS` for a pattern that can't be used; what was removed before a failure stays
    /// removed.
    pub async fn remove_by_regex(&self, pattern: &str, force: bool) -> Result<Removed, Error> {
        if pattern.is_empty() {
            let why = "an empty pattern matches every key: call remove_all for that";
            return Err(Error::definite("remove by regex", Code::InvalidParams, "this client", why));
        }
        self.run("remove by regex", 1, self.core().remove_matching(pattern, force)).await
    }

    /// Drops the replicas of objects on the store of that name or host:port; `false` where there was none. An object without another
    /// replica is removed.
    ///
    /// # Errors
    /// Each item its [`Error`]: `OBJECT_HAS_LEASE` while the object is being read, `INVALID_PARAMS` for an unknown store.
    pub async fn batch_drop_replicas<K: AsRef<[u8]> + Sync>(
        &self,
        keys: &[K],
        store_name: &str,
    ) -> Vec<Result<bool, Error>> {
        self.run("drop replicas", keys.len(), self.core().drop_replicas(copied(keys), store_name)).await
    }

    /// Returns whether this client can work.
    #[must_use]
    pub fn health(&self) -> Health {
        match self.core().masters.link() {
            Link::Closed => Health::Closed,
            Link::LocalOnly | Link::Refused(_) => Health::NoLeader,
            Link::Searching | Link::Leader(_) => Health::Healthy,
        }
    }

    /// Says why no leader is in reach: the last failure of each master that was asked. `None` while a leader is known, or if every
    /// master answers and none knows a leader.
    #[must_use]
    pub fn last_error(&self) -> Option<Error> {
        let masters = &self.core().masters;
        if let Link::Leader(_) = masters.link() {
            return None;
        }
        masters.failure().map(|why| Error::definite("find the leader", Code::NoLeader, "the masters", why))
    }

    /// Returns whether a leader is in reach.
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self.core().masters.link() {
            Link::Searching | Link::Leader(_) => Mode::Connected,
            Link::LocalOnly | Link::Refused(_) | Link::Closed => Mode::LocalOnly,
        }
    }

    /// Returns the counters of this client, with those of its clones.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let core = self.core();
        core.counters.stats(core.local.cache.bytes())
    }

    /// Says by which transport bytes go between this client and each store that it has called, and why not by a better
    /// one; sorted by address.
    #[must_use]
    pub fn transports(&self) -> Vec<PeerReport> {
        let mut peers = self.core().transport.peers();
        peers.sort_by(|one, other| one.address.cmp(&other.address));
        peers
    }

    /// Returns the names of the RDMA devices that this client can use at present. With [`Transports::Auto`] it goes on without any:
    /// a program whose user asked for RDMA can tell them why.
    ///
    /// # Errors
    /// Why there is none: the [settings](Builder::transports) exclude RDMA, or this machine has no library or no device for it.
    pub fn rdma_devices(&self) -> Result<Vec<String>, NoRdma> {
        let rdma = self.shared.rdma.as_ref().map_err(NoRdma::clone)?;
        rdma.why_down().map_or_else(|| Ok(rdma.names().map(str::to_owned).collect()), Err)
    }

    /// Returns an interface to query and administer the masters.
    #[must_use]
    pub fn admin(&self) -> Admin {
        Admin::new(self.clone())
    }

    /// Ends the background tasks and fails every pending and later call of this client and its clones. Puts that such calls
    /// give up are still revoked, until the last handle is dropped.
    pub fn close(&self) {
        self.core().masters.close();
        self.shared.closed.cancel();
    }
}

fn copied<K: AsRef<[u8]>>(keys: &[K]) -> Vec<Bytes> {
    keys.iter().map(|key| Bytes::copy_from_slice(key.as_ref())).collect()
}

/// Returns a transport of the chosen kinds. It counts the bytes that don't go over TCP.
fn transport(
    builder: &Builder,
    memory: &HostMemory,
    rdma: &Result<Arc<Rdma>, NoRdma>,
    counters: &Arc<Counters>,
) -> Arc<dyn Transport> {
    let sums = if builder.checksum { Sums::All } else { Sums::Writes };
    let options = TcpOptions { sums, ..TcpOptions::default() };
    let counted = counters.clone();
    let on_shared = Box::new(move |access, bytes| match access {
        Access::Read => counted.shm_bytes_read.add(bytes),
        Access::Write => counted.shm_bytes_written.add(bytes),
    });
    let counted = counters.clone();
    let on_moved = Box::new(move |access, bytes| match access {
        Access::Read => counted.rdma_bytes_read.add(bytes),
        Access::Write => counted.rdma_bytes_written.add(bytes),
    });
    let tcp = match rdma {
        Ok(rdma) => {
            let only = builder.transports == Transports::Rdma;
            TcpTransport::with_rdma(options, memory, rdma.clone(), only, on_moved)
        }
        Err(why) => {
            tracing::debug!("no RDMA: {why}");
            TcpTransport::without_rdma(options, memory, why.to_string())
        }
    };
    let shm = if builder.transports.shm() { builder.shm } else { ShmAccess::Off };
    let transport = ShmTransport::new(tcp, shm, on_shared);
    Arc::new(match builder.embedded.clone() {
        Some((store, memory)) => transport.with_own_store(store, memory),
        None => transport,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_send<T: Send>(_: &T) {}

    #[test]
    fn calls_can_be_spawned() {
        fn check(client: &Client, items: &mut [GetInto<'_>]) {
            is_send(client);
            is_send(&client.put("k", b"v"));
            is_send(&client.get("k"));
            is_send(&client.batch_get(&["k"]));
            is_send(&client.batch_put(&[("k", "v")], &PutOptions::default()));
            is_send(&client.batch_get_into(items));
            is_send(&client.remove("k", true));
        }
        let _ = check;
    }
}
