//! The data server of the present epoch.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures::future::BoxFuture;
use mc_net::Tls;
use mc_transfer::{
    Authority, Counters, DataEncryption, DataServer, DataServerConfig, Memory, NoRdma, Rdma, RequestSeconds,
    Segment, SegmentDir, ShmAccess, Transports, Withdrawn, fence_limit, socket_name,
};
use mc_types::{ClusterId, ClusterTime, GrantKey, MAX_GRANT_LIFETIME, SegmentNumber, StoreId, TlsLevel};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::descriptors;
use crate::link::{Registration, Served};
use crate::transports::TransportReport;

/// Serves the same memory and port under one epoch after the other.
pub(crate) struct Data {
    store: StoreId,
    memory: Arc<Memory>,
    /// Directory in which the memory outlives this process, until the store has stopped.
    dir: ArcSwapOption<SegmentDir>,
    max_connections: usize,
    max_pairs: usize,
    offer: Offer,
    authority: Arc<Authority>,
    listener: std::net::TcpListener,
    /// Runtime of the transfers, separate from the heartbeats' thread.
    runtime: Handle,
    request_seconds: RequestSeconds,
    serving: Mutex<Option<Serving>>,
    /// Totals of the servers of earlier epochs.
    before: Mutex<Totals>,
}

/// Transports that are offered besides TCP, and the certificates of the connections.
pub(crate) struct Offer {
    pub(crate) transports: Transports,
    pub(crate) shm: ShmAccess,
    /// The devices, or why there are none.
    pub(crate) rdma: Result<Arc<Rdma>, NoRdma>,
    /// `None` where connections are plain.
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) data_encryption: DataEncryption,
}

impl Offer {
    /// Returns who may share the memory.
    fn shm(&self) -> ShmAccess {
        if self.transports.shm() { self.shm } else { ShmAccess::Off }
    }

    fn requires_tls(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.level() == TlsLevel::Require)
    }
}

struct Serving {
    server: Arc<DataServer>,
    /// Dropping it closes every connection.
    stop: DropGuard,
    task: JoinHandle<()>,
}

/// Bytes, requests and connections since the store started.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Totals {
    /// Bytes that clients read.
    pub bytes_read: u64,
    /// Bytes that clients wrote.
    pub bytes_written: u64,
    /// Reads that were finished.
    pub reads: u64,
    /// Writes that were finished.
    pub writes: u64,
    /// Reads through shared memory that were finished.
    pub shm_reads: u64,
    /// Bytes that clients of this host read through shared memory.
    pub shm_bytes_read: u64,
    /// Bytes that clients of this host wrote through shared memory.
    pub shm_bytes_written: u64,
    /// Bytes that clients read by RDMA.
    pub rdma_bytes_read: u64,
    /// Bytes that clients wrote by RDMA.
    pub rdma_bytes_written: u64,
    /// Pairs of queue pairs that were made.
    pub rdma_pairs: u64,
    /// Requests by RDMA that failed.
    pub rdma_failures: u64,
    /// Writes that waited until the fence had memory to remember them.
    pub waits: u64,
    /// Transfers refused: grant expired, superseded, or for other memory.
    pub refusals: u64,
    /// Connections closed because the peer broke the protocol or stalled.
    pub broken_connections: u64,
    /// Number of connections accepted.
    pub connections_opened: u64,
    /// Connections refused because the limit was reached.
    pub connections_refused: u64,
    /// Number of connections closed.
    pub connections_closed: u64,
}

impl Data {
    /// Prepares to serve memory on a bound, non-blocking listener. Nothing is served before [`Self::serve_under`].
    pub(crate) fn new(
        store: StoreId,
        (memory, dir): (Arc<Memory>, Option<Arc<SegmentDir>>),
        authority: Arc<Authority>,
        listener: std::net::TcpListener,
        runtime: Handle,
        request_seconds: RequestSeconds,
        offer: Offer,
    ) -> Self {
        let pairs = offer.rdma.as_ref().map_or(0, |rdma| rdma.max_pairs());
        let (max_connections, max_pairs) = descriptors::share(pairs);
        Self {
            store,
            memory,
            dir: dir.into(),
            max_connections,
            max_pairs,
            offer,
            authority,
            listener,
            runtime,
            request_seconds,
            serving: Mutex::new(None),
            before: Mutex::new(Totals::default()),
        }
    }

    pub(crate) fn totals(&self) -> Totals {
        let now = self.serving.lock().as_ref().map(|serving| Totals::of(serving.server.counters()));
        self.before.lock().plus(now.unwrap_or_default())
    }

    /// Returns the fence's memory in the present server and its limit, both in bytes.
    pub(crate) fn fence_bytes(&self) -> (u64, u64) {
        let serving = self.serving.lock();
        match &*serving {
            Some(Serving { server, .. }) => (server.fence_bytes(), server.max_fence_bytes()),
            None => (0, fence_limit(self.memory.bytes())),
        }
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Returns the directory in which the memory outlives this process.
    pub(crate) fn dir(&self) -> Option<Arc<SegmentDir>> {
        self.dir.load_full()
    }

    /// Leaves the memory to the next process, once it is stopped. Handles of the store may live on, and must not keep the directory.
    pub(crate) fn leave(&self) {
        self.memory.clear();
        self.dir.store(None);
    }

    /// Serves a further segment.
    pub(crate) fn add(&self, segment: Arc<Segment>) -> std::io::Result<()> {
        // The lock keeps a server from starting with the segments of before.
        let serving = self.serving.lock();
        if let Some(dir) = &*self.dir.load() {
            dir.add(&segment)?;
        }
        self.memory.add(segment.clone());
        self.register_with_cards(segment.clone());
        if let Some(serving) = &*serving {
            serving.server.lend(segment);
            serving.server.raise_max_fence_bytes(fence_limit(self.memory.bytes()));
        }
        Ok(())
    }

    /// Registers all segments with the RDMA devices, in the background: until that is done their bytes go over TCP.
    pub(crate) fn register_all_with_cards(&self) {
        self.memory.segments().into_iter().for_each(|segment| self.register_with_cards(segment));
    }

    fn register_with_cards(&self, segment: Arc<Segment>) {
        let Ok(rdma) = self.offer.rdma.clone() else { return };
        // It ends with the segment.
        self.runtime.spawn(keep_registering(Arc::downgrade(&segment), rdma));
    }

    /// Returns the transports, offered or not.
    pub(crate) fn transports(&self) -> Vec<TransportReport> {
        let totals = self.totals();
        let shm = match self.offer.shm() {
            ShmAccess::Off if self.offer.transports.shm() => {
                Err("the store shares no memory (shm is off)".to_owned())
            }
            ShmAccess::Off => Err(format!("the store's transports are {}", self.offer.transports)),
            ShmAccess::Auto if self.offer.requires_tls() => {
                Err("TLS is required, and the store was started without --shm".to_owned())
            }
            access => Ok(access.to_string()),
        };
        let rdma = self.offer.rdma.as_ref().map_err(ToString::to_string);
        let rdma = rdma.and_then(|rdma| rdma.why_down().map_or(Ok(rdma), |why| Err(why.to_string())));
        let rdma = rdma.map(|rdma| {
            let segments = self.memory.segments();
            let registered = segments.iter().filter(|segment| segment.registrations() > 0).count();
            let devices = rdma.names().collect::<Vec<_>>().join(", ");
            let mut how =
                vec![devices, format!("{registered} of {} segments are registered", segments.len())];
            how.extend(rdma.lacks());
            how.extend(
                segments.iter().find_map(|segment| segment.lacks_registration()).map(|why| why.to_string()),
            );
            how.join("; ")
        });
        let report = |name, how: Result<String, String>, bytes_read, bytes_written| TransportReport {
            name,
            offered: how.is_ok(),
            how: how.unwrap_or_else(|why_not| why_not),
            bytes_read,
            bytes_written,
        };
        vec![
            report("tcp", Ok("always".to_owned()), totals.bytes_read, totals.bytes_written),
            report("shm", shm, totals.shm_bytes_read, totals.shm_bytes_written),
            report("rdma", rdma, totals.rdma_bytes_read, totals.rdma_bytes_written),
        ]
    }

    /// Notes that a segment is about to be unmounted.
    pub(crate) fn give_up(&self, number: SegmentNumber) {
        if let Some(dir) = &*self.dir.load() {
            dir.give_up(number);
        }
    }

    fn remove(&self, number: SegmentNumber) {
        let serving = self.serving.lock();
        let removed = self.memory.remove(number);
        let withdrawn = serving.as_ref().and_then(|serving| serving.server.withdraw(number));
        drop(serving);
        if let Some(dir) = &*self.dir.load() {
            dir.remove(number);
        }
        if let Some(removed) = removed {
            tracing::info!(segment = number, bytes = removed.len(), "unmounted a segment");
            // Neither heartbeats nor transfers may wait for it.
            self.runtime.spawn(release(removed, withdrawn));
        }
    }

    /// The masters' latest words.
    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Most data connections at a time.
    pub(crate) fn max_connections(&self) -> usize {
        self.max_connections
    }

    /// Closes every connection and waits until no transfer can change the memory any more.
    pub(crate) async fn stop(&self) {
        let serving = self.serving.lock().take();
        if let Some(serving) = serving {
            drop(serving.stop);
            if serving.task.await.is_err() {
                tracing::error!("the task that serves this store's memory panicked");
            }
            let mut before = self.before.lock();
            *before = before.plus(Totals::of(serving.server.counters()));
        }
    }

    /// Serves the memory, which no server serves now, under `registration`.
    pub(crate) async fn serve_under(&self, registration: Registration) {
        loop {
            match self.begin(registration) {
                Ok(()) => return,
                // Usually the process is out of descriptors; transfers that end free some.
                Err(error) => tracing::error!(%error, "cannot serve the memory, trying again"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn begin(&self, registration: Registration) -> std::io::Result<()> {
        let mut serving = self.serving.lock();
        let begun = self.serve(registration)?;
        begun.server.admit_own_calls(&self.memory);
        *serving = Some(begun);
        Ok(())
    }

    fn serve(&self, registration: Registration) -> std::io::Result<Serving> {
        // The same socket each time: connections that arrive in between wait in its backlog.
        let listener = self.listener.try_clone()?;
        let _in_runtime = self.runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let server = DataServer::new(DataServerConfig {
            store: self.store,
            epoch: registration.epoch,
            key: registration.key,
            segments: self.memory.segments(),
            authority: self.authority.clone(),
            grant_lifetime: MAX_GRANT_LIFETIME,
            fence_bytes: fence_limit(self.memory.bytes()),
            max_connections: self.max_connections,
            rdma: self.offer.rdma.as_ref().ok().cloned(),
            max_pairs: self.max_pairs,
            tls: self.offer.tls.clone(),
            data_encryption: self.offer.data_encryption,
        });
        let server = Arc::new(server.with_request_seconds(self.request_seconds.clone()));
        let stop = CancellationToken::new();
        let sharing = self.share(&server, registration, &stop);
        let serving = server.clone().serve(listener, stop.clone());
        let task = self.runtime.spawn(async move {
            tokio::join!(serving, sharing);
        });
        Ok(Serving { server, stop: stop.drop_guard(), task })
    }
}

impl Data {
    /// Gives the segments to processes of this host, if it may and can.
    fn share(
        &self,
        server: &Arc<DataServer>,
        registration: Registration,
        stop: &CancellationToken,
    ) -> impl Future<Output = ()> + use<> {
        let (access, name) = (self.offer.shm(), socket_name(self.store, registration.epoch));
        let listener = match access {
            ShmAccess::Off => None,
            ShmAccess::Auto | ShmAccess::SameUid | ShmAccess::Any => mc_net::listen_local(&name)
                .inspect_err(|error| tracing::warn!(%error, name, "cannot share the memory, clients use TCP"))
                .ok(),
        };
        let (server, stop) = (server.clone(), stop.clone());
        async move {
            if let Some(listener) = listener {
                server.serve_local(listener, access, stop).await;
            }
        }
    }
}

/// First pause before a segment that could not be registered is tried again. It doubles each time, up to [`REGISTER_AGAIN_MOST`].
const REGISTER_AGAIN: Duration = Duration::from_secs(5);
const REGISTER_AGAIN_MOST: Duration = Duration::from_secs(300);

/// Registers a segment with the RDMA devices, and tries again those that fail: the limit of pinned memory may be raised, and other
/// processes end. The segment remembers why.
async fn keep_registering(segment: Weak<Segment>, rdma: Arc<Rdma>) {
    let (mut pause, mut last) = (REGISTER_AGAIN, None);
    while let Some(segment) = segment.upgrade() {
        let (number, bytes, devices) = (segment.number(), segment.len(), rdma.clone());
        let register = move || segment.register(&devices);
        match tokio::task::spawn_blocking(register).await {
            Ok(Ok(())) => {
                tracing::info!(segment = number, bytes, ?rdma, "registered a segment with the RDMA devices");
                return;
            }
            Ok(Err(why)) if last.as_ref() != Some(&why) => {
                tracing::warn!(
                    segment = number,
                    "clients read and write this segment over TCP, or over other devices: {why}"
                );
                last = Some(why);
            }
            Ok(Err(_)) => {}
            Err(failed) => tracing::error!(segment = number, %failed, "registering a segment panicked"),
        }
        tokio::time::sleep(pause).await;
        pause = REGISTER_AGAIN_MOST.min(pause * 2);
    }
}

/// Interval at which a segment that is no longer served is looked at, until no operation on it is under way.
const RELEASE_LOOK: Duration = Duration::from_millis(50);

/// Releases the memory of a segment once no transfer is under way there, apart from the tasks of the runtime: gigabytes
/// take seconds.
async fn release(segment: Arc<Segment>, withdrawn: Option<Withdrawn>) {
    if let Some(withdrawn) = withdrawn {
        drop(segment);
        while withdrawn.is_in_use() {
            tokio::time::sleep(RELEASE_LOOK).await;
        }
        // The process may end before, which releases it as well.
        let _ = tokio::task::spawn_blocking(move || drop(withdrawn)).await;
    } else {
        let _ = tokio::task::spawn_blocking(move || drop(segment)).await;
    }
}

impl Served for Data {
    fn shut_out(&self, callers: BTreeSet<u64>) {
        self.authority.shut_out(callers);
    }

    fn take_next_key(&self, key: GrantKey) {
        if let Some(serving) = &*self.serving.lock() {
            serving.server.take_next_key(key);
        }
    }

    fn confirm_key(&self, at: ClusterTime) {
        if let Some(serving) = &*self.serving.lock() {
            serving.server.confirm_key(at);
        }
    }

    fn transports(&self) -> Vec<TransportReport> {
        Self::transports(self)
    }

    fn mounted(&self, sizes: &[u64]) {
        for (number, bytes) in (0..).zip(sizes) {
            if *bytes == 0 && self.memory.segment(number).is_some() {
                self.remove(number);
            }
        }
    }

    fn learn(&self, cluster: ClusterId, time: ClusterTime) {
        self.authority.learn(cluster, time);
        if let Some(dir) = &*self.dir.load() {
            dir.note_time(time);
        }
    }

    fn announce(&self, cluster: Option<ClusterId>) {
        if let Some(dir) = &*self.dir.load() {
            dir.note_cluster(cluster);
        }
    }

    fn refuse_writes_up_to(&self, order: u64) {
        if let Some(serving) = &*self.serving.lock() {
            serving.server.refuse_writes_up_to(order);
        }
    }

    fn highest_order(&self) -> Option<u64> {
        self.dir.load().as_ref().map(|dir| dir.highest_order())
    }

    fn register(&self, registration: Registration) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.stop().await;
            // Nobody reads or writes now. The old epoch ends before the memory serves another one.
            let dir = self.dir();
            let note = |epoch| dir.iter().for_each(|dir| dir.note_epoch(epoch));
            note(None);
            let segments = self.memory.segments();
            let renew = move || segments.iter().for_each(|segment| segment.renew());
            if !matches!(self.runtime.spawn(mc_durable::blocking(renew)).await, Ok(Ok(()))) {
                tracing::error!("preparing the segments for a new epoch panicked; serving them all the same");
            }
            note(Some(registration.epoch));
            self.serve_under(registration).await;
        })
    }
}

impl Totals {
    fn of(counters: &Counters) -> Self {
        use std::sync::atomic::Ordering::Relaxed;
        Self {
            bytes_read: counters.bytes_read.load(Relaxed),
            bytes_written: counters.bytes_written.load(Relaxed),
            reads: counters.reads.load(Relaxed),
            writes: counters.writes.load(Relaxed),
            shm_reads: counters.shm_reads.load(Relaxed),
            shm_bytes_read: counters.shm_bytes_read.load(Relaxed),
            shm_bytes_written: counters.shm_bytes_written.load(Relaxed),
            rdma_bytes_read: counters.rdma_bytes_read.load(Relaxed),
            rdma_bytes_written: counters.rdma_bytes_written.load(Relaxed),
            rdma_pairs: counters.rdma_pairs.load(Relaxed),
            rdma_failures: counters.rdma_failures.load(Relaxed),
            waits: counters.waits.load(Relaxed),
            refusals: counters.refusals.load(Relaxed),
            broken_connections: counters.broken_connections.load(Relaxed),
            connections_opened: counters.connections_opened.load(Relaxed),
            connections_refused: counters.connections_refused.load(Relaxed),
            connections_closed: counters.connections_closed.load(Relaxed),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            bytes_read: self.bytes_read + other.bytes_read,
            bytes_written: self.bytes_written + other.bytes_written,
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            shm_reads: self.shm_reads + other.shm_reads,
            shm_bytes_read: self.shm_bytes_read + other.shm_bytes_read,
            shm_bytes_written: self.shm_bytes_written + other.shm_bytes_written,
            rdma_bytes_read: self.rdma_bytes_read + other.rdma_bytes_read,
            rdma_bytes_written: self.rdma_bytes_written + other.rdma_bytes_written,
            rdma_pairs: self.rdma_pairs + other.rdma_pairs,
            rdma_failures: self.rdma_failures + other.rdma_failures,
            waits: self.waits + other.waits,
            refusals: self.refusals + other.refusals,
            broken_connections: self.broken_connections + other.broken_connections,
            connections_opened: self.connections_opened + other.connections_opened,
            connections_refused: self.connections_refused + other.connections_refused,
            connections_closed: self.connections_closed + other.connections_closed,
        }
    }
}
