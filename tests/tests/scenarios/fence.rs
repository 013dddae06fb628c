use std::time::Duration;

use bytes::Bytes;
use mc_client::{Client, Put, ShmAccess};
use mc_proto::v1;
use mc_tests::{Cluster, Faults, by_hand, until, value};
use mc_transfer::{
    Checksum, Peer, PeerEndpoint, ReadOp, Seal, ShmTransport, TcpTransport, TransferError, Transport,
    WriteOp, Written,
};
use mc_types::{ClusterId, Code, PutId, SealedGrant, SegmentEpoch, StoreId};
use tokio::time::Instant;
use tonic::transport::Channel;

const SIZE: usize = 3_000_000;

fn raw(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

/// The receipt of a range that is written and sealed.
pub(crate) fn receipt(written: Written) -> Bytes {
    raw(&written.receipt.expect("a sealed range").to_bytes())
}

/// A client whose calls are made by hand, so that it can be late with each.
pub(crate) struct ByHand {
    master: v1::master_client::MasterClient<Channel>,
    caller: v1::Caller,
}

/// An object that it may read, or a put that it has started.
pub(crate) struct Granted {
    put_id: Bytes,
    place: v1::Replica,
    peer: Peer,
    grant: SealedGrant,
}

impl ByHand {
    pub(crate) async fn new(cluster: &Cluster) -> Self {
        let mut master = by_hand::master_at(cluster.master_address(0));
        let caller = by_hand::greeted(&mut master).await;
        Self { master, caller }
    }

    async fn start(&mut self, key: &str, deadline_ms: u64) -> Granted {
        self.start_as(raw(&PutId::random().to_bytes()), key, deadline_ms).await
    }

    async fn start_as(&mut self, put_id: Bytes, key: &str, deadline_ms: u64) -> Granted {
        let item = v1::PutStartItem {
            put_id: put_id.clone(),
            key: raw(key.as_bytes()),
            size: SIZE as u64,
            deadline_ms,
            ..v1::PutStartItem::default()
        };
        let start = v1::BatchPutStartRequest {
            caller: Some(self.caller.clone()),
            items: vec![item],
            ..Default::default()
        };
        let started = self.master.batch_put_start(start).await.unwrap().into_inner();
        self.granted(put_id, &started.results[0].replicas, &started.grants)
    }

    async fn find(&mut self, key: &str) -> Granted {
        let (caller, keys) = (Some(self.caller.clone()), vec![raw(key.as_bytes())]);
        let get = v1::BatchGetRequest { caller, keys, ..Default::default() };
        let found = self.master.batch_get(get).await.unwrap().into_inner();
        self.granted(found.results[0].version.clone(), &found.results[0].replicas, &found.grants)
    }

    pub(crate) fn granted(
        &self,
        put_id: Bytes,
        replicas: &[v1::Replica],
        grants: &[v1::StoreGrant],
    ) -> Granted {
        let (place, granted) = (replicas[0].clone(), &grants[0]);
        let endpoint = |it: &v1::Endpoint| PeerEndpoint {
            transport: it.transport.clone(),
            address: it.address.clone(),
            attributes: it.attributes.clone().into_iter().collect(),
        };
        let peer = Peer {
            cluster: ClusterId::from_bytes(&self.caller.cluster_id).unwrap(),
            store: StoreId::from_bytes(&granted.store_id).unwrap(),
            epoch: SegmentEpoch::from_bytes(&granted.epoch).unwrap(),
            endpoints: granted.endpoints.iter().map(endpoint).collect(),
        };
        Granted { put_id, place, peer, grant: granted.grant.clone() }
    }

    async fn revoke(&mut self, put: &Granted) {
        let (caller, put_ids) = (Some(self.caller.clone()), vec![put.put_id.clone()]);
        let revoke = v1::BatchPutRevokeRequest { caller, put_ids, ..Default::default() };
        self.master.batch_put_revoke(revoke).await.unwrap();
    }

    async fn end(&mut self, put: &Granted, key: &str, written: Option<Written>) -> i32 {
        let (put_id, key) = (put.put_id.clone(), raw(key.as_bytes()));
        let checksum = written.map_or(0, |written| written.checksum.0);
        let receipts = written.map(receipt).unwrap_or_default();
        let end = v1::PutEndItem { put_id, key, checksum, receipts, ..v1::PutEndItem::default() };
        let end = v1::BatchPutEndRequest {
            caller: Some(self.caller.clone()),
            items: vec![end],
            ..Default::default()
        };
        self.master.batch_put_end(end).await.unwrap().into_inner().results[0].code
    }
}

impl Granted {
    pub(crate) async fn write(&self, bytes: &[u8], seal: Seal) -> Result<Written, TransferError> {
        self.write_by(&TcpTransport::default(), bytes, seal).await
    }

    /// Writes the first bytes of it.
    async fn write_by(
        &self,
        transport: &dyn Transport,
        bytes: &[u8],
        seal: Seal,
    ) -> Result<Written, TransferError> {
        let ops = [WriteOp { range: self.place.range, offset: 0, from: vec![bytes.into()] }];
        let deadline = Instant::now() + Duration::from_secs(10);
        transport.write(&self.peer, &self.grant, &ops, seal, deadline).await.remove(0)
    }

    async fn read(&self) -> Result<Checksum, TransferError> {
        let mut bytes = vec![0; SIZE];
        let mut ops = [ReadOp { range: self.place.range, offset: 0, into: vec![(&mut bytes[..]).into()] }];
        let deadline = Instant::now() + Duration::from_secs(10);
        TcpTransport::default().read(&self.peer, &self.grant, &mut ops, deadline).await.remove(0)
    }

    /// Waits until another object lies where its bytes were, and returns the key of that.
    async fn reused(&self, client: &Client) -> String {
        let mut puts = 0;
        let mut owner = String::new();
        until("the slot is reused", async || {
            puts += 1;
            owner = format!("owner-{puts}");
            // The pool may be full of the tries before.
            let stored = client.put(&owner, &value(&owner, 1, SIZE)).await.is_ok();
            let now = client.admin().lookup(&owner).await.unwrap().filter(|_| stored);
            let reused = now.is_some_and(|now| now.replicas[0].offset == self.place.offset);
            if stored && !reused {
                client.remove(&owner, true).await.unwrap();
            }
            reused
        })
        .await;
        owner
    }
}

#[tokio::test]
async fn a_writer_that_wakes_up_after_its_slot_was_reused_does_no_damage() {
    let cluster = Cluster::builder().masters(1).segment("64mb").start().await;
    let mut faults = Faults::new();
    let fault = faults.plan("a write under an ended put, to a slot that another object has now");

    // A client that starts a put, and is stopped before it writes.
    let mut sleeper = ByHand::new(&cluster).await;
    let put = sleeper.start("sleeper", 60_000).await;

    // The put is given up while its grant lives, and its slot goes to somebody else.
    sleeper.revoke(&put).await;
    let client = cluster.client().await;
    let owner = put.reused(&client).await;

    // It wakes up, within the life of its grant, and writes.
    let written = put.write(&vec![0xee; SIZE], Seal::Yes).await;
    assert!(
        matches!(&written, Err(TransferError::Refused { reason, .. }) if reason.contains("superseded")),
        "{written:?}"
    );
    fault.happened();
    assert!(client.get(&owner).await.unwrap().as_deref() == Some(&value(&owner, 1, SIZE)[..]), "damaged");
    let ended = sleeper.end(&put, "sleeper", None).await;
    assert_eq!(ended, Code::PutGone as i32, "it is told that its put is gone");
    assert_eq!(client.get("sleeper").await.unwrap(), None);
}

#[tokio::test]
async fn a_put_that_has_ended_cannot_change_its_value_any_more() {
    let cluster = Cluster::builder().masters(1).segment("64mb").start().await;
    let mut writer = ByHand::new(&cluster).await;
    let put = writer.start("key", 60_000).await;
    let written = put.write(&value("key", 1, SIZE), Seal::Yes).await.unwrap();
    assert_eq!(writer.end(&put, "key", Some(written)).await, Code::Ok as i32);
    let client = cluster.client().await;
    let late = put.write(&value("key", 2, SIZE), Seal::No).await;
    assert!(
        matches!(&late, Err(TransferError::Refused { reason, .. }) if reason.contains("last byte")),
        "{late:?}"
    );
    assert!(client.get("key").await.unwrap().as_deref() == Some(&value("key", 1, SIZE)[..]), "damaged");
}

/// The bytes of a removed object are kept for its readers, unless the pool is full.
#[tokio::test]
async fn a_reader_that_wakes_up_after_its_slot_was_reused_gets_no_bytes() {
    // A grant that outlasts the test on a busy machine.
    let lease = ["--read-lease", "60s"];
    let cluster = Cluster::builder().masters(1).segment("64mb").master_args(lease).start().await;
    let client = cluster.client().await;
    assert_eq!(client.put("key", &value("key", 1, SIZE)).await.unwrap(), Put::Stored);
    let sleeper = ByHand::new(&cluster).await.find("key").await;
    sleeper.read().await.expect("it may read");
    assert!(client.remove("key", true).await.unwrap());
    sleeper.reused(&client).await;

    let late = sleeper.read().await;
    assert!(
        matches!(&late, Err(TransferError::Refused { reason, .. }) if reason.contains("superseded")),
        "{late:?}"
    );
}

/// The places of puts still hold what was removed before, here another tenant's.
async fn unwritten_puts_show_nothing(transport: &dyn Transport) {
    let cluster = Cluster::builder().masters(1).segment("64mb").start().await;
    let victim = cluster.client_builder().tenant("victim").connect().await.unwrap();
    for at in 0..10 {
        let key = format!("secret-{at}");
        victim.put(&key, &value(&key, 1, SIZE)).await.unwrap();
        victim.remove(&key, true).await.unwrap();
    }
    let mut thief = ByHand::new(&cluster).await;
    let client = cluster.client().await;
    let own = value("stolen", 1, SIZE);
    let not_proven = Code::NotProven as i32;

    let put = thief.start("stolen", 60_000).await;
    assert_eq!(thief.end(&put, "stolen", None).await, not_proven, "nothing was written");
    let half = put.write_by(transport, &own[..SIZE / 2], Seal::Yes).await;
    assert!(matches!(half, Err(TransferError::Refused { .. })), "{half:?}");
    assert_eq!(thief.end(&put, "stolen", None).await, not_proven, "half of it was written");
    let other = thief.start("other", 60_000).await;
    let written = other.write_by(transport, &own, Seal::Yes).await.unwrap();
    assert_eq!(thief.end(&put, "stolen", Some(written)).await, not_proven, "another put was written");
    assert_eq!(client.get("stolen").await.unwrap(), None);

    // The place of a put that was given up and starts again is another one to the store.
    thief.revoke(&other).await;
    let again = thief.start_as(other.put_id.clone(), "other", 60_000).await;
    assert_eq!(thief.end(&again, "other", Some(written)).await, not_proven, "that was before");

    let written = put.write_by(transport, &own, Seal::Yes).await.unwrap();
    assert_eq!(thief.end(&put, "stolen", Some(written)).await, Code::Ok as i32);
    assert!(client.get("stolen").await.unwrap().as_deref() == Some(&own[..]), "its own bytes");
}

#[tokio::test]
async fn over_tcp_a_put_that_was_not_written_shows_nothing() {
    unwritten_puts_show_nothing(&TcpTransport::default()).await;
}

#[tokio::test]
async fn through_shared_memory_a_put_that_was_not_written_shows_nothing() {
    let transport = ShmTransport::new(TcpTransport::default(), ShmAccess::SameUid, Box::new(|_, _| {}));
    unwritten_puts_show_nothing(&transport).await;
}
