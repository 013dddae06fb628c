use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use mc_log::TypeConfig;
use mc_net::{ChannelOptions, Network};
use mc_proto::v1::raft_client::RaftClient;
use mc_types::NodeId;
use openraft::errors::Unreachable;
use parking_lot::Mutex;
use tonic::transport::Channel;

use super::route::Whom;
use crate::lease::acks::Acks;
use crate::lease::leader_contact::Heard;
use crate::members::address_book::AddressBook;
use crate::members::removal::Removal;
use crate::network::silent_peers::Hush;

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
    pub(crate) fn new(
        network: Arc<dyn Network>,
        addresses: AddressBook,
        acks: Arc<Acks>,
        hush: Arc<Hush>,
        removal: Arc<Removal>,
        heard: Heard,
    ) -> Self {
        Self { network, addresses, acks, hush, removal, heard, open: Mutex::default() }
    }

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
