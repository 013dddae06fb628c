use std::sync::Arc;
use std::time::Duration;

use mc_log::{MasterNode, TypeConfig};
use mc_net::Network;
use mc_types::NodeId;
use openraft::RaftNetworkFactory;

use super::connections::Connections;
use super::peer_client::{AppendPath, PeerClient};
use crate::lease::acks::Acks;
use crate::lease::leader_contact::LeaderContact;
use crate::members::address_book::AddressBook;
use crate::members::removal::RemovalNotice;
use crate::network::silent_peers::SilentPeers;
use crate::network::wire::envelope::LocalNode;

/// Makes openraft's clients of the other masters. openraft asks for one per replication stream and per election, and
/// keeps a stream's client when a member's address changes. So clients ask for the connection at each call.
#[derive(Debug)]
pub(crate) struct PeerClients {
    local_node: LocalNode,
    connections: Arc<Connections>,
}

impl PeerClients {
    pub(crate) fn new(
        local_node: LocalNode,
        network: Arc<dyn Network>,
        addresses: AddressBook,
        acks: Arc<Acks>,
        removal: Arc<RemovalNotice>,
        leader_contact: LeaderContact,
    ) -> Self {
        let silent_peers = Arc::new(SilentPeers::new(Duration::from_millis(local_node.election_max_ms)));
        Self {
            local_node,
            connections: Arc::new(Connections::new(
                network,
                addresses,
                acks,
                silent_peers,
                removal,
                leader_contact,
            )),
        }
    }

    pub(crate) fn silent_peers(&self) -> Arc<SilentPeers> {
        self.connections.silent_peers.clone()
    }

    fn peer(&self, target: NodeId, node: &MasterNode, append_path: AppendPath) -> PeerClient {
        PeerClient::new(self.local_node, target, node.raft.clone(), append_path, self.connections.clone())
    }
}

impl RaftNetworkFactory<TypeConfig> for PeerClients {
    type Network = PeerClient;

    async fn new_client(&mut self, target: NodeId, node: &MasterNode) -> PeerClient {
        self.peer(target, node, AppendPath::Stream)
    }

    async fn new_heartbeat_client(&mut self, target: NodeId, node: &MasterNode) -> PeerClient {
        self.peer(target, node, AppendPath::Calls)
    }
}
