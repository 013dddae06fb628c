//! Calls to a master that the client library would not make.

use mc_net::{ChannelOptions, Network as _, TcpNetwork};
use mc_proto::v1::{self, master_client::MasterClient};
use mc_types::ClientId;
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
