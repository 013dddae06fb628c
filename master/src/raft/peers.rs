use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use mc_base::NodeId;
use mc_base::net::{ChannelOptions, Network};
use mc_proto::v1::raft_client::RaftClient;
use openraft::RaftNetworkFactory;
use tonic::transport::Channel;

use super::envelope::Identity;
use super::peer::{Lane, Peer};
use super::{MasterNode, TypeConfig};

/// Makes openraft's clients of the other masters. openraft asks for one per replication stream and per election, so
/// the connections are kept here: three per peer, each opened by its first call.
#[derive(Debug)]
pub(crate) struct Peers {
    identity: Identity,
    network: Arc<dyn Network>,
    links: HashMap<NodeId, (String, Links)>,
}

/// Connections to one peer. Heartbeats and votes have one of their own, so that no backlog of entries or snapshot
/// delays the proof that a leader lives; appends and snapshots have theirs, so that they do not share a window.
#[derive(Clone)]
pub(crate) struct Links {
    pub(crate) appends: RaftClient<Channel>,
    pub(crate) control: RaftClient<Channel>,
    pub(crate) snapshots: RaftClient<Channel>,
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Links")
    }
}

impl Peers {
    pub(crate) fn new(identity: Identity, network: Arc<dyn Network>) -> Self {
        Self { identity, network, links: HashMap::new() }
    }

    fn peer(&mut self, target: NodeId, node: &MasterNode, lane: Lane) -> Peer {
        let links = match self.links.get(&target) {
            Some((address, links)) if *address == node.raft => Ok(links.clone()),
            // New, or moved to another address.
            _ => self.connect(&node.raft).inspect(|links| {
                self.links.insert(target, (node.raft.clone(), links.clone()));
            }),
        };
        let links = links.map_err(|err| format!("{} is not an address: {err}", node.raft));
        Peer::new(self.identity, target, node.raft.clone(), lane, links)
    }

    fn connect(&self, address: &str) -> Result<Links, tonic::transport::Error> {
        let client = || Ok(RaftClient::new(self.network.channel(address, ChannelOptions::default())?));
        Ok(Links { appends: client()?, control: client()?, snapshots: client()? })
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
