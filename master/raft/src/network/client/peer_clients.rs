use std::sync::Arc;
use std::time::Duration;

use mc_log::{MasterNode, TypeConfig};
use mc_net::Network;
use mc_types::NodeId;
use openraft::RaftNetworkFactory;

use super::connections::Lines;
use super::peer_client::{Lane, Peer};
use crate::lease::acks::Acks;
use crate::lease::leader_contact::Heard;
use crate::members::address_book::AddressBook;
use crate::members::removal::Removal;
use crate::network::silent_peers::Hush;
use crate::network::wire::envelope::Identity;

/// Makes openraft's clients of the other masters. openraft asks for one per replication stream and per election, and
/// keeps a stream's client when a member's address changes. So clients ask for the connection at each call.
#[derive(Debug)]
pub(crate) struct Peers {
    identity: Identity,
    lines: Arc<Lines>,
}

impl Peers {
    pub(crate) fn new(
        identity: Identity,
        network: Arc<dyn Network>,
        addresses: AddressBook,
        acks: Arc<Acks>,
        removal: Arc<Removal>,
        heard: Heard,
    ) -> Self {
        let hush = Arc::new(Hush::new(Duration::from_millis(identity.election_max_ms)));
        Self { identity, lines: Arc::new(Lines::new(network, addresses, acks, hush, removal, heard)) }
    }

    pub(crate) fn hush(&self) -> Arc<Hush> {
        self.lines.hush.clone()
    }

    fn peer(&self, target: NodeId, node: &MasterNode, lane: Lane) -> Peer {
        Peer::new(self.identity, target, node.raft.clone(), lane, self.lines.clone())
    }
}

impl RaftNetworkFactory<TypeConfig> for Peers {
    type Network = Peer;

    async fn new_client(&mut self, target: NodeId, node: &MasterNode) -> Peer {
        self.peer(target, node, Lane::Appends)
    }

    async fn new_heartbeat_client(&mut self, target: NodeId, node: &MasterNode) -> Peer {
        self.peer(target, node, Lane::Heartbeats)
    }
}
