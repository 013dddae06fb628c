use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use mc_log::TypeConfig;
use mc_net::{ChannelOptions, Network, Tls};
use mc_proto::v1::raft_client::RaftClient;
use mc_types::{NodeId, TlsLevel};
use openraft::errors::Unreachable;
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::transport::Channel;

use super::route::Route;
use crate::lease::acks::Acks;
use crate::lease::leader_contact::LeaderContact;
use crate::members::address_book::AddressBook;
use crate::members::removal::RemovalNotice;
use crate::network::silent_peers::SilentPeers;

/// Connections to all peers: three to each, each opened by its first call.
pub(crate) struct Connections {
    network: Arc<dyn Network>,
    addresses: AddressBook,
    pub(crate) acks: Arc<Acks>,
    pub(crate) silent_peers: Arc<SilentPeers>,
    pub(crate) removal: Arc<RemovalNotice>,
    pub(crate) leader_contact: LeaderContact,
    open: Mutex<HashMap<NodeId, Open>>,
}

/// Connections to one peer, and its address.
struct Open {
    address: String,
    channels: PeerChannels,
}

/// How connections were made: those that were made in the clear at a lower level of TLS would stay so, and old ones were judged long
/// ago.
#[derive(Clone)]
pub(crate) struct Made {
    tls: Option<Arc<Tls>>,
    level: Option<TlsLevel>,
    /// `None` without certificates.
    until: Option<Instant>,
}

impl Made {
    fn now(tls: Option<&Arc<Tls>>) -> Self {
        let until = tls.and_then(|tls| Instant::now().checked_add(tls.random_connection_age()));
        Self { level: tls.map(|tls| tls.level()), until, tls: tls.cloned() }
    }

    /// Whether others are to take their place.
    pub(crate) fn is_outdated(&self) -> bool {
        self.tls.as_ref().map(|tls| tls.level()) != self.level
            || self.until.is_some_and(|until| until <= Instant::now())
    }
}

/// Connections to one peer. Heartbeats and votes have one of their own, so that no backlog of entries or snapshots
/// delays the proof that a leader lives. Appends and snapshots have one each, so that they do not share a
/// flow-control window.
#[derive(Clone)]
pub(crate) struct PeerChannels {
    pub(crate) appends: RaftClient<Channel>,
    pub(crate) control: RaftClient<Channel>,
    pub(crate) snapshots: RaftClient<Channel>,
    pub(crate) made: Made,
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connections")
    }
}

impl Connections {
    pub(crate) fn new(
        network: Arc<dyn Network>,
        addresses: AddressBook,
        acks: Arc<Acks>,
        silent_peers: Arc<SilentPeers>,
        removal: Arc<RemovalNotice>,
        leader_contact: LeaderContact,
    ) -> Self {
        Self { network, addresses, acks, silent_peers, removal, leader_contact, open: Mutex::default() }
    }

    /// Returns the connections to `target` at its current address, and replaces outdated ones. `recorded` is the address that openraft
    /// knows.
    pub(crate) fn to(
        &self,
        from: NodeId,
        target: NodeId,
        recorded: &str,
    ) -> Result<(Route, PeerChannels), Unreachable<TypeConfig>> {
        let address = self.addresses.get(target).map_or_else(|| recorded.to_owned(), |node| node.raft);
        let mut open = self.open.lock();
        let channels = match open.get(&target) {
            Some(open) if open.address == address && !open.channels.made.is_outdated() => {
                open.channels.clone()
            }
            _ => {
                let channels = self.connect(&address).map_err(|err| {
                    Unreachable::from_string(format!("node {target}: {address} is not an address: {err}"))
                })?;
                open.insert(target, Open { address: address.clone(), channels: channels.clone() });
                channels
            }
        };
        Ok((Route { from, target, address }, channels))
    }

    fn connect(&self, address: &str) -> Result<PeerChannels, tonic::transport::Error> {
        let client = || Ok(RaftClient::new(self.network.channel(address, ChannelOptions::default())?));
        let made = Made::now(self.network.tls());
        Ok(PeerChannels { appends: client()?, control: client()?, snapshots: client()?, made })
    }
}
