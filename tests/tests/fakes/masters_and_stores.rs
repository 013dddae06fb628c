//! As a client sees them, and stores as a transport does.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mc_client::{Peer, PeerEndpoint, ReadOp, Seal, SealedGrant, TransferError, Transport, WriteOp, Written};
use mc_proto::v1;
use mc_tests::Cluster;
use mc_transfer::{Checksum, TcpTransport};
use mc_types::{ClusterId, Code, PutId, Receipt, SegmentEpoch, StoreId};
use tokio::time::Instant;

use crate::client_fakes::transport::FakeTransport;
use crate::client_fakes::{self, STORE_A, STORE_B};
use crate::{Asked, refusal};

const VALUE: &[u8] = b"of thirty bytes, three tens ..";

/// A pool of two stores, one of whose masters leads.
struct Pool {
    leader: Asked,
    follower: Asked,
    transport: Arc<dyn Transport>,
    stores: [StoreId; 2],
}

/// One place of a value, and the permission to use it.
#[derive(Debug)]
struct Place {
    peer: Peer,
    grant: SealedGrant,
    range: u32,
    replica: v1::Replica,
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn bytes(put: PutId) -> Bytes {
    Bytes::copy_from_slice(&put.to_bytes())
}

impl Pool {
    fn places(&self, replicas: &[v1::Replica], grants: &[v1::StoreGrant]) -> Vec<Place> {
        let place = |replica: &v1::Replica| {
            let grant = &grants[replica.grant as usize];
            assert_eq!((&grant.store_id, &grant.epoch), (&replica.store_id, &replica.epoch));
            let endpoint = |it: &v1::Endpoint| PeerEndpoint {
                transport: it.transport.clone(),
                address: it.address.clone(),
                attributes: Vec::new(),
            };
            let peer = Peer {
                cluster: ClusterId::from_bytes(&self.leader.caller.cluster_id).unwrap(),
                store: StoreId::from_bytes(&grant.store_id).unwrap(),
                epoch: SegmentEpoch::from_bytes(&grant.epoch).unwrap(),
                endpoints: grant.endpoints.iter().map(endpoint).collect(),
            };
            let sealed = grant.grant.clone().into();
            Place { peer, grant: sealed, range: replica.range, replica: replica.clone() }
        };
        replicas.iter().map(place).collect()
    }

    fn item(put: PutId, key: &str) -> v1::PutStartItem {
        let key = Bytes::copy_from_slice(key.as_bytes());
        let size = VALUE.len() as u64;
        v1::PutStartItem {
            put_id: bytes(put),
            key,
            size,
            replicas: 1,
            deadline_ms: 60_000,
            ..Default::default()
        }
    }

    async fn start(&self, item: v1::PutStartItem) -> (Code, Vec<Place>) {
        let request = v1::BatchPutStartRequest {
            caller: self.leader.caller(),
            items: vec![item],
            ..Default::default()
        };
        let reply = self.leader.master.clone().batch_put_start(request).await.unwrap().into_inner();
        let result = &reply.results[0];
        (Code::try_from(result.code).unwrap(), self.places(&result.replicas, &reply.grants))
    }

    async fn end(&self, put: PutId, key: &str, failed_replicas: &[u32], receipts: &[Receipt]) -> Code {
        let item = v1::PutEndItem {
            put_id: bytes(put),
            key: Bytes::copy_from_slice(key.as_bytes()),
            checksum: Checksum::of(VALUE).0,
            failed_replicas: failed_replicas.to_vec(),
            receipts: receipts.iter().flat_map(|receipt| receipt.to_bytes()).collect(),
        };
        let request =
            v1::BatchPutEndRequest { caller: self.leader.caller(), items: vec![item], ..Default::default() };
        let reply = self.leader.master.clone().batch_put_end(request).await.unwrap().into_inner();
        Code::try_from(reply.results[0].code).unwrap()
    }

    async fn revoke(&self, put: PutId) -> Code {
        let request = v1::BatchPutRevokeRequest {
            caller: self.leader.caller(),
            put_ids: vec![bytes(put)],
            ..Default::default()
        };
        let reply = self.leader.master.clone().batch_put_revoke(request).await.unwrap().into_inner();
        Code::try_from(reply.results[0].code).unwrap()
    }

    async fn remove(&self, key: &str) -> Code {
        let item = v1::RemoveItem { key: Bytes::copy_from_slice(key.as_bytes()), ..Default::default() };
        let request = v1::BatchRemoveRequest {
            caller: self.leader.caller(),
            items: vec![item],
            force: true,
            ..Default::default()
        };
        let reply = self.leader.master.clone().batch_remove(request).await.unwrap().into_inner();
        Code::try_from(reply.results[0].code).unwrap()
    }

    async fn write(&self, place: &Place, seal: Seal) -> Result<Written, TransferError> {
        self.write_bytes(place, VALUE, seal).await
    }

    async fn write_bytes(&self, place: &Place, bytes: &[u8], seal: Seal) -> Result<Written, TransferError> {
        let ops = [WriteOp { range: place.range, offset: 0, from: vec![bytes.into()] }];
        let answers = self.transport.write(&place.peer, &place.grant, &ops, seal, soon()).await;
        answers[0].clone()
    }

    async fn read(&self, place: &Place, offset: u64, len: usize) -> Result<Vec<u8>, TransferError> {
        let mut into = vec![0; len];
        let mut ops = [ReadOp { range: place.range, offset, into: vec![(&mut into).into()] }];
        let checksum = self.transport.read(&place.peer, &place.grant, &mut ops, soon()).await.remove(0)?;
        assert_eq!(checksum, Checksum::of(&into));
        Ok(into)
    }

    async fn exist(&self, keys: &[&str]) -> v1::BatchExistReply {
        let keys = keys.iter().map(|key| Bytes::copy_from_slice(key.as_bytes())).collect();
        let request = v1::BatchExistRequest { caller: self.leader.caller(), keys, ..Default::default() };
        self.leader.master.clone().batch_exist(request).await.unwrap().into_inner()
    }

    async fn get(&self, keys: &[&str], calls: &[u32]) -> v1::BatchGetReply {
        let keys = keys.iter().map(|key| Bytes::copy_from_slice(key.as_bytes())).collect();
        let request = v1::BatchGetRequest {
            caller: self.leader.caller(),
            keys,
            calls: calls.to_vec(),
            ..Default::default()
        };
        self.leader.master.clone().batch_get(request).await.unwrap().into_inner()
    }

    /// Puts a value under a key, by all steps.
    async fn put(&self, item: v1::PutStartItem) {
        let (put, key) =
            (PutId::from_bytes(&item.put_id).unwrap(), String::from_utf8(item.key.to_vec()).unwrap());
        let (code, places) = self.start(item).await;
        assert_eq!(code, Code::Ok);
        let mut receipts = Vec::new();
        for place in &places {
            let written = self.write(place, Seal::Yes).await.unwrap();
            assert_eq!(written.checksum, Checksum::of(VALUE));
            receipts.push(written.receipt.expect("a receipt of what was sealed"));
        }
        assert_eq!(self.end(put, &key, &[], &receipts).await, Code::Ok);
    }
}

fn code(of: i32) -> Code {
    Code::try_from(of).unwrap()
}

async fn refusals_say_why(pool: &mut Pool) {
    let exist = |caller: v1::Caller| {
        let keys = vec![Bytes::from_static(b"k")];
        v1::BatchExistRequest { caller: Some(caller), keys, ..Default::default() }
    };
    for (stranger, code) in pool.leader.strangers() {
        assert_eq!(refusal(pool.leader.master.batch_exist(exist(stranger)).await).0, code);
    }
    let caller = pool.follower.caller.clone();
    let (code, named) = refusal(pool.follower.master.batch_exist(exist(caller)).await);
    assert_eq!((code, named.unwrap().node_id), (Code::NotLeader, pool.leader.caller.node_id.clone()));

    let watch = v1::WatchRequest { caller: pool.follower.caller(), ..Default::default() };
    let mut events = pool.follower.master.watch(watch).await.unwrap().into_inner();
    let event = events.message().await.unwrap().expect("the present state comes first");
    assert_eq!(event.leader.unwrap().node_id, pool.leader.caller.node_id);
    assert_eq!(event.cluster_id, pool.leader.caller.cluster_id);
}

async fn a_put_goes_through_its_steps(pool: &Pool) {
    let (put, key) = (PutId::random(), "steps");
    assert_eq!(pool.end(put, key, &[], &[]).await, Code::PutGone, "it was never started");
    let (code_of, places) = pool.start(Pool::item(put, key)).await;
    assert_eq!((code_of, places.len()), (Code::Ok, 1));
    let (code_of, again) = pool.start(Pool::item(put, key)).await;
    let at = |place: &Place| (place.replica.store_id.clone(), place.replica.segment, place.replica.offset);
    assert_eq!((code_of, at(&again[0])), (Code::Ok, at(&places[0])), "the same put has the same place");
    assert_eq!(places[0].replica.length, VALUE.len() as u64);

    let absent = &pool.exist(&[key]).await.results[0];
    assert_eq!((code(absent.code), absent.being_written), (Code::ObjectNotFound, true));
    assert_eq!(pool.end(put, key, &[], &[]).await, Code::NotProven, "nothing was written");
    let written = pool.write(&places[0], Seal::No).await.unwrap();
    assert_eq!(written, Written { checksum: Checksum::of(VALUE), receipt: None });
    let written = pool.write(&places[0], Seal::Yes).await.unwrap();
    assert_eq!(written.checksum, Checksum::of(VALUE));
    let receipt = written.receipt.expect("a receipt of what was sealed");
    let other = VALUE.to_ascii_uppercase();
    let late = pool.write_bytes(&places[0], &other, Seal::No).await;
    assert!(matches!(late, Err(TransferError::Refused { .. })), "written although it is sealed: {late:?}");
    let again = pool.write_bytes(&places[0], &other, Seal::Yes).await;
    assert_eq!(
        again.unwrap(),
        Written { checksum: Checksum::of(&other), receipt: Some(receipt) },
        "its answer may have been lost: it is not written again"
    );
    assert_eq!(pool.end(put, key, &[], &[receipt]).await, Code::Ok);
    assert_eq!(pool.end(put, key, &[], &[receipt]).await, Code::Ok, "the answer may have been lost");

    let found = &pool.exist(&[key]).await.results[0];
    assert_eq!((code(found.code), found.size), (Code::Ok, VALUE.len() as u64));
    let reply = pool.get(&[key, "absent"], &[]).await;
    assert!(reply.lease_ms > 0);
    let [found, absent] = &reply.results[..] else { panic!("{reply:?}") };
    assert_eq!((code(absent.code), absent.being_written), (Code::ObjectNotFound, false));
    assert_eq!((code(found.code), &found.version), (Code::Ok, &bytes(put)));
    assert_eq!((found.size, found.checksum), (VALUE.len() as u64, Checksum::of(VALUE).0));
    let place = &pool.places(&found.replicas, &reply.grants)[0];
    assert_eq!(pool.read(place, 0, VALUE.len()).await.unwrap(), VALUE);
    assert_eq!(pool.read(place, 10, 7).await.unwrap(), &VALUE[10..17]);

    let (code_of, places) = pool.start(Pool::item(PutId::random(), key)).await;
    assert_eq!((code_of, places.len()), (Code::ObjectAlreadyExists, 0), "put if absent");
    assert_eq!(pool.remove(key).await, Code::Ok);
    assert_eq!(pool.remove(key).await, Code::ObjectNotFound);
    assert_eq!(code(pool.get(&[key], &[]).await.results[0].code), Code::ObjectNotFound);
}

async fn puts_of_one_key_meet(pool: &Pool) {
    let (first, second, key) = (PutId::random(), PutId::random(), "met");
    let mut receipts = Vec::new();
    for put in [first, second] {
        let (code, places) = pool.start(Pool::item(put, key)).await;
        assert_eq!(code, Code::Ok, "neither is there yet");
        receipts.push(pool.write(&places[0], Seal::Yes).await.unwrap().receipt.unwrap());
    }
    assert_eq!(pool.end(first, key, &[], &receipts[1..]).await, Code::NotProven, "that of the other put");
    assert_eq!(pool.end(first, key, &[], &receipts[..1]).await, Code::Ok);
    assert_eq!(pool.end(second, key, &[], &receipts[1..]).await, Code::ObjectAlreadyExists);
    let upsert = PutId::random();
    let replaces = v1::PutStartItem { mode: v1::PutMode::Upsert as i32, ..Pool::item(upsert, key) };
    pool.put(replaces).await;
    assert_eq!(pool.get(&[key], &[]).await.results[0].version, bytes(upsert));

    let revoked = PutId::random();
    assert_eq!(pool.start(Pool::item(revoked, "revoked")).await.0, Code::Ok);
    assert_eq!(pool.revoke(revoked).await, Code::Ok);
    assert_eq!(pool.end(revoked, "revoked", &[], &[]).await, Code::PutGone);
    let failed = PutId::random();
    assert_eq!(pool.start(Pool::item(failed, "failed")).await.0, Code::Ok);
    assert_eq!(pool.end(failed, "failed", &[0], &[]).await, Code::TransferFail, "no replica is good");
    assert_eq!(code(pool.exist(&["failed"]).await.results[0].code), Code::ObjectNotFound);
}

async fn places_are_as_asked_for(pool: &Pool) {
    for store in pool.stores {
        let item =
            v1::PutStartItem { preferred_stores: vec![store.0], ..Pool::item(PutId::random(), "preferred") };
        let (code, places) = pool.start(item).await;
        assert_eq!((code, places[0].peer.store), (Code::Ok, store));
        let item =
            v1::PutStartItem { avoid_stores: vec![store.0], ..Pool::item(PutId::random(), "avoiding") };
        let (code, places) = pool.start(item).await;
        assert!(code == Code::Ok && places[0].peer.store != store, "{places:?}");
    }
    let avoid_stores = pool.stores.map(|store| store.0).to_vec();
    let item = v1::PutStartItem { avoid_stores, ..Pool::item(PutId::random(), "nowhere") };
    assert_eq!(pool.start(item).await.0, Code::NoAvailableHandle);
    let item = v1::PutStartItem { replicas: 2, ..Pool::item(PutId::random(), "twice") };
    let (code, places) = pool.start(item).await;
    assert_eq!((code, places.len()), (Code::Ok, 2));
    assert_ne!(places[0].peer.store, places[1].peer.store);
}

async fn calls_of_a_message_are_told_apart(pool: &Pool) {
    for key in ["a/1", "a/2", "b/1"] {
        pool.put(v1::PutStartItem {
            preferred_stores: vec![pool.stores[0].0],
            ..Pool::item(PutId::random(), key)
        })
        .await;
    }
    let together = pool.get(&["a/1", "a/2"], &[]).await;
    assert_eq!((together.grants.len(), together.apart), (1, true));
    let apart = pool.get(&["a/1", "a/2"], &[1, 1]).await;
    assert_eq!(apart.grants.len(), 2, "each call has a grant of its own");
    let grants: Vec<u32> = apart.results.iter().map(|result| result.replicas[0].grant).collect();
    assert_eq!(grants, [0, 1]);

    let keys = Bytes::from_static(b"a/1absent");
    let packed = v1::PackedKeys { keys, lengths: vec![3, 6], ..Default::default() };
    let request =
        v1::BatchExistRequest { caller: pool.leader.caller(), packed: Some(packed), ..Default::default() };
    let reply = pool.leader.master.clone().batch_exist(request).await.unwrap().into_inner();
    let packed = reply.packed.expect("packed, as it was asked");
    assert_eq!(packed.states[..], [v1::KeyState::Present as u8, v1::KeyState::Absent as u8]);
    assert_eq!(packed.sizes[0], VALUE.len() as u64);

    let list = v1::ListKeysRequest {
        caller: pool.leader.caller(),
        prefix: Bytes::from_static(b"a/"),
        ..Default::default()
    };
    let listed = pool.leader.master.clone().list_keys(list).await.unwrap().into_inner();
    let mut keys: Vec<_> = listed.keys.iter().map(|it| (it.key.clone(), it.size)).collect();
    keys.sort();
    let size = VALUE.len() as u64;
    assert_eq!(keys, [(Bytes::from_static(b"a/1"), size), (Bytes::from_static(b"a/2"), size)]);
    assert_eq!(listed.next, 0, "there are no more");
}

async fn check(mut pool: Pool) {
    refusals_say_why(&mut pool).await;
    a_put_goes_through_its_steps(&pool).await;
    puts_of_one_key_meet(&pool).await;
    places_are_as_asked_for(&pool).await;
    calls_of_a_message_are_told_apart(&pool).await;
}

#[tokio::test]
async fn fake_masters_and_stores_answer_clients_as_real_ones_do() {
    let fakes = client_fakes::Cluster::start(2);
    let pool = Pool {
        leader: Asked::at(&fakes.masters[0].says.address).await,
        follower: Asked::at(&fakes.masters[1].says.address).await,
        transport: Arc::new(FakeTransport(Arc::clone(&fakes.world))),
        stores: [STORE_A, STORE_B],
    };
    check(pool).await;

    let cluster = Cluster::builder().stores(2).segment("64mb").start().await;
    let leader = cluster.leader().await;
    let mounted = cluster.status(leader).await.unwrap().stores;
    let stores = [0, 1].map(|n: usize| StoreId::from_bytes(&mounted[n].store_id).unwrap());
    let pool = Pool {
        leader: Asked::at(cluster.master_address(leader)).await,
        follower: Asked::at(cluster.master_address(cluster.follower().await)).await,
        transport: Arc::new(TcpTransport::default()),
        stores,
    };
    check(pool).await;
}
