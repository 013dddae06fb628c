use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mc_log::{MasterNode, TypeConfig};
use mc_net::{ChannelOptions, Network};
use mc_proto::v1::raft_client::RaftClient;
use mc_types::NodeId;
use openraft::RaftNetworkFactory;
use openraft::errors::Unreachable;
use parking_lot::Mutex;
use tonic::transport::Channel;

use super::peer_client::{Lane, Peer, Whom};
use crate::lease::acks::Acks;
use crate::members::address_book::AddressBook;
use crate::members::removal::Removal;
use crate::network::silent_peers::Hush;
use crate::network::wire::envelope::Identity;
use crate::node::leadership::Heard;

/// Makes openraft's clients of the other masters. openraft asks for one per replication stream and per election, and
/// keeps a stream's client when a member's address changes. So clients ask for the connection at each call.
#[derive(Debug)]
pub(crate) struct Peers {
    identity: Identity,
    lines: Arc<Lines>,
}

/// Connections to all peers: three to each, each opened by its first call.
pub(crate) struct Lines {
    network: Arc<dyn Network>,
    addresses: AddressBook,
    pub(crate) acks: Arc<Acks>,
    pub(crate) hush: Arc<Hush>,
    pub(crate) removal: Arc<Removal>,
    pub(crate) heard: Heard,
    open: Mutex<HashMap<NodeId, (String, Links)>>,
}

/// Connections to one peer. Heartbeats and votes have one of their own, so that no backlog of entries or snapshots
/// delays the proof that a leader lives. Appends and snapshots have one each, so that they do not share a
/// flow-control window.
#[derive(Clone)]
pub(crate) struct Links {
    pub(crate) appends: RaftClient<Channel>,
    pub(crate) control: RaftClient<Channel>,
    pub(crate) snapshots: RaftClient<Channel>,
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lines")
    }
}

impl Lines {
    /// Returns the connections to `target` at its current address. `recorded` is the address that openraft knows.
    pub(crate) fn to(
        &self,
        from: NodeId,
        target: NodeId,
        recorded: &str,
    ) -> Result<(Whom, Links), Unreachable<TypeConfig>> {
        let address = self.addresses.get(target).map_or_else(|| recorded.to_owned(), |node| node.raft);
        let mut open = self.open.lock();
        let links = match open.get(&target) {
            Some((at, links)) if *at == address => links.clone(),
            _ => {
                let links = self.connect(&address).map_err(|err| {
                    Unreachable::from_string(format!("node {target}: {address} is not an address: {err}"))
                })?;
                open.insert(target, (address.clone(), links.clone()));
                links
            }
        };
        Ok((Whom { from, target, address }, links))
    }

    fn connect(&self, address: &str) -> Result<Links, tonic::transport::Error> {
        let client = || Ok(RaftClient::new(self.network.channel(address, ChannelOptions::default())?));
        Ok(Links { appends: client()?, control: client()?, snapshots: client()? })
    }
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
        let open = Mutex::default();
        Self { identity, lines: Arc::new(Lines { network, addresses, acks, hush, removal, heard, open }) }
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
