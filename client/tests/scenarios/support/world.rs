//! State that the fake masters of one cluster share: objects, puts, and stores whose memory is a map.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use mc_proto::v1::{self, Leader};
use mc_types::{ClusterId, Code, PutId, Receipt, SegmentEpoch, StoreId};
use parking_lot::Mutex;

use super::security::Security;

/// The receipt of a store for a place in its memory.
pub fn receipt((store, offset): (StoreId, u64)) -> Receipt {
    Receipt::from_bytes(&[store.to_bytes(), offset.to_be_bytes()].concat()).expect("16 bytes")
}

/// Which call a fault is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    Exist,
    Get,
    Start,
    End,
    Revoke,
    Remove,
    List,
    SetSecurity,
    SetTenant,
}

/// Fault of one call.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It is applied, and its answer is lost with the connection.
    LoseAnswer,
    /// It is applied, and its answer never comes.
    NeverAnswer,
    /// It is not applied, and the answer never comes.
    Swallow,
    /// It is not applied, and answered so.
    Answer(Code),
    /// It is not applied, and may be tried again after a minute.
    TooManyCalls,
    /// It is not applied, and the put is gone as if its deadline had passed.
    EndPut,
    /// It is not applied, and every put in it is said to be gone.
    SayGone,
    /// It is applied, then the put's object is removed, and the answer is lost.
    LoseAnswerAndObject,
    /// The store is unmounted, then it is applied.
    Unmount(StoreId),
    /// It is applied, and the store is unmounted before the leader grants its places.
    UnmountAfter(StoreId),
}

#[derive(Clone, Debug)]
pub struct Object {
    pub version: PutId,
    pub size: u64,
    pub checksum: u64,
    pub replicas: Vec<(StoreId, u64)>,
}

#[derive(Clone, Debug)]
pub struct InFlight {
    pub key: Vec<u8>,
    pub size: u64,
    pub upsert: bool,
    pub replicas: Vec<(StoreId, u64)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreHealth {
    #[default]
    Well,
    /// Connections are refused.
    Dead,
    /// Nothing is ever answered.
    Stopped,
    /// Nothing is answered as long as this lasts.
    Held,
    /// Other calls have all connections to it.
    Busy,
    /// The client may reach it by RDMA alone, and the tenant's bytes may not go that way.
    WithoutRdma,
}

#[derive(Debug)]
pub struct World {
    pub cluster: ClusterId,
    pub leader: Option<Leader>,
    pub objects: BTreeMap<Vec<u8>, Object>,
    pub puts: BTreeMap<u128, InFlight>,
    pub stores: BTreeMap<StoreId, StoreHealth>,
    /// Bytes by store and offset.
    pub memory: BTreeMap<(StoreId, u64), Vec<u8>>,
    /// Places that no write changes any more, by store and offset.
    pub sealed: BTreeSet<(StoreId, u64)>,
    pub grants: Vec<Vec<u64>>,
    pub next_offset: u64,
    pub lease_ms: u64,
    pub faults: VecDeque<(On, Fault)>,
    /// Calls of this kind are neither applied nor answered as long as this lasts.
    pub held: Option<On>,
    /// Every call that reached a leader: which, and how many items.
    pub calls: Vec<(On, usize)>,
    pub avoided: Vec<StoreId>,
    pub put_ids: Vec<u128>,
    pub reads: usize,
    pub writes: usize,
    /// Addresses and lengths of the local buffers of each read and write, in order.
    pub buffers: Vec<Vec<(usize, usize)>>,
    /// Stores in the order in which transfers tried to reach them.
    pub tried: Vec<StoreId>,
    /// Stores that the leader calls suspect.
    pub suspects: Vec<StoreId>,
    /// Puts of one replica go to the stores by turns, rather than all to the first.
    pub spread: bool,
    /// The masters are of a build that does not tell the calls of a message apart.
    pub joins_unknown: bool,
    /// The masters are of a build that tells a key that is being written from one that is absent.
    pub tells_of_puts: bool,
    /// The masters are of a build that reads packed keys.
    pub packs: bool,
    /// Number of existence checks whose keys were packed.
    pub packed: usize,
    /// A read waits so long before it delivers.
    pub read_delay: std::time::Duration,
    /// Objects are said to be doubtful.
    pub doubtful: bool,
    /// A store that is unmounted as soon as a put is placed.
    pub unmounting: Option<StoreId>,
    pub security: Security,
    /// Number of objects that a page of a listing visits.
    pub page: usize,
}

pub type Shared = Arc<Mutex<World>>;

pub const STORE_A: StoreId = StoreId(0xa);
pub const STORE_B: StoreId = StoreId(0xb);
pub const EPOCH: SegmentEpoch = SegmentEpoch(1);

impl World {
    pub fn new(stores: &[StoreId]) -> Self {
        Self {
            cluster: ClusterId::random(),
            leader: None,
            objects: BTreeMap::new(),
            puts: BTreeMap::new(),
            stores: stores.iter().map(|store| (*store, StoreHealth::Well)).collect(),
            memory: BTreeMap::new(),
            sealed: BTreeSet::new(),
            grants: Vec::new(),
            next_offset: 0,
            lease_ms: 10_000,
            faults: VecDeque::new(),
            held: None,
            calls: Vec::new(),
            avoided: Vec::new(),
            put_ids: Vec::new(),
            reads: 0,
            writes: 0,
            buffers: Vec::new(),
            tried: Vec::new(),
            suspects: Vec::new(),
            spread: false,
            joins_unknown: false,
            tells_of_puts: true,
            packs: true,
            packed: 0,
            read_delay: std::time::Duration::ZERO,
            doubtful: false,
            unmounting: None,
            security: Security::default(),
            page: 1_000,
        }
    }

    pub fn count(&self, on: On) -> usize {
        self.calls.iter().filter(|(call, _)| *call == on).count()
    }

    /// The fault for this call, if one is due; each is used once.
    pub fn fault(&mut self, on: On, items: usize) -> Option<Fault> {
        self.calls.push((on, items));
        let at = self.faults.iter().position(|(due, _)| *due == on)?;
        self.faults.remove(at).map(|(_, fault)| fault)
    }

    fn grant(&mut self, grants: &mut Vec<v1::StoreGrant>, store: StoreId, offset: u64) -> (u32, u32) {
        let id = store.to_bytes().to_vec();
        let at = grants.iter().position(|grant| grant.store_id == id).unwrap_or_else(|| {
            self.grants.push(Vec::new());
            let number = u64::try_from(self.grants.len() - 1).unwrap();
            grants.push(v1::StoreGrant {
                store_id: id.into(),
                epoch: EPOCH.to_bytes().to_vec().into(),
                grant: number.to_be_bytes().to_vec().into(),
                proof_key: Vec::new().into(),
                endpoints: vec![v1::Endpoint { transport: "fake".into(), ..v1::Endpoint::default() }],
            });
            grants.len() - 1
        });
        let number = u64::from_be_bytes(grants[at].grant[..].try_into().unwrap());
        let ranges = &mut self.grants[usize::try_from(number).unwrap()];
        ranges.push(offset);
        (u32::try_from(at).unwrap(), u32::try_from(ranges.len() - 1).unwrap())
    }

    /// The items of each call of a message. A master that does not know the field takes them for one call.
    fn told_apart<'i, T>(&self, items: &'i [T], calls: &[u32]) -> Vec<&'i [T]> {
        if calls.is_empty() || self.joins_unknown {
            return vec![items];
        }
        let mut rest = items;
        let mut call = |len: &u32| {
            let (call, after) = rest.split_at(usize::try_from(*len).unwrap());
            rest = after;
            call
        };
        let calls = calls.iter().map(&mut call).collect();
        assert!(rest.is_empty(), "the calls add up to the items");
        calls
    }

    fn place(
        &mut self,
        (before, grants): (&[v1::StoreGrant], &mut Vec<v1::StoreGrant>),
        replicas: &[(StoreId, u64)],
        size: u64,
    ) -> Vec<v1::Replica> {
        let placed = replicas.iter().map(|(store, offset)| {
            let (grant, range) = self.grant(grants, *store, *offset);
            v1::Replica {
                store_id: store.to_bytes().to_vec().into(),
                segment: 0,
                epoch: EPOCH.to_bytes().to_vec().into(),
                offset: *offset,
                length: size,
                grant: grant + u32::try_from(before.len()).unwrap(),
                range,
            }
        });
        placed.collect()
    }

    fn is_being_written(&self, key: &[u8]) -> bool {
        self.tells_of_puts && self.puts.values().any(|put| put.key == key)
    }

    pub fn exist(&mut self, request: &v1::BatchExistRequest) -> v1::BatchExistReply {
        self.packed += usize::from(request.packed.is_some());
        match &request.packed {
            Some(packed) if self.packs => {
                let in_calls = packed.calls.iter().sum::<u32>() as usize;
                assert!(packed.calls.is_empty() || in_calls == packed.lengths.len(), "{packed:?}");
                let mut rest = packed.keys.clone();
                let keys = packed.lengths.iter().map(|len| rest.split_to(*len as usize)).collect();
                assert!(rest.is_empty(), "bytes of no key");
                let unpacked = self.exist_of_each(&v1::BatchExistRequest { keys, ..request.clone() });
                let state = |result: &v1::ExistResult| match Code::try_from(result.code) {
                    Ok(Code::Ok) => v1::KeyState::Present,
                    Ok(Code::ReplicaIsNotReady) => v1::KeyState::Unavailable,
                    _ if result.being_written => v1::KeyState::BeingWritten,
                    _ => v1::KeyState::Absent,
                };
                let states: Vec<u8> = unpacked.results.iter().map(|result| state(result) as u8).collect();
                let sizes = unpacked.results.iter().map(|result| result.size).collect();
                let packed = v1::PackedPresences { states: states.into(), sizes };
                v1::BatchExistReply { results: Vec::new(), packed: Some(packed), ..unpacked }
            }
            _ => self.exist_of_each(request),
        }
    }

    fn exist_of_each(&mut self, request: &v1::BatchExistRequest) -> v1::BatchExistReply {
        let results = request.keys.iter().map(|key| match self.objects.get(&key[..]) {
            Some(object) if object.replicas.iter().all(|(store, _)| self.suspects.contains(store)) => {
                v1::ExistResult { code: Code::ReplicaIsNotReady as i32, ..v1::ExistResult::default() }
            }
            Some(object) => {
                v1::ExistResult { code: Code::Ok as i32, size: object.size, being_written: false }
            }
            None => {
                let being_written = self.is_being_written(key);
                v1::ExistResult { code: Code::ObjectNotFound as i32, size: 0, being_written }
            }
        });
        let results = results.collect();
        v1::BatchExistReply { results, apart: !self.joins_unknown, packs: self.packs, packed: None }
    }

    pub fn get(&mut self, request: &v1::BatchGetRequest) -> v1::BatchGetReply {
        let (mut grants, mut results) = (Vec::new(), Vec::new());
        for keys in self.told_apart(&request.keys, &request.calls) {
            let mut own = Vec::new();
            for key in keys {
                results.push(match self.objects.get(&key[..]).cloned() {
                    Some(object) => v1::GetResult {
                        code: Code::Ok as i32,
                        version: object.version.to_bytes().to_vec().into(),
                        size: object.size,
                        checksum: object.checksum,
                        replicas: self.place((&grants, &mut own), &object.replicas, object.size),
                        doubtful: self.doubtful,
                        being_written: false,
                    },
                    None => v1::GetResult {
                        code: Code::ObjectNotFound as i32,
                        being_written: self.is_being_written(key),
                        ..v1::GetResult::default()
                    },
                });
            }
            grants.extend(own);
        }
        v1::BatchGetReply { results, grants, lease_ms: self.lease_ms, apart: !self.joins_unknown }
    }

    pub fn start(&mut self, request: &v1::BatchPutStartRequest) -> v1::BatchPutStartReply {
        let (mut grants, mut results) = (Vec::new(), Vec::new());
        for items in self.told_apart(&request.items, &request.calls) {
            let mut own = Vec::new();
            for item in items {
                results.push(self.start_one(item, (&grants, &mut own)));
            }
            grants.extend(own);
        }
        v1::BatchPutStartReply { results, grants, apart: !self.joins_unknown, ..Default::default() }
    }

    fn start_one(
        &mut self,
        item: &v1::PutStartItem,
        grants: (&[v1::StoreGrant], &mut Vec<v1::StoreGrant>),
    ) -> v1::PutStartResult {
        let put = PutId::from_bytes(&item.put_id).unwrap();
        let avoid: Vec<StoreId> = item.avoid_stores.iter().copied().map(StoreId).collect();
        self.avoided.extend(&avoid);
        self.put_ids.push(put.0);
        let upsert = item.mode == v1::PutMode::Upsert as i32;
        if !upsert && self.objects.contains_key(&item.key[..]) {
            let code = Code::ObjectAlreadyExists as i32;
            return v1::PutStartResult { code, replicas: Vec::new() };
        }
        let known = self.puts.get(&put.0).map(|put| put.replicas.clone());
        let replicas = known.unwrap_or_else(|| {
            let usable = self.stores.keys().filter(|store| !avoid.contains(store)).copied();
            let mut usable: Vec<_> = usable.collect();
            if self.spread && !usable.is_empty() {
                let first = self.put_ids.len() % usable.len();
                usable.rotate_left(first);
            }
            // The others keep their order.
            usable.sort_by_key(|store| !item.preferred_stores.contains(&store.0));
            let chosen: Vec<_> = usable.into_iter().take(item.replicas.max(1) as usize).collect();
            chosen
                .into_iter()
                .map(|store| {
                    self.next_offset += item.size.next_multiple_of(64);
                    (store, self.next_offset)
                })
                .collect()
        });
        if replicas.is_empty() {
            let code = Code::NoAvailableHandle as i32;
            return v1::PutStartResult { code, replicas: Vec::new() };
        }
        let in_flight =
            InFlight { key: item.key.to_vec(), size: item.size, upsert, replicas: replicas.clone() };
        self.puts.insert(put.0, in_flight);
        if let Some(store) = self.unmounting.take() {
            self.stores.remove(&store);
            return v1::PutStartResult { code: Code::PutGone as i32, replicas: Vec::new() };
        }
        let replicas = self.place(grants, &replicas, item.size);
        v1::PutStartResult { code: Code::Ok as i32, replicas }
    }

    pub fn end(&mut self, request: &v1::BatchPutEndRequest) -> v1::BatchPutEndReply {
        let results = request.items.iter().map(|item| {
            let id = PutId::from_bytes(&item.put_id).unwrap();
            let there = self.objects.get(&item.key[..]).map(|object| object.version);
            let code = match self.puts.remove(&id.0) {
                None if there == Some(id) => Code::Ok,
                None => Code::PutGone,
                Some(put) => {
                    let mut number = 0;
                    let mut given = item.receipts.chunks(Receipt::LEN);
                    let mut unproven = false;
                    let mut replicas = put.replicas.clone();
                    replicas.retain(|replica| {
                        number += 1;
                        let given = given.next().and_then(Receipt::from_bytes);
                        let mounted = self.stores.contains_key(&replica.0);
                        let failed = item.failed_replicas.contains(&(number - 1)) || !mounted;
                        unproven |= !failed && given != Some(receipt(*replica));
                        !failed && given == Some(receipt(*replica))
                    });
                    assert!(replicas.is_empty() || !unproven, "a put ends that can still be written");
                    if unproven {
                        self.puts.insert(id.0, put);
                        return v1::PutEndResult { code: Code::NotProven as i32 };
                    }
                    if replicas.is_empty() {
                        return v1::PutEndResult { code: Code::TransferFail as i32 };
                    }
                    if there.is_some() && !put.upsert {
                        return v1::PutEndResult { code: Code::ObjectAlreadyExists as i32 };
                    }
                    let object = Object { version: id, size: put.size, checksum: item.checksum, replicas };
                    self.objects.insert(put.key, object);
                    Code::Ok
                }
            };
            v1::PutEndResult { code: code as i32 }
        });
        v1::BatchPutEndReply { results: results.collect() }
    }

    pub fn revoke(&mut self, request: &v1::BatchPutRevokeRequest) -> v1::BatchPutRevokeReply {
        let results = request.put_ids.iter().map(|id| {
            self.puts.remove(&PutId::from_bytes(id).unwrap().0);
            v1::PutEndResult { code: Code::Ok as i32 }
        });
        v1::BatchPutRevokeReply { results: results.collect() }
    }

    pub fn list(&mut self, request: &v1::ListKeysRequest) -> v1::ListKeysReply {
        let from = usize::try_from(request.from).unwrap();
        let visited = self.objects.iter().skip(from).take(self.page);
        let keys = visited.filter(|(key, _)| key.starts_with(&request.prefix));
        let keys = keys.map(|(key, object)| v1::ListedKey { key: key.clone().into(), size: object.size });
        let next = from + self.page;
        let next = if next < self.objects.len() { u64::try_from(next).unwrap() } else { 0 };
        v1::ListKeysReply { keys: keys.collect(), next }
    }

    pub fn remove(&mut self, request: &v1::BatchRemoveRequest) -> v1::BatchRemoveReply {
        let results = request.items.iter().map(|item| {
            let removed = self.objects.remove(&item.key[..]).is_some();
            let code = if removed { Code::Ok } else { Code::ObjectNotFound };
            v1::RemoveResult { code: code as i32 }
        });
        v1::BatchRemoveReply { results: results.collect() }
    }
}
