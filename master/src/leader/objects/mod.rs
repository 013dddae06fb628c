//! Exist, get, put and remove: batches in, one result per item out.

mod ages;
mod describe;
mod eviction;
mod grants;
#[cfg(test)]
mod lock_time;
mod preference;
mod proofs;
mod queue;
mod removal;
mod room;
mod shortage;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mc_eviction::Scope;
use mc_index::{
    KeyHash, KeyPage, Memory, ObjectView, PROOFS_SINCE, PlacedReplica, PutStartItem, PutStarted, Request,
    State, TenantName,
};
use mc_raft::SharedIndex;
use mc_types::{Access, ClusterTime, Code, MAX_NAMED_STORES, PutId, StoreId};
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::leader::term::{Coordinator, Leading, PutTimes, Refusal};
use crate::metrics::{Lookups, MasterMetrics};
use describe::Describing;
pub(crate) use describe::{Described, DescribedGroup, DescribedReplica};
use eviction::explain;
pub(crate) use eviction::keep_room;
pub(crate) use grants::{GrantedReplica, Holder, StoreGrant};
use grants::{Grants, Terms};
pub(crate) use preference::{Near, Preference};
use proofs::Due;
pub(crate) use proofs::PutToEnd;
#[cfg(feature = "testing")]
pub(crate) use proofs::testing as proofs_testing;
use queue::{RoomNeed, WaitReason};
pub(crate) use removal::RemovalPage;
use removal::matching_places;
use room::{QueuedCall, Room, WaitOutcome};
use shortage::{PutShortage, UntriedNeed, is_short, untried};

/// Time for which mismatches that clients report are only counted, after one was logged.
const MISMATCHES_QUIET: Duration = Duration::from_secs(10);

/// Bytes of keys after which a page of a listing ends.
const LISTED_BYTES: usize = 1 << 20;

/// Replicas of one object, each with its place in a grant. Most objects have one.
pub(crate) type Granted = SmallVec<[GrantedReplica; 1]>;

/// An object that can be read.
pub(crate) struct Placement {
    pub(crate) version: PutId,
    pub(crate) size: u64,
    /// CRC-64/NVME of the value.
    pub(crate) checksum: u64,
    /// Replicas on stores that are not suspect; at least one.
    pub(crate) replicas: Granted,
    /// Whether entries that were lost may have given its place to another object.
    pub(crate) doubtful: bool,
}

/// Behaviour of a reader with an object whose place may hold another object's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubtful {
    /// Reads it whole and compares the checksum.
    Checked,
    /// Reads it like any other object, so it gets none.
    Withheld,
}

/// Placements of a batch of keys.
pub(crate) struct Placements {
    pub(crate) found: Vec<Result<Placement, Miss>>,
    pub(crate) grants: Vec<StoreGrant>,
    /// Time for which the placements may be used.
    pub(crate) lease: Duration,
}

/// Result of starting a batch of puts.
pub(crate) struct Started {
    /// Code of each put, and the replicas to write; no replicas unless the code is `Ok`.
    pub(crate) puts: Vec<(Code, Granted)>,
    pub(crate) grants: Vec<StoreGrant>,
    /// Why puts got `NoAvailableHandle`; empty if none did.
    pub(crate) no_space: &'static str,
    /// Bytes of the largest mounted segment if a put got `ObjectTooLarge`; 0 otherwise.
    pub(crate) largest_segment: u64,
}

/// Whether a call that finds objects leases them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseMode {
    Grant,
    None,
}

/// An object to remove.
pub(crate) struct RemoveObject {
    pub(crate) key: Bytes,
    /// Version to remove; `None`: the current one.
    pub(crate) version: Option<PutId>,
}

/// Serves reads, puts and removes.
pub(crate) struct Objects {
    coordinator: Arc<Coordinator>,
    index: SharedIndex,
    /// Room in the pool that evictions make.
    room: Room,
    metrics: Arc<MasterMetrics>,
    /// End of the time in which reported mismatches are only counted.
    mismatches_quiet_until: Mutex<Option<std::time::Instant>>,
    /// Calls that match keys against a pattern.
    matching: Arc<Semaphore>,
}

impl Objects {
    pub(crate) fn new(
        coordinator: Arc<Coordinator>,
        index: SharedIndex,
        metrics: Arc<MasterMetrics>,
    ) -> Self {
        Self {
            coordinator,
            index,
            room: Room::new(),
            metrics,
            mismatches_quiet_until: Mutex::default(),
            matching: matching_places(),
        }
    }

    /// Lets those puts try that wait for room, if there is some for them now.
    pub(crate) fn let_in(&self, leading: &Leading) {
        self.room.let_in(&self.index, &leading.liveness.suspects());
    }

    /// Returns the size of each object that exists. Leases it as a get does, or neither leases it nor counts the call as a
    /// use. `calls` has the number of keys of each call.
    pub(crate) async fn exist(
        &self,
        tenant: &str,
        keys: &[&[u8]],
        calls: &[usize],
        lease: LeaseMode,
    ) -> Result<Vec<Result<u64, Miss>>, Refusal> {
        let leading = self.coordinator.lead().await?;
        if lease == LeaseMode::None {
            return Ok(self.coordinator.read(|applied| {
                let mut sizes = Vec::with_capacity(keys.len());
                let call = ReadAttempt::new(&applied.state, &leading, tenant);
                call.look(keys.iter().copied(), |found| sizes.push(found.map(|object| object.size)));
                sizes
            }));
        }
        let (found, used) = self
            .room
            .read_settled(|| {
                self.coordinator.read(|applied| {
                    let (mut found, mut used) = (Vec::with_capacity(keys.len()), ReadKeys::default());
                    let mut undecided = false;
                    for keys in apart(keys, calls) {
                        let mut call = ReadAttempt::new(&applied.state, &leading, tenant);
                        call.find(keys.iter().copied(), |it| found.push(it.map(|object| object.size)));
                        undecided |= used.add(call);
                    }
                    ((found, used), undecided)
                })
            })
            .await;
        used.count(&leading);
        self.metrics.checked(lookups(&found));
        Ok(found)
    }

    /// Refuses a client whose grants can't say that the tenant's bytes avoid RDMA.
    fn refuse_older(&self, tenant: &str, holder: Holder) -> Result<(), Refusal> {
        match holder == Holder::Older && self.coordinator.security().avoids_rdma(tenant) {
            true => Err(Refusal::Invalid(
                "the tenant's bytes may not go by RDMA (mcctl tenants set --rdma off), which clients of this build do not know: \
                 upgrade the client"
                    .to_owned(),
            )),
            false => Ok(()),
        }
    }

    /// Returns where the objects lie, with leases to read them. `calls` has the number of keys of each call; each gets grants
    /// of its own, which are in the order of the calls.
    pub(crate) async fn get(
        &self,
        tenant: &str,
        keys: &[Bytes],
        calls: &[usize],
        doubtful: Doubtful,
        holder: Holder,
    ) -> Result<Placements, Refusal> {
        let leading = self.coordinator.lead().await?;
        self.refuse_older(tenant, holder)?;
        let cluster = self.coordinator.cluster();
        let locate = || {
            let expires = leading.now().after(leading.read_lease());
            let terms = Terms { cluster, access: Access::Read, expires, tenant, holder };
            self.coordinator.read(|applied| {
                let (mut found, mut sealed) = (Vec::with_capacity(keys.len()), Vec::new());
                let (mut used, mut undecided) = (ReadKeys::default(), false);
                let known_from = self.coordinator.known_from(&leading, applied);
                for keys in apart(keys, calls) {
                    let mut grants = Grants::after(&sealed, &applied.state, terms);
                    let mut call = ReadAttempt::new(&applied.state, &leading, tenant);
                    let mut place = |object: ObjectView| {
                        let is_doubtful = object.replicas.iter().any(|replica| replica.index < known_from);
                        if is_doubtful && doubtful == Doubtful::Withheld {
                            return Err(Miss::Unavailable);
                        }
                        let found = placed(&object, &leading, &mut grants)?;
                        Ok(Placement { doubtful: is_doubtful, ..found })
                    };
                    call.find(keys.iter().map(|key| &key[..]), |it| found.push(it.and_then(&mut place)));
                    sealed.extend(grants.seal());
                    undecided |= used.add(call);
                }
                (((found, sealed), used), undecided)
            })
        };
        let ((found, grants), used) = self.room.read_settled(locate).await;
        used.count(&leading);
        self.metrics.got(lookups(&found));
        Ok(Placements { found, grants, lease: leading.read_lease() })
    }

    /// Describes objects. This is no use of them and grants no lease.
    pub(crate) async fn describe(
        &self,
        tenant: &str,
        keys: &[Bytes],
    ) -> Result<Vec<Result<Described, Code>>, Refusal> {
        let leading = self.coordinator.lead().await?;
        let mut describing = Describing::new(&leading, tenant, keys);
        // Entries are applied between two slices.
        while self.coordinator.read(|applied| describing.slice(&applied.state)) {}
        Ok(describing.described)
    }

    /// Counts and logs a store that gave bytes which don't match their checksum. Not every one is logged: a store whose
    /// memory is broken gives many.
    pub(crate) async fn report_mismatch(
        &self,
        key: KeyHash,
        version: PutId,
        store: StoreId,
    ) -> Result<(), Refusal> {
        self.coordinator.lead().await?;
        self.metrics.calls.mismatches_reported.increment(1);
        let now = std::time::Instant::now();
        let mut quiet_until = self.mismatches_quiet_until.lock();
        if quiet_until.is_none_or(|until| until <= now) {
            *quiet_until = Some(now + MISMATCHES_QUIET);
            drop(quiet_until);
            let name = self.coordinator.read(|applied| {
                applied.state.store(store).map(|store| store.name.to_owned()).unwrap_or_default()
            });
            tracing::warn!(%store, name, ?key, %version, "a client read bytes from this store that are not those that were put");
        }
        Ok(())
    }

    /// Lists keys of a tenant, from a position on.
    pub(crate) async fn list_keys(
        &self,
        tenant: &str,
        prefix: &[u8],
        from: u64,
        limit: usize,
    ) -> Result<KeyPage, Refusal> {
        self.coordinator.lead().await?;
        Ok(self.coordinator.read(|applied| applied.state.list(tenant, prefix, from, limit, LISTED_BYTES)))
    }

    /// Allocates replicas for the puts that `items` makes, given the times of this leader. A put that is still open at its
    /// deadline ends then. `calls` has the number of puts of each call; each gets grants of its own, which are in the order of
    /// the calls and last as long as its puts.
    pub(crate) async fn put_start(
        &self,
        tenant: &str,
        items: impl FnOnce(PutTimes) -> Result<Vec<PutStartItem>, Refusal>,
        calls: &[usize],
        preference: &Preference,
        holder: Holder,
    ) -> Result<Started, Refusal> {
        let leading = self.coordinator.lead().await?;
        self.refuse_older(tenant, holder)?;
        // Only this call leads to further writes later; ends and removes merely finish what was begun.
        self.coordinator.refuse_without_room()?;
        let mut items = items(leading.put_times())?;
        if *preference != Preference::default() {
            let suspects = leading.liveness.suspects();
            let stores = self.coordinator.read(|applied| preference.stores(&applied.state, &suspects));
            for item in &mut items {
                item.preferred.extend_from_slice(&stores);
                // An item may prefer as many stores itself; those come first.
                item.preferred.truncate(MAX_NAMED_STORES);
            }
        }
        let latest =
            |items: &[PutStartItem]| items.iter().map(|item| item.deadline).max().unwrap_or_default();
        let expires: Vec<ClusterTime> = apart(&items, calls).map(latest).collect();
        let (started, no_space) = self.start_with_room(&leading, tenant, items).await?;
        Ok(self.coordinator.read(|applied| {
            let (mut puts, mut sealed) = (Vec::with_capacity(started.len()), Vec::new());
            let cluster = self.coordinator.cluster();
            for (started, &expires) in apart(&started, calls).zip(&expires) {
                let terms = Terms { cluster, access: Access::Write, expires, tenant, holder };
                let mut grants = Grants::after(&sealed, &applied.state, terms);
                let mut granted = |replicas: &[PlacedReplica]| {
                    replicas.iter().map(|replica| grants.add(replica)).collect::<Option<Granted>>()
                };
                puts.extend(started.iter().map(|started| {
                    // A store that was dropped right after the placement has no grant for its replica. The client's put
                    // end names replicas by their position in this answer, so one cannot be left out: the put gets
                    // none, and the client starts another one.
                    match granted(&started.replicas) {
                        Some(replicas) => (started.code, replicas),
                        None => (Code::PutGone, Granted::new()),
                    }
                }));
                sealed.extend(grants.seal());
            }
            let name = TenantName::new(tenant.as_bytes());
            let is_too_large = started.iter().any(|started| started.code == Code::ObjectTooLarge);
            let largest_segment = if is_too_large { applied.state.largest_segment(&name) } else { 0 };
            Started { puts, grants: sealed, no_space, largest_segment }
        }))
    }

    /// Starts puts, and starts those that find no space, or are beyond their tenant's quota, again when it is their turn for
    /// the room that evictions make. Returns the answers, and why there was no room for some.
    async fn start_with_room(
        &self,
        leading: &Leading,
        tenant: &str,
        items: Vec<PutStartItem>,
    ) -> Result<(Vec<PutStarted>, &'static str), Refusal> {
        let deadline = Instant::now() + wait_for(leading, &items);
        let mut waiting = QueuedCall::new(self, leading);
        self.queue(&mut waiting, tenant, &items, deadline).await;
        let first = Request::put_start(tenant.to_owned(), items);
        let mut started = self.coordinator.propose(leading, &first).await?;
        let items = first.items();
        let (mut after, mut open, mut last) = (WaitReason::Progress, items.len(), None);
        // Whether room on stores of the tenant's own is waited for, as long as something can be evicted there.
        let mut own = true;
        loop {
            // Usually there is room, and the index need not be looked at.
            if !started.iter().any(|started| is_short(started.code)) {
                return Ok((started, ""));
            }
            let suspects = leading.liveness.suspects();
            let short = self.coordinator.read(|applied| {
                let refused = items.iter().zip(&started).map(|(item, started)| (item, started.code));
                PutShortage::of(&applied.state, &suspects, tenant, own, refused)
            });
            let Some((scope, need)) = short.need else {
                self.metrics.puts.refused_by_space.increment(u64::from(!short.why.is_empty()));
                return Ok((started, short.why));
            };
            let made = match last {
                Some(made) => made,
                None => {
                    if short.places.len() < open {
                        after = WaitReason::Progress;
                    }
                    open = short.places.len();
                    waiting.wait(scope, need, after, deadline).await
                }
            };
            // Common stores may take it where its own give no room.
            let mut made = made;
            if matches!(scope, Scope::Memory(Memory::OwnedBy(_))) && made != WaitOutcome::Room {
                own = false;
                if made != WaitOutcome::Late || !waiting.end().1 {
                    continue;
                }
                made = WaitOutcome::Room;
            }
            let made = match made {
                WaitOutcome::Late if last.is_none() => {
                    let (why, some) = waiting.end();
                    let made = why.map_or(WaitOutcome::Late, WaitOutcome::Blocked);
                    last = Some(made);
                    if some { WaitOutcome::Room } else { made }
                }
                made => made,
            };
            if made != WaitOutcome::Room {
                self.metrics.puts.refused_by_space.increment(1);
                return Ok((started, explain(scope, made)));
            }
            after = WaitReason::Refusal;
            let again = short.places.iter().map(|&at| items[at].clone()).collect();
            let again = Request::put_start(tenant.to_owned(), again);
            match self.coordinator.propose(leading, &again).await {
                Ok(answers) => {
                    for (at, answer) in short.places.into_iter().zip(answers) {
                        started[at] = answer;
                    }
                }
                // Other puts of the call are started by now: a failure of a later entry must not lose their answers. A
                // started put without an answer ends at its deadline.
                Err(_) if started.iter().any(|started| started.code == Code::Ok) => {
                    return Ok((started, explain(scope, WaitOutcome::Late)));
                }
                Err(refusal) => return Err(refusal),
            }
        }
    }

    /// Lets puts that have not been tried yet queue behind those that wait for room, until it is their turn or `deadline`.
    async fn queue(
        &self,
        waiting: &mut QueuedCall<'_>,
        tenant: &str,
        items: &[PutStartItem],
        deadline: Instant,
    ) {
        let name = TenantName::new(tenant.as_bytes());
        for scope in [Scope::Quota(name), Scope::Memory(Memory::OwnedBy(name)), Scope::Memory(Memory::Common)]
        {
            if !waiting.has_to_queue(scope) {
                continue;
            }
            let suspects = waiting.suspects();
            let need = self.coordinator.read(|applied| untried(&applied.state, &suspects, tenant, items));
            let Some(UntriedNeed { of_tenant, memory, of_memory, fits }) = need else { return };
            let need = match scope {
                Scope::Quota(_) => RoomNeed { excess: of_tenant, largest: 0 },
                // It fits on stores of the tenant's own, or only common ones can take it and nobody waits for those.
                Scope::Memory(waited) if waited != memory && (fits || waited != Memory::Common) => continue,
                Scope::Memory(_) => of_memory,
            };
            let scope = if let Scope::Memory(_) = scope { Scope::Memory(memory) } else { scope };
            // Whatever the outcome, they are tried once: only that tells those that need no room from the others.
            if waiting.wait(scope, need, WaitReason::Coming, deadline).await == WaitOutcome::Late {
                waiting.end();
            }
            if scope == Scope::Memory(memory) {
                return;
            }
        }
    }

    /// Ends puts whose bytes are written, which makes their objects visible. Versions that they replace are held until the last
    /// lease has ended, whatever `puts` say. Returns one code per put.
    pub(crate) async fn put_end(&self, mut puts: Vec<PutToEnd>) -> Result<Vec<Code>, Refusal> {
        let leading = self.coordinator.lead().await?;
        let reuse_at = leading.hold_until();
        puts.iter_mut().for_each(|put| put.end.reuse_at = reuse_at);
        let (version, due) = self.coordinator.read(|applied| {
            let version = applied.state.cluster_version();
            // Also in a cluster that has just formed, whose version is not known yet.
            let proofs = version == 0 || version >= PROOFS_SINCE;
            let due = |put| if proofs { Due::of(put, &applied.state) } else { None };
            (version, puts.iter().map(due).collect::<Vec<_>>())
        });
        let cluster = self.coordinator.cluster();
        let (mut codes, mut proven) = (Vec::with_capacity(puts.len()), Vec::with_capacity(puts.len()));
        for (put, due) in puts.into_iter().zip(&due) {
            let checked = proofs::check(put, due.as_ref(), cluster);
            codes.push(checked.as_ref().err().copied());
            proven.extend(checked);
        }
        let mut ended = Vec::new();
        if !proven.is_empty() {
            let request = match version {
                PROOFS_SINCE.. => Request::put_end_proven(proven),
                _ => Request::put_end(proven.into_iter().map(|put| put.end).collect()),
            };
            ended = self.coordinator.propose(&leading, &request).await?;
        }
        let mut ended = ended.into_iter().map(|ended| ended.code);
        let code = |refused: Option<Code>| refused.or_else(|| ended.next()).unwrap_or(Code::PutGone);
        Ok(codes.into_iter().map(code).collect())
    }

    /// Gives puts of a tenant up and frees what they allocated. Returns one code per put; a put of another tenant is answered
    /// as one that is not known.
    pub(crate) async fn put_revoke(&self, tenant: &str, puts: Vec<PutId>) -> Result<Vec<Code>, Refusal> {
        let leading = self.coordinator.lead().await?;
        let is_ours: Vec<bool> = self.coordinator.read(|applied| {
            let is_ours =
                |put: &PutId| applied.state.put(*put).is_none_or(|put| put.tenant == tenant.as_bytes());
            puts.iter().map(is_ours).collect()
        });
        let ours: Vec<PutId> =
            puts.into_iter().zip(&is_ours).filter(|(_, ours)| **ours).map(|(put, _)| put).collect();
        let mut codes = match ours.is_empty() {
            true => Vec::new(),
            false => self.coordinator.propose(&leading, &Request::put_revoke(ours)).await?,
        }
        .into_iter();
        let code = |ours: bool| if ours { codes.next().unwrap_or(Code::Ok) } else { Code::Ok };
        Ok(is_ours.into_iter().map(code).collect())
    }
}

/// Returns the items of each call of a message, by the lengths of the calls.
fn apart<'i, T>(items: &'i [T], calls: &[usize]) -> impl Iterator<Item = &'i [T]> {
    let mut rest = items;
    calls.iter().map(move |len| {
        let (call, after) = rest.split_at((*len).min(rest.len()));
        rest = after;
        call
    })
}

/// One try of the reads of a call: each object found is leased to the caller.
struct ReadAttempt<'a> {
    state: &'a State,
    leading: &'a Leading,
    tenant: &'a str,
    suspects: Arc<Vec<StoreId>>,
    /// End of the leases. A caller counts them from when it sent the call, which was before this was reckoned.
    leased_until: ClusterTime,
    found: Vec<KeyHash>,
    undecided: bool,
}

/// Why an object cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    /// No object can have the key.
    InvalidKey,
    /// There is no such object.
    Absent,
    /// There is none, but a put of the key is in flight.
    BeingWritten,
    /// No store that holds the object can be read now, or the object is being evicted and the outcome is not known yet.
    Unavailable,
}

impl Miss {
    /// The code to answer with.
    pub(crate) fn code(self) -> Code {
        match self {
            Self::InvalidKey => Code::InvalidKey,
            Self::Absent | Self::BeingWritten => Code::ObjectNotFound,
            Self::Unavailable => Code::ReplicaIsNotReady,
        }
    }
}

/// Counts the results of a call.
fn lookups<T>(found: &[Result<T, Miss>]) -> Lookups {
    Lookups::of(found.iter().map(|found| found.as_ref().err().map_or(Code::Ok, |miss| miss.code())))
}

impl<'a> ReadAttempt<'a> {
    fn new(state: &'a State, leading: &'a Leading, tenant: &'a str) -> Self {
        let (suspects, leased_until) = (leading.liveness.suspects(), leading.lease_end());
        Self { state, leading, tenant, suspects, leased_until, found: Vec::new(), undecided: false }
    }

    /// Finds the objects under `keys`, and passes each to `found`, in order.
    fn look<'k>(
        &self,
        keys: impl Iterator<Item = &'k [u8]>,
        mut found: impl FnMut(Result<ObjectView, Miss>),
    ) {
        self.state.get_each(self.tenant, keys, |key, object| found(self.judge(key, object)));
    }

    /// Finds the objects under `keys`, leases them to the caller, and passes each to `found`, in order.
    fn find<'k>(
        &mut self,
        keys: impl Iterator<Item = &'k [u8]>,
        mut found: impl FnMut(Result<ObjectView, Miss>),
    ) {
        let (state, tenant) = (self.state, self.tenant);
        state.get_each(tenant, keys, |key, object| {
            found(self.judge(key, object).and_then(|object| self.lease(object)));
        });
    }

    /// Judges whether the object that the index has under `key` can be read.
    fn judge(&self, key: &[u8], object: Option<ObjectView>) -> Result<ObjectView, Miss> {
        if key.is_empty() || key.len() > mc_types::MAX_KEY_LEN {
            return Err(Miss::InvalidKey);
        }
        let Some(object) = object else {
            let is_being_written = self.state.is_being_written(self.tenant, key);
            return Err(if is_being_written { Miss::BeingWritten } else { Miss::Absent });
        };
        let is_suspect = |replica: &PlacedReplica| self.suspects.binary_search(&replica.store).is_ok();
        if object.replicas.iter().all(is_suspect) { Err(Miss::Unavailable) } else { Ok(object) }
    }

    /// Leases an object to the caller, who must not be told of it if it is being evicted.
    fn lease(&mut self, object: ObjectView) -> Result<ObjectView, Miss> {
        let bytes = object.size * object.replicas.len() as u64;
        if !self.leading.leases.grant(object.version, bytes, self.leased_until) {
            self.undecided = true;
            return Err(Miss::Unavailable);
        }
        self.found.push(object.unit());
        Ok(object)
    }
}

/// Longest wait of these puts for room: until the first of them would be given up, at most.
fn wait_for(leading: &Leading, items: &[PutStartItem]) -> Duration {
    let first = items.iter().map(|item| item.deadline.0).min().unwrap_or_default();
    Duration::from_millis(first.saturating_sub(leading.now().0)).min(leading.put_space_wait())
}

/// Objects that the calls of a message found, by call. They count as used once, however often the message was tried.
#[derive(Default)]
#[must_use]
struct ReadKeys(Vec<Vec<KeyHash>>);

impl ReadKeys {
    /// Adds what a call found. Returns whether it met an object that is being evicted, so that the message is tried again.
    fn add(&mut self, call: ReadAttempt<'_>) -> bool {
        self.0.push(call.found);
        call.undecided
    }

    fn count(self, leading: &Leading) {
        self.0.into_iter().for_each(|call| leading.hits.call(call.into_iter()));
    }
}

/// Builds a get's answer from the replicas on stores that are not suspect, each with its place in a grant.
fn placed(object: &ObjectView, leading: &Leading, grants: &mut Grants<'_>) -> Result<Placement, Miss> {
    let offered = object.replicas.iter().filter(|replica| !leading.is_suspect(replica.store));
    let replicas: Granted = offered.filter_map(|replica| grants.add(replica)).collect();
    if replicas.is_empty() {
        return Err(Miss::Unavailable);
    }
    let ObjectView { version, size, checksum, .. } = *object;
    Ok(Placement { version, size, checksum, replicas, doubtful: false })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use mc_index::{Command, Op, PutEndItem, Settings, Stamp};
    use mc_types::Clock;

    use super::*;
    use crate::leader::tests::mount;

    /// An index with an object under each of these keys, whose versions count from 1.
    fn index(keys: &[&[u8]]) -> State {
        let mut state = State::new(Settings::default());
        let puts = || (1..).map(PutId).zip(keys);
        let start = |(put, key): (PutId, &&[u8])| PutStartItem::new(put, key, 64, ClusterTime(1_000));
        let end = |(put, key): (PutId, &&[u8])| PutEndItem::new(put, KeyHash::of("", key), 0);
        let ops = [
            Op::MountStore(mount(1, &[], &[1 << 20])),
            Op::PutStart { tenant: String::new(), items: puts().map(start).collect() },
            Op::PutEnd { items: puts().map(end).collect() },
        ];
        for (index, op) in (1..).zip(ops) {
            state.apply(index, 1, &Command { stamp: Stamp { term: 1, ..Stamp::default() }, op });
        }
        state
    }

    #[tokio::test]
    async fn a_read_that_is_tried_again_counts_as_one_use() {
        let keys: [&[u8]; 2] = [b"a", b"b"];
        let state = index(&keys);
        let leading = Leading::begin(1, state.time(), state.settings(), Clock::monotonic());
        // The second object is being evicted, until the first try has met it.
        assert!(leading.leases.mark(PutId(2), leading.now()));
        let (room, tries) = (Room::new(), Cell::new(0));
        let read = || {
            tries.set(tries.get() + 1);
            let mut call = ReadAttempt::new(&state, &leading, "");
            let mut found = Vec::new();
            call.find(keys.into_iter(), |it| found.push(it.is_ok()));
            leading.leases.unmark(PutId(2));
            let mut used = ReadKeys::default();
            let undecided = used.add(call);
            ((found, used), undecided)
        };
        let (found, used) = room.read_settled(read).await;
        assert_eq!((found, tries.get()), (vec![true, true], 2));
        used.count(&leading);
        let mut calls = Vec::new();
        leading.hits.drain(|call| calls.push(call.to_vec()));
        assert_eq!(calls, [keys.map(|key| KeyHash::of("", key)).to_vec()]);
    }

    #[test]
    fn each_call_of_a_message_is_a_use_of_its_own() {
        let keys: [&[u8]; 3] = [b"a", b"b", b"c"];
        let state = index(&keys);
        let leading = Leading::begin(1, state.time(), state.settings(), Clock::monotonic());
        let mut used = ReadKeys::default();
        for keys in apart(&keys, &[2, 1]) {
            let mut call = ReadAttempt::new(&state, &leading, "");
            call.find(keys.iter().copied(), |found| assert!(found.is_ok()));
            assert!(!used.add(call), "nothing is being evicted");
        }
        used.count(&leading);
        let mut calls = Vec::new();
        leading.hits.drain(|call| calls.push(call.to_vec()));
        assert_eq!(
            calls,
            [keys[..2].iter().collect::<Vec<_>>(), vec![&keys[2]]]
                .map(|call| { call.into_iter().map(|key| KeyHash::of("", key)).collect::<Vec<_>>() })
        );
    }
}
