//! Puts of one or several keys in a call.

use mc_proto::v1;
use mc_tests::by_hand;
use mc_tests::checker::{Action, Digest, Outcome};
use mc_transfer::{Peer, PeerEndpoint, Seal, Transport as _, WriteBuffer, WriteOp};
use mc_types::{Code, Grant, PutId, StoreId};
use tokio::time::{Duration, Instant, sleep};

use crate::caller::{Missed, caller};
use crate::carrier::Carrier;
use crate::client::{Client, OPERATION};
use crate::keys::{self, digest, group_of, tenant_of};
use crate::store::may_forget;

/// Length of soft pins in ms.
const SOFT_PIN: u64 = 2_000;
/// Pause before what was refused is asked for again.
const AGAIN: Duration = Duration::from_millis(20);

/// A put that is asked for, and how far it is.
struct Put {
    key: String,

    action: Action,
    item: v1::PutStartItem,
    /// Time of its call, and later that of its end.
    started: u64,
    /// Places, once it has started.
    replicas: Vec<v1::Replica>,
    /// Permissions to write them.
    grants: Vec<v1::StoreGrant>,
    /// Receipts as of its stores, although nobody writes to them: the values of these puts are not read.
    receipts: bytes::Bytes,
    /// The replica that fails.
    failed: Option<u32>,
    /// An end of it had no answer.
    unsure: bool,
    outcome: Option<Outcome>,
}

impl Put {
    fn is_placed(&self) -> bool {
        self.outcome.is_none() && !self.replicas.is_empty()
    }
}

/// Whether a replica lies on a store that never forgets.
fn stays(replica: &v1::Replica) -> bool {
    StoreId::from_bytes(&replica.store_id).is_some_and(|store| !may_forget(store))
}

impl Client {
    /// Puts until one is acknowledged.
    pub(crate) async fn put_one(&mut self) {
        let key = format!("last-{}", self.number);
        while self.put(&key, v1::PutMode::Upsert).await != Outcome::Stored {}
    }

    pub(crate) async fn put(&mut self, key: &str, mode: v1::PutMode) -> Outcome {
        self.put_all(vec![key.to_owned()], mode).await[0]
    }

    /// Puts several keys of one tenant by one call. Each put is an operation.
    pub(crate) async fn put_all(&mut self, keys: Vec<String>, mode: v1::PutMode) -> Vec<Outcome> {
        let deadline = Instant::now() + OPERATION;
        let mut puts: Vec<_> = keys.into_iter().map(|key| self.new_put(key, mode)).collect();
        self.start(&mut puts, deadline).await;
        for put in &mut puts {
            if put.is_placed() && !put.replicas.iter().any(stays) {
                // Where a store may forget it nobody could tell a loss from a death.
                self.take_back(put, deadline).await;
                put.outcome = Some(Outcome::Failed);
            }
            self.oracle.tally(|tally| tally.on_two_stores += usize::from(put.replicas.len() > 1));
            // Of two replicas the one that may be forgotten fails at times.
            let forgotten = put.replicas.iter().position(|replica| !stays(replica));
            put.failed = forgotten.filter(|_| self.rng.below(4) == 0).map(|place| place as u32);
            if put.is_placed() {
                // Nobody can see it before its end was asked for.
                put.started = self.oracle.now();
            }
        }
        self.end(&mut puts, deadline).await;
        let stored = puts.iter().filter(|put| put.outcome == Some(Outcome::Stored));
        let (count, changed) = stored.fold((0, 0), |(count, changed), put| {
            (count + 1, changed + usize::from(keys::is_hot(&put.key) && put.item.pin != 0))
        });
        self.oracle.tally(|tally| {
            tally.pins_changed += changed;
            tally.stored_together += if count > 1 { count } else { 0 };
        });
        let recorded = puts.into_iter().map(|put| {
            let outcome = put.outcome.unwrap_or(Outcome::Failed);
            self.record(&put.key, put.action, outcome, put.started)
        });
        recorded.collect()
    }

    /// Starts a put and takes it back: its value may never be seen.
    pub(crate) async fn revoke(&mut self, key: &str) {
        let deadline = Instant::now() + OPERATION;
        let mut puts = [self.new_put(key.to_owned(), v1::PutMode::Upsert)];
        self.start(&mut puts, deadline).await;
        let [put] = puts;
        if put.is_placed() {
            self.seal_too_early(&put).await;
            self.take_back(&put, deadline).await;
            self.record(key, put.action, Outcome::Failed, put.started);
        }
    }

    /// Writes the first byte alone, and asks the real stores to seal the range: they refuse that.
    async fn seal_too_early(&self, put: &Put) {
        for replica in put.replicas.iter().filter(|replica| stays(replica) && replica.length > 1) {
            let granted = &put.grants[replica.grant as usize];
            let Some(key) = StoreId::from_bytes(&granted.store_id).and_then(|it| self.oracle.grant_key(it))
            else {
                continue;
            };
            let Ok((Grant { cluster, store, epoch, .. }, _)) = Grant::open(&granted.grant, &key) else {
                continue;
            };
            let endpoint = |it: &v1::Endpoint| PeerEndpoint {
                transport: it.transport.clone(),
                address: it.address.clone(),
                attributes: Vec::new(),
            };
            let endpoints = granted.endpoints.iter().map(endpoint).collect();
            let peer = Peer { cluster, store, epoch, endpoints };
            let op = WriteOp { range: replica.range, offset: 0, from: vec![WriteBuffer::from(&b"1"[..])] };
            let carrier = Carrier(self.net.of(self.host));
            let soon = Instant::now() + AGAIN * 10;
            let sealed = carrier.write(&peer, &granted.grant.clone().into(), &[op], Seal::Yes, soon).await;
            assert!(sealed[0].is_err(), "store {store} has sealed a range that was not written");
        }
    }

    fn new_put(&mut self, key: String, mode: v1::PutMode) -> Put {
        let id = PutId(u128::from(self.rng.bits()) << 64 | u128::from(self.rng.bits() | 1));
        let value: Digest = digest(id);
        let action = match mode {
            v1::PutMode::Upsert => Action::Upsert(value),
            v1::PutMode::IfAbsent => Action::PutIfAbsent(value),
        };
        let pin = keys::pin(&key, self.rng.bits());
        self.oracle.asks_for(id, pin);
        let item = v1::PutStartItem {
            put_id: bytes::Bytes::copy_from_slice(&id.to_bytes()),
            key: bytes::Bytes::copy_from_slice(key.as_bytes()),
            size: self.pool.size(&key, &mut self.rng),
            mode: mode as i32,
            replicas: 1 + self.rng.below(2) as u32,
            deadline_ms: 5_000,
            pin: pin as i32,
            soft_pin_ms: if pin == v1::PinAction::PinSoft { SOFT_PIN } else { 0 },
            group: group_of(&key).into(),
            ..Default::default()
        };
        Put {
            key,
            action,
            item,
            started: self.oracle.now(),
            replicas: Vec::new(),
            grants: Vec::new(),
            receipts: bytes::Bytes::new(),
            failed: None,
            unsure: false,
            outcome: None,
        }
    }

    /// Starts `puts`: each has its places then, or its outcome.
    async fn start(&mut self, puts: &mut [Put], deadline: Instant) {
        let tenant = puts.first().map_or("", |put| tenant_of(&put.key));
        loop {
            let open = |put: &&mut Put| put.outcome.is_none() && put.replicas.is_empty();
            let mut left: Vec<_> = puts.iter_mut().filter(open).collect();
            if left.is_empty() {
                return;
            }
            if Instant::now() > deadline {
                left.iter_mut().for_each(|put| put.outcome = Some(Outcome::Failed));
                return;
            }
            let items = left.iter().map(|put| put.item.clone()).collect();
            let request = v1::BatchPutStartRequest {
                caller: caller(),
                tenant: tenant.into(),
                items,
                ..Default::default()
            };
            match self.caller.attempt(async |mut master| master.batch_put_start(request).await).await {
                Ok(reply) => {
                    let mut again = false;
                    for (put, result) in left.into_iter().zip(reply.results) {
                        match Code::try_from(result.code) {
                            Ok(Code::Ok) => {
                                put.receipts = by_hand::receipts(&result.replicas, &reply.grants, |store| {
                                    self.oracle.grant_key(store)
                                });
                                put.replicas = result.replicas;
                                put.grants.clone_from(&reply.grants);
                            }
                            Ok(Code::ObjectAlreadyExists) => put.outcome = Some(Outcome::Exists),
                            Ok(Code::TenantQuotaExceeded) => {
                                self.oracle.tally(|tally| tally.refused_for_quota += 1);
                                put.outcome = Some(Outcome::Failed);
                            }
                            Ok(Code::NoAvailableHandle) => {
                                self.oracle.tally(|tally| tally.refused_for_memory += 1);
                                again = true;
                            }
                            _ => again = true,
                        }
                    }
                    if again {
                        sleep(AGAIN).await;
                    }
                }
                Err(Missed::NoRoom) => {
                    self.oracle.tally(|tally| tally.refused_for_room += 1);
                    sleep(AGAIN).await;
                }
                Err(_) => {}
            }
        }
    }

    /// Ends those of `puts` that are placed.
    async fn end(&mut self, puts: &mut [Put], deadline: Instant) {
        let tenant = puts.first().map_or("", |put| tenant_of(&put.key));
        loop {
            let mut left: Vec<_> = puts.iter_mut().filter(|put| put.is_placed()).collect();
            if left.is_empty() {
                return;
            }
            let item = |put: &&mut Put| v1::PutEndItem {
                put_id: put.item.put_id.clone(),
                key: put.item.key.clone(),
                checksum: 0,
                failed_replicas: put.failed.into_iter().collect(),
                receipts: put.receipts.clone(),
            };
            let items = left.iter().map(item).collect();
            let request = v1::BatchPutEndRequest { caller: caller(), tenant: tenant.into(), items };
            match self.caller.attempt(async |mut master| master.batch_put_end(request).await).await {
                Ok(reply) => {
                    for (put, result) in left.into_iter().zip(reply.results) {
                        put.outcome = Some(match Code::try_from(result.code) {
                            Ok(Code::Ok) => Outcome::Stored,
                            _ if put.unsure => Outcome::Unknown,
                            Ok(Code::ObjectAlreadyExists) => Outcome::Exists,
                            _ => Outcome::Failed,
                        });
                    }
                    return;
                }
                Err(Missed::Unknown) => left.iter_mut().for_each(|put| put.unsure = true),
                Err(Missed::Refused | Missed::NoRoom) => {}
            }
            if Instant::now() > deadline {
                for put in left {
                    put.outcome = Some(if put.unsure { Outcome::Unknown } else { Outcome::Failed });
                }
                return;
            }
        }
    }

    /// Revokes a put that was not ended.
    async fn take_back(&mut self, put: &Put, deadline: Instant) {
        while Instant::now() < deadline {
            let request = v1::BatchPutRevokeRequest {
                caller: caller(),
                tenant: tenant_of(&put.key).into(),
                put_ids: vec![put.item.put_id.clone()],
            };
            if self.caller.attempt(async |mut master| master.batch_put_revoke(request).await).await.is_ok() {
                self.oracle.tally(|tally| tally.revoked += 1);
                return;
            }
        }
    }
}
