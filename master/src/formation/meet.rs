//! The calls `Meet` and `Found` on the wire.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mc_log::MasterNode;
use mc_net::{ChannelOptions, Network};
use mc_proto::{
    reason_of,
    v1::{Addresses, FoundRequest, Founder, MeetReply, MeetRequest, raft_client::RaftClient},
};
use mc_types::{ClusterId, HostPort, NodeId, TlsLevel};
use parking_lot::Mutex;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::accept::Founding;
use super::{Instance, Invitation, PeerState};

const CONNECT_TIMEOUT: Duration = Duration::from_millis(300);
const CALL_TIMEOUT: Duration = Duration::from_millis(500);

/// Channels to the listed peers, made at the first call.
#[derive(Debug)]
pub(super) struct Dialer {
    network: Arc<dyn Network>,
    /// By address, and by the level of TLS at which they were made.
    channels: Mutex<HashMap<(HostPort, Option<TlsLevel>), Channel>>,
}

impl Dialer {
    pub(super) fn new(network: Arc<dyn Network>) -> Self {
        Self { network, channels: Mutex::default() }
    }

    fn client(&self, address: &HostPort) -> Result<RaftClient<Channel>, String> {
        let at = (address.clone(), self.network.tls().map(|tls| tls.level()));
        let mut channels = self.channels.lock();
        channels.retain(|(_, level), _| *level == at.1);
        if let Some(channel) = channels.get(&at) {
            return Ok(RaftClient::new(channel.clone()));
        }
        let options = ChannelOptions {
            connect_timeout: CONNECT_TIMEOUT,
            call_timeout: Some(CALL_TIMEOUT),
            ..ChannelOptions::default()
        };
        let channel = self.network.channel(&address.to_string(), options).map_err(|err| err.to_string())?;
        channels.insert(at, channel.clone());
        Ok(RaftClient::new(channel))
    }

    pub(super) async fn meet(&self, address: &HostPort, request: MeetRequest) -> Result<PeerState, String> {
        let mut client = self.client(address)?;
        // Connecting and calling have deadlines of their own; this one bounds their sum, whatever the channel does.
        let call = tokio::time::timeout(CONNECT_TIMEOUT + CALL_TIMEOUT, client.meet(request)).await;
        let reply = call.map_err(|_| "no answer in time".to_owned())?.map_err(|status| why(&status))?;
        answer(reply.into_inner()).ok_or_else(|| "its answer is malformed".to_owned())
    }

    /// Asks a peer to take part in a founding. `Err` says why it did not, or that it is unknown whether it did.
    pub(super) async fn found(
        &self,
        invitation: &Invitation,
        cluster: ClusterId,
        from: NodeId,
        members: &BTreeMap<NodeId, MasterNode>,
    ) -> Result<(), String> {
        let mut client = self.client(&invitation.address)?;
        let request = FoundRequest {
            cluster_id: bytes(&cluster.to_bytes()),
            from: bytes(&from.to_bytes()),
            to: bytes(&invitation.node.to_bytes()),
            members: members
                .iter()
                .map(|(node, addresses)| Founder {
                    node_id: bytes(&node.to_bytes()),
                    addresses: Some(to_wire(addresses)),
                })
                .collect(),
            replaces: invitation.replaces.map_or_else(Bytes::new, |cluster| bytes(&cluster.to_bytes())),
        };
        let call = tokio::time::timeout(CONNECT_TIMEOUT + CALL_TIMEOUT, client.found(request)).await;
        let reply = call.map_err(|_| "no answer in time".to_owned())?.map_err(|status| why(&status))?;
        let reply = reply.into_inner();
        if reply.accepted { Ok(()) } else { Err(reply.reason) }
    }
}

fn why(status: &Status) -> String {
    match status.code() {
        Code::Cancelled | Code::DeadlineExceeded => "no answer in time".into(),
        _ => reason_of(status),
    }
}

pub(super) fn bytes(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

pub(super) fn to_wire(node: &MasterNode) -> Addresses {
    Addresses { raft: node.raft.clone(), client: node.client.clone(), http: node.http.clone() }
}

pub(super) fn from_wire(addresses: &Addresses) -> MasterNode {
    let Addresses { raft, client, http } = addresses.clone();
    MasterNode { raft, client, http }
}

/// Parses an id that may be absent: `Some(None)` for empty bytes, `None` for bytes that are no id.
fn optional_cluster(bytes: &[u8]) -> Option<Option<ClusterId>> {
    if bytes.is_empty() { Some(None) } else { ClusterId::from_bytes(bytes).map(Some) }
}

pub(super) fn answer(reply: MeetReply) -> Option<PeerState> {
    let addresses = reply.addresses.unwrap_or_default();
    Some(PeerState {
        instance: Instance(u128::from_be_bytes(reply.instance.as_ref().try_into().ok()?)),
        node: NodeId::from_bytes(&reply.node_id)?,
        cluster: optional_cluster(&reply.cluster_id)?,
        formed: reply.formed,
        list: reply.peers,
        addresses: from_wire(&addresses),
        versions: reply.version_min..=reply.version_max,
        software: reply.software,
        cluster_version_max: reply.cluster_version_max,
        tls: reply.tls.map(Into::into),
    })
}

pub(super) fn founding(request: &FoundRequest) -> Option<Founding> {
    Some(Founding {
        cluster: ClusterId::from_bytes(&request.cluster_id)?,
        from: NodeId::from_bytes(&request.from)?,
        to: NodeId::from_bytes(&request.to)?,
        members: request
            .members
            .iter()
            .map(|member| NodeId::from_bytes(&member.node_id))
            .collect::<Option<_>>()?,
        replaces: optional_cluster(&request.replaces)?,
    })
}
