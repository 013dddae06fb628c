//! The clients of a simulated cluster. No bytes move here: they ask for places and never use them.

use std::sync::Arc;
use std::time::Duration;

use mc_net::{ChannelOptions, Network};
use mc_proto::v1::{self, master_client::MasterClient};
use mc_tests::Seeded;
use mc_tests::checker::{Action, Digest, Outcome};
use mc_types::{Code, PutId, StoreId};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tonic::Status;
use tonic::transport::Channel;

use crate::keys::{self, group_of, pin_of, tenant_of};
use crate::machine::CLIENTS;
use crate::net::{Host, Net, address_of};
use crate::oracle::Oracle;
use crate::store::may_forget;

/// An operation that takes longer is given up.
const OPERATION: Duration = Duration::from_millis(1500);

/// Orders to the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Whatever they like.
    All,
    /// Reads alone, so that the log rests.
    Reads,
    /// Writes alone, one after the other, so that entries are always on their way.
    Writes,
    /// No more.
    Nothing,
}

/// How a client behaves. Some leave a master that does not answer soon and find a new leader while others still ask the
/// old one, which is where a stale answer would come from.
#[derive(Clone, Copy)]
pub(crate) struct Habit {
    /// An attempt that takes longer is given up.
    patience: Duration,
    /// Of 100 operations.
    reads: u64,
    /// Longest pause between two operations, in ms.
    pause: u64,
    /// Whether it asks any master first, whoever answered last.
    fickle: bool,
}

impl Habit {
    /// The habit of client `number`.
    pub(crate) fn of(number: u32) -> Self {
        match number % 3 {
            0 => Self { patience: Duration::from_millis(40), reads: 10, pause: 15, fickle: true },
            1 => Self { patience: Duration::from_millis(120), reads: 50, pause: 40, fickle: false },
            _ => Self { patience: Duration::from_millis(250), reads: 95, pause: 8, fickle: false },
        }
    }
}

/// Calls masters, the one that answered last first.
pub(crate) struct Caller {
    masters: Vec<MasterClient<Channel>>,
    pub(crate) at: usize,
    pub(crate) patience: Duration,
    rng: Seeded,
}

/// Outcome of an attempt without an answer.
pub(crate) enum Missed {
    /// Nothing was done.
    Refused,
    /// Nothing was done, because the masters' disks are nearly full.
    NoRoom,
    /// It may have been done, or may be yet.
    Unknown,
}

impl Caller {
    pub(crate) fn new(network: &Arc<dyn Network>, masters: usize, patience: Duration, rng: Seeded) -> Self {
        let client = |at| {
            let address = address_of(at, CLIENTS).to_string();
            MasterClient::new(network.channel(&address, ChannelOptions::default()).expect("an address"))
        };
        Self { masters: (0..masters).map(client).collect(), at: 0, patience, rng }
    }

    /// One attempt. Whoever does not answer is left; a redirection is followed.
    pub(crate) async fn attempt<R>(
        &mut self,
        call: impl AsyncFnOnce(MasterClient<Channel>) -> Result<tonic::Response<R>, Status>,
    ) -> Result<R, Missed> {
        let status = match timeout(self.patience, call(self.masters[self.at].clone())).await {
            Ok(Ok(reply)) => return Ok(reply.into_inner()),
            Ok(Err(status)) => status,
            Err(_) => {
                self.elsewhere().await;
                return Err(Missed::Unknown);
            }
        };
        let Some(detail) = mc_proto::detail_of(&status) else {
            self.elsewhere().await;
            return Err(Missed::Unknown);
        };
        let leader = detail.leader.as_ref().and_then(|leader| {
            (0..self.masters.len()).find(|at| address_of(*at, CLIENTS).to_string() == leader.address)
        });
        match leader {
            Some(leader) => self.at = leader,
            None => self.elsewhere().await,
        }
        match Code::try_from(detail.code) {
            Ok(Code::OutcomeUnknown) => Err(Missed::Unknown),
            Ok(Code::DiskNearlyFull) => Err(Missed::NoRoom),
            _ => Err(Missed::Refused),
        }
    }

    pub(crate) async fn elsewhere(&mut self) {
        self.anyone();
        sleep(Duration::from_millis(self.rng.within(2..20))).await;
    }

    fn anyone(&mut self) {
        self.at = self.rng.below(self.masters.len() as u64) as usize;
    }
}

pub(crate) fn caller() -> Option<v1::Caller> {
    Some(v1::Caller {
        client_id: vec![1; 16].into(),
        version_min: *mc_proto::VERSIONS.start(),
        version_max: *mc_proto::VERSIONS.end(),
        ..Default::default()
    })
}

/// How the start of a put ended.
enum Started {
    At(Vec<v1::Replica>),
    /// A put-if-absent, and there is a value.
    Exists,
    Not,
}

/// Whether a replica lies on a store that never forgets.
fn stays(replica: &v1::Replica) -> bool {
    StoreId::from_bytes(&replica.store_id).is_some_and(|store| !may_forget(store))
}

/// One client: an operation at a time.
pub(crate) struct Client {
    number: u32,
    habit: Habit,
    pub(crate) net: Net,
    pub(crate) host: Host,
    pub(crate) caller: Caller,
    pub(crate) oracle: Oracle,
    pub(crate) rng: Seeded,
    /// Keys that it put once and leaves alone.
    kept: Vec<String>,
}

impl Client {
    pub(crate) fn new(number: usize, net: Net, masters: usize, oracle: Oracle, rng: Seeded) -> Self {
        // The hosts of the clients follow those of the masters.
        let host = masters + number;
        let number = u32::try_from(number).unwrap_or(0);
        let habit = Habit::of(number);
        let caller = Caller::new(&net.of(host), masters, habit.patience, rng.part(1));
        Self { number, habit, net, host, caller, oracle, rng: rng.part(2), kept: Vec::new() }
    }

    /// Does random operations until told to stop.
    pub(crate) async fn run(mut self, wanted: Arc<Mutex<Wanted>>) -> Self {
        loop {
            let wanted = *wanted.lock();
            if wanted == Wanted::Nothing {
                return self;
            }
            let draw = self.rng.bits();
            let hot = keys::hot(draw);
            let kind = self.rng.below(10);
            if self.habit.fickle && wanted != Wanted::Writes {
                self.caller.anyone();
            }
            let reads = match wanted {
                Wanted::Reads => true,
                Wanted::Writes => false,
                Wanted::All | Wanted::Nothing => self.rng.below(100) < self.habit.reads,
            };
            if reads {
                match self.rng.below(self.kept.len() as u64 + 1) as usize {
                    _ if kind == 0 => self.exist(&hot).await,
                    _ if kind == 3 => drop(self.get(&keys::bound(draw)).await),
                    _ if kind == 4 => drop(self.get(&keys::scratch(draw)).await),
                    _ if kind == 5 => drop(self.get_entry(&keys::entry(draw)).await),
                    at if kind < 3 && at < self.kept.len() => {
                        let key = self.kept[at].clone();
                        self.get(&key).await;
                    }
                    _ => {
                        self.get(&hot).await;
                    }
                }
            } else {
                match kind {
                    0 | 1 => {
                        let key = keys::kept(draw, self.number, self.kept.len());
                        self.kept.push(key.clone());
                        self.put(&key, v1::PutMode::Upsert).await;
                    }
                    2 => self.change_entry(&keys::entry(draw)).await,
                    3 => self.remove(&hot).await,
                    4 => self.revoke(&hot).await,
                    5 => {
                        self.put(&hot, v1::PutMode::IfAbsent).await;
                    }
                    6 => {
                        self.put(&keys::bound(draw), v1::PutMode::Upsert).await;
                    }
                    7 => {
                        let key = keys::scratch(draw);
                        match self.rng.below(4) {
                            0 => self.remove_many().await,
                            1 => self.drop_replica(&key).await,
                            _ => drop(self.put(&key, v1::PutMode::IfAbsent).await),
                        }
                    }
                    _ => {
                        self.put(&hot, v1::PutMode::Upsert).await;
                    }
                }
            }
            if wanted != Wanted::Writes {
                sleep(Duration::from_millis(self.rng.below(self.habit.pause))).await;
            }
        }
    }

    /// Reads every key until each has been answered.
    pub(crate) async fn read_all(&mut self) {
        let keys = self.oracle.keys();
        for key in keys {
            while !self.read(&key).await {}
        }
    }

    /// True when it was answered.
    async fn read(&mut self, key: &str) -> bool {
        match keys::is_entry(key) {
            true => self.get_entry(key).await,
            false => self.get(key).await,
        }
    }

    /// Puts until one is acknowledged.
    pub(crate) async fn put_one(&mut self) {
        let key = format!("last-{}", self.number);
        while self.put(&key, v1::PutMode::Upsert).await != Outcome::Stored {}
    }

    async fn put(&mut self, key: &str, mode: v1::PutMode) -> Outcome {
        let (put, digest) = self.new_put();
        let action = match mode {
            v1::PutMode::Upsert => Action::Upsert(digest),
            v1::PutMode::IfAbsent => Action::PutIfAbsent(digest),
        };
        let deadline = Instant::now() + OPERATION;
        let mut started = self.oracle.now();
        let replicas = match self.start(&put, key, mode, deadline).await {
            Started::At(replicas) => replicas,
            Started::Exists => return self.record(key, action, Outcome::Exists, started),
            Started::Not => return self.record(key, action, Outcome::Failed, started),
        };
        if !replicas.iter().any(stays) {
            // Where a store may forget it nobody could tell a loss from a death.
            self.take_back(&put, key, deadline).await;
            return self.record(key, action, Outcome::Failed, started);
        }
        self.oracle.tally(|tally| tally.on_two_stores += usize::from(replicas.len() > 1));
        // Of two replicas the one that may be forgotten fails at times.
        let forgotten = replicas.iter().position(|replica| !stays(replica));
        let failed = forgotten.filter(|_| self.rng.below(4) == 0);
        // Nobody can see it before its end was asked for.
        started = self.oracle.now();
        let mut unsure = false;
        let outcome = loop {
            let item = v1::PutEndItem {
                put_id: put.clone(),
                key: bytes::Bytes::copy_from_slice(key.as_bytes()),
                checksum: 0,
                failed_replicas: failed.iter().map(|place| *place as u32).collect(),
            };
            let request =
                v1::BatchPutEndRequest { caller: caller(), tenant: tenant_of(key).into(), items: vec![item] };
            match self.caller.attempt(async |mut master| master.batch_put_end(request).await).await {
                Ok(reply) => match Code::try_from(reply.results[0].code) {
                    Ok(Code::Ok) => break Outcome::Stored,
                    _ if unsure => break Outcome::Unknown,
                    Ok(Code::ObjectAlreadyExists) => break Outcome::Exists,
                    _ => break Outcome::Failed,
                },
                Err(Missed::Unknown) => unsure = true,
                Err(Missed::Refused | Missed::NoRoom) => {}
            }
            if Instant::now() > deadline {
                break if unsure { Outcome::Unknown } else { Outcome::Failed };
            }
        };
        self.record(key, action, outcome, started)
    }

    /// Starts a put and takes it back: its value may never be seen.
    async fn revoke(&mut self, key: &str) {
        let (put, digest) = self.new_put();
        let deadline = Instant::now() + OPERATION;
        let started = self.oracle.now();
        if let Started::At(_) = self.start(&put, key, v1::PutMode::Upsert, deadline).await {
            self.take_back(&put, key, deadline).await;
            self.record(key, Action::Upsert(digest), Outcome::Failed, started);
        }
    }

    fn new_put(&mut self) -> (bytes::Bytes, Digest) {
        let put = PutId(u128::from(self.rng.bits()) << 64 | u128::from(self.rng.bits() | 1));
        (bytes::Bytes::copy_from_slice(&put.to_bytes()), digest(put))
    }

    async fn start(
        &mut self,
        put: &bytes::Bytes,
        key: &str,
        mode: v1::PutMode,
        deadline: Instant,
    ) -> Started {
        let item = v1::PutStartItem {
            put_id: put.clone(),
            key: bytes::Bytes::copy_from_slice(key.as_bytes()),
            size: 4096,
            mode: mode as i32,
            replicas: 1 + self.rng.below(2) as u32,
            deadline_ms: 5_000,
            pin: pin_of(key) as i32,
            group: group_of(key).into(),
            ..Default::default()
        };
        loop {
            let items = vec![item.clone()];
            let tenant = tenant_of(key).into();
            let request = v1::BatchPutStartRequest { caller: caller(), tenant, items, ..Default::default() };
            match self.caller.attempt(async |mut master| master.batch_put_start(request).await).await {
                Ok(mut reply) => match Code::try_from(reply.results[0].code) {
                    Ok(Code::Ok) => return Started::At(std::mem::take(&mut reply.results[0].replicas)),
                    Ok(Code::ObjectAlreadyExists) => return Started::Exists,
                    Ok(Code::TenantQuotaExceeded) => {
                        self.oracle.tally(|tally| tally.refused_for_quota += 1);
                        return Started::Not;
                    }
                    _ => sleep(Duration::from_millis(20)).await,
                },
                Err(Missed::NoRoom) => {
                    self.oracle.tally(|tally| tally.refused_for_room += 1);
                    sleep(Duration::from_millis(20)).await;
                }
                Err(_) => {}
            }
            if Instant::now() > deadline {
                return Started::Not;
            }
        }
    }

    /// Revokes a put that was not ended.
    async fn take_back(&mut self, put: &bytes::Bytes, key: &str, deadline: Instant) {
        while Instant::now() < deadline {
            let request = v1::BatchPutRevokeRequest {
                caller: caller(),
                tenant: tenant_of(key).into(),
                put_ids: vec![put.clone()],
            };
            if self.caller.attempt(async |mut master| master.batch_put_revoke(request).await).await.is_ok() {
                self.oracle.tally(|tally| tally.revoked += 1);
                return;
            }
        }
    }

    /// True when it was answered.
    async fn get(&mut self, key: &str) -> bool {
        let deadline = Instant::now() + OPERATION;
        loop {
            let started = self.oracle.now();
            let keys = vec![bytes::Bytes::copy_from_slice(key.as_bytes())];
            let request = v1::BatchGetRequest {
                caller: caller(),
                tenant: tenant_of(key).into(),
                keys,
                reads_doubtful: true,
                ..Default::default()
            };
            if let Ok(reply) = self.caller.attempt(async |mut master| master.batch_get(request).await).await {
                let result = &reply.results[0];
                let outcome = match Code::try_from(result.code) {
                    Ok(Code::Ok) => Outcome::Value(digest(
                        PutId::from_bytes(&result.version).expect("an id has 16 bytes"),
                    )),
                    Ok(Code::ObjectNotFound) => Outcome::Miss,
                    // The store is suspect: there is something, and nothing is said of what.
                    _ => Outcome::Failed,
                };
                if outcome != Outcome::Failed {
                    self.record(key, Action::Get, outcome, started);
                    return true;
                }
                sleep(Duration::from_millis(20)).await;
            }
            if Instant::now() > deadline {
                return false;
            }
        }
    }

    async fn exist(&mut self, key: &str) {
        let started = self.oracle.now();
        let keys = vec![bytes::Bytes::copy_from_slice(key.as_bytes())];
        let request = v1::BatchExistRequest { caller: caller(), keys, ..Default::default() };
        if let Ok(reply) = self.caller.attempt(async |mut master| master.batch_exist(request).await).await {
            let outcome = match Code::try_from(reply.results[0].code) {
                Ok(Code::Ok) => Outcome::Present,
                Ok(Code::ObjectNotFound) => Outcome::Absent,
                _ => return,
            };
            self.record(key, Action::Exist, outcome, started);
        }
    }

    async fn remove(&mut self, key: &str) {
        let deadline = Instant::now() + OPERATION;
        loop {
            let started = self.oracle.now();
            let item = v1::RemoveItem {
                key: bytes::Bytes::copy_from_slice(key.as_bytes()),
                version: bytes::Bytes::new(),
            };
            let request = v1::BatchRemoveRequest {
                caller: caller(),
                tenant: String::new(),
                items: vec![item],
                force: true,
            };
            let outcome =
                match self.caller.attempt(async |mut master| master.batch_remove(request).await).await {
                    Ok(reply) => match Code::try_from(reply.results[0].code) {
                        Ok(Code::Ok) => Outcome::Removed,
                        Ok(Code::ObjectNotFound) => Outcome::NothingToRemove,
                        _ => Outcome::Failed,
                    },
                    // Repeated, it could hit another's object.
                    Err(Missed::Unknown) => Outcome::Unknown,
                    Err(_) if Instant::now() < deadline => continue,
                    Err(_) => Outcome::Failed,
                };
            self.record(key, Action::Remove, outcome, started);
            return;
        }
    }

    pub(crate) fn record(&self, key: &str, action: Action, outcome: Outcome, started: u64) -> Outcome {
        self.oracle.record(self.number, key, action, outcome, started);
        outcome
    }
}

pub(crate) fn digest(put: PutId) -> Digest {
    Digest(put.0 as u64)
}
