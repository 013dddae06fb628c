//! Calls to a master that the client library would not make.

use std::time::Duration;

use mc_client::{Bytes, Client};
use mc_net::{ChannelOptions, Network, TcpNetwork};
use mc_proto::v1::{self, master_client::MasterClient};
use mc_transfer::{
    Checksum, Peer, PeerEndpoint, ReadOp, Seal, TcpTransport, TransferError, Transport, WriteOp, Written,
};
use mc_types::{ClientId, ClusterId, Grant, GrantKey, ProofKey, PutId, SealedGrant, SegmentEpoch, StoreId};
use tokio::time::Instant;
use tonic::transport::Channel;

use crate::{until, value};

/// Bytes of each object here.
pub const SIZE: usize = 3_000_000;

/// A connection to one master, past every redirection.
pub fn master_at(address: &str) -> MasterClient<Channel> {
    master_over(&TcpNetwork, address)
}

/// [`master_at`] over a network with certificates.
pub fn master_over(network: &dyn Network, address: &str) -> MasterClient<Channel> {
    MasterClient::new(network.channel(address, ChannelOptions::default()).expect("an address"))
}

/// A caller with an id of its own that knows no cluster.
pub fn caller() -> v1::Caller {
    v1::Caller {
        client_id: ClientId::random().to_bytes().to_vec().into(),
        version_min: *mc_proto::VERSIONS.start(),
        version_max: *mc_proto::VERSIONS.end(),
        ..v1::Caller::default()
    }
}

/// A caller that knows the master's cluster and what it is there.
pub async fn greeted(master: &mut MasterClient<Channel>) -> v1::Caller {
    let caller = caller();
    let v1::Caller { version_min, version_max, .. } = caller;
    let hello = v1::HelloRequest { version_min, version_max, software: "test".into() };
    let hello = master.hello(hello).await.unwrap().into_inner();
    v1::Caller { cluster_id: hello.cluster_id, node_id: hello.node_id, ..caller }
}

/// Returns the receipts that stores would give for the replicas of a put, whether they were written or not. `key` returns the
/// key of a store's grants; a replica of a store whose key is not known gets no receipt.
pub fn receipts(
    replicas: &[v1::Replica],
    grants: &[v1::StoreGrant],
    key: impl Fn(StoreId) -> Option<GrantKey>,
) -> Bytes {
    let receipt = |replica: &v1::Replica| {
        let key = key(StoreId::from_bytes(&replica.store_id)?)?;
        let granted = grants.get(usize::try_from(replica.grant).ok()?)?;
        let (Grant { cluster, store, epoch, ranges, .. }, _) = Grant::open(&granted.grant, &key).ok()?;
        let range = ranges.get(usize::try_from(replica.range).ok()?)?;
        Some(key.receipts().receipt(cluster, store, epoch, range).to_bytes())
    };
    replicas.iter().flat_map(|replica| receipt(replica).unwrap_or_default()).collect()
}

fn raw(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

/// The receipt of a range that is written and sealed.
pub fn receipt(written: Written) -> Bytes {
    raw(&written.receipt.expect("a sealed range").to_bytes())
}

/// A client whose calls are made by hand, so that it can be late with each.
pub struct ByHand {
    master: v1::master_client::MasterClient<Channel>,
    caller: v1::Caller,
}

/// An object that it may read, or a put that it has started.
pub struct Granted {
    /// The id of the put.
    pub put_id: Bytes,
    place: v1::Replica,
    peer: Peer,
    grant: SealedGrant,
}

impl ByHand {
    /// Connects to a master.
    pub async fn at(address: &str) -> Self {
        Self::over(&TcpNetwork, address).await
    }

    /// Connects to a master over a network with certificates.
    pub async fn over(network: &dyn Network, address: &str) -> Self {
        let mut master = master_over(network, address);
        let caller = greeted(&mut master).await;
        Self { master, caller }
    }

    /// Starts a put of [`SIZE`] bytes.
    pub async fn start(&mut self, key: &str, deadline_ms: u64) -> Granted {
        self.start_as(raw(&PutId::random().to_bytes()), key, deadline_ms).await
    }

    /// The same, under an id of the caller's choice.
    pub async fn start_as(&mut self, put_id: Bytes, key: &str, deadline_ms: u64) -> Granted {
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

    /// Looks an object up.
    pub async fn find(&mut self, key: &str) -> Granted {
        let (caller, keys) = (Some(self.caller.clone()), vec![raw(key.as_bytes())]);
        let get = v1::BatchGetRequest { caller, keys, ..Default::default() };
        let found = self.master.batch_get(get).await.unwrap().into_inner();
        self.granted(found.results[0].version.clone(), &found.results[0].replicas, &found.grants)
    }

    /// Returns what a reply grants for its first replica.
    pub fn granted(&self, put_id: Bytes, replicas: &[v1::Replica], grants: &[v1::StoreGrant]) -> Granted {
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
        let proof_key = ProofKey::from_bytes(&granted.proof_key);
        let grant = SealedGrant { bytes: granted.grant.clone(), proof_key };
        Granted { put_id, place, peer, grant }
    }

    /// Gives a put up.
    pub async fn revoke(&mut self, put: &Granted) {
        let (caller, put_ids) = (Some(self.caller.clone()), vec![put.put_id.clone()]);
        let revoke = v1::BatchPutRevokeRequest { caller, put_ids, ..Default::default() };
        self.master.batch_put_revoke(revoke).await.unwrap();
    }

    /// Ends a put as if its bytes were in place; returns the answer's code.
    pub async fn end(&mut self, put: &Granted, key: &str, written: Option<Written>) -> i32 {
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
    /// Returns what somebody has who has seen all of it but the key of its proofs.
    pub fn stolen(&self) -> Self {
        let grant = self.grant.bytes.clone().into();
        Self { put_id: self.put_id.clone(), place: self.place.clone(), peer: self.peer.clone(), grant }
    }

    /// Writes the first bytes of it by TCP.
    pub async fn write(&self, bytes: &[u8], seal: Seal) -> Result<Written, TransferError> {
        self.write_by(&TcpTransport::default(), bytes, seal).await
    }

    /// Writes the first bytes of it.
    pub async fn write_by(
        &self,
        transport: &dyn Transport,
        bytes: &[u8],
        seal: Seal,
    ) -> Result<Written, TransferError> {
        let ops = [WriteOp { range: self.place.range, offset: 0, from: vec![bytes.into()] }];
        let deadline = Instant::now() + Duration::from_secs(10);
        transport.write(&self.peer, &self.grant, &ops, seal, deadline).await.remove(0)
    }

    /// Reads all of it by TCP.
    pub async fn read(&self) -> Result<Checksum, TransferError> {
        self.read_by(&TcpTransport::default()).await
    }

    /// Reads all of it.
    pub async fn read_by(&self, transport: &dyn Transport) -> Result<Checksum, TransferError> {
        let mut bytes = vec![0; SIZE];
        let mut ops = [ReadOp { range: self.place.range, offset: 0, into: vec![(&mut bytes[..]).into()] }];
        let deadline = Instant::now() + Duration::from_secs(10);
        transport.read(&self.peer, &self.grant, &mut ops, deadline).await.remove(0)
    }

    /// Waits until another object lies where its bytes were, and returns the key of that.
    pub async fn reused(&self, client: &Client) -> String {
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
