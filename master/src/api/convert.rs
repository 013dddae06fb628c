//! Ids, leaders, members and endpoints as they travel.

use bytes::Bytes;
use mc_index::Endpoint;
use mc_proto::v1;
use mc_types::{NodeId, PutId, StoreId};

use crate::leader::{KnownLeader, MemberState, Refusal};

pub(super) fn bytes(of: &[u8]) -> Bytes {
    Bytes::copy_from_slice(of)
}

pub(super) fn leader_to_wire(leader: KnownLeader) -> v1::Leader {
    let KnownLeader { node, address, term } = leader;
    v1::Leader { node_id: bytes(&node.to_bytes()), address, term }
}

pub(super) fn member_to_wire(member: MemberState) -> v1::MemberStatus {
    let MemberState { node, addresses, voter, seen } = member;
    v1::MemberStatus {
        node_id: bytes(&node.to_bytes()),
        raft_address: addresses.raft,
        client_address: addresses.client,
        http_address: addresses.http,
        voter,
        lag_entries: seen.map(|seen| seen.lag),
        silent_ms: seen
            .and_then(|seen| seen.silent)
            .map(|silent| u64::try_from(silent.as_millis()).unwrap_or(u64::MAX)),
    }
}

pub(super) fn endpoints_to_wire(endpoints: &[Endpoint]) -> Vec<v1::Endpoint> {
    let endpoint = |endpoint: &Endpoint| v1::Endpoint {
        transport: endpoint.transport.clone(),
        address: endpoint.address.clone(),
        attributes: endpoint.attributes.iter().cloned().collect(),
    };
    endpoints.iter().map(endpoint).collect()
}

pub(super) fn node_id(id: &[u8]) -> Result<NodeId, Refusal> {
    NodeId::from_bytes(id).ok_or_else(|| Refusal::Invalid(format!("a node id has 8 bytes, not {}", id.len())))
}

pub(super) fn put_id(id: &[u8]) -> Result<PutId, Refusal> {
    PutId::from_bytes(id).ok_or_else(|| Refusal::Invalid(format!("a put id has 16 bytes, not {}", id.len())))
}

pub(super) fn store_id(id: &[u8]) -> Result<StoreId, Refusal> {
    StoreId::from_bytes(id)
        .ok_or_else(|| Refusal::Invalid(format!("a store id has 8 bytes, not {}", id.len())))
}
