//! Calls to a master that the client library would not make.

use mc_client::Bytes;
use mc_net::{ChannelOptions, Network as _, TcpNetwork};
use mc_proto::v1::{self, master_client::MasterClient};
use mc_types::{ClientId, Grant, GrantKey, StoreId};
use tonic::transport::Channel;

/// A connection to one master, past every redirection.
pub fn master_at(address: &str) -> MasterClient<Channel> {
    MasterClient::new(TcpNetwork.channel(address, ChannelOptions::default()).expect("an address"))
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
        let Grant { cluster, store, epoch, ranges, .. } = Grant::open(&granted.grant, &key).ok()?;
        let range = ranges.get(usize::try_from(replica.range).ok()?)?;
        Some(key.receipts().receipt(cluster, store, epoch, range).to_bytes())
    };
    replicas.iter().flat_map(|replica| receipt(replica).unwrap_or_default()).collect()
}
