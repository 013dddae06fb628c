//! Calls about the cluster: hello, status, watch, members.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use mc_index::{CLUSTER_VERSION, SegmentView, State, StoreView};
use mc_proto::v1;
use mc_types::{StoreId, TlsLevel};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::convert::{bytes, endpoints_to_wire, leader_to_wire, member_to_wire, node_id};
use crate::leader::{
    self, Leading, MemberState, Members, OutdatedCaller, Refusal, Services, StatusView, TransportUse,
    WatchEvent,
};

/// Name and version of this process.
pub(super) fn software() -> String {
    concat!("mc-master ", env!("CARGO_PKG_VERSION")).to_owned()
}

pub(super) fn hello(services: &Services) -> v1::HelloReply {
    let coordinator = &services.coordinator;
    let members = coordinator.read(MemberState::of);
    v1::HelloReply {
        version_min: *mc_proto::VERSIONS.start(),
        version_max: *mc_proto::VERSIONS.end(),
        software: software(),
        cluster_id: bytes(&coordinator.cluster().to_bytes()),
        node_id: bytes(&services.raft.node_id().to_bytes()),
        leader: coordinator.leader().map(leader_to_wire),
        masters: members.into_iter().map(|member| member.addresses.client).collect(),
        tls_level: tls_level(services),
    }
}

/// Level of TLS in the cluster, for callers; 0 while it is not known.
pub(super) fn tls_level(services: &Services) -> u32 {
    services.raft.index().security().borrow().level().map_or(0, TlsLevel::number)
}

/// Status of this master; on the leader with the liveness of the stores.
pub(super) async fn status(services: &Services) -> v1::StatusReply {
    let leading = services.coordinator.lead_soon().await;
    status_as(services, leading.as_deref())
}

/// Status for the gauges and probes of this master. It trusts the lease without a check, because gauges and probes
/// describe this master and not the content of the pool.
pub(super) fn own_status(services: &Services) -> v1::StatusReply {
    status_as(services, services.coordinator.on_duty().as_deref())
}

fn status_as(services: &Services, leading: Option<&Leading>) -> v1::StatusReply {
    let coordinator = &services.coordinator;
    coordinator.status_view(leading, |view| {
        let StatusView { raft, applied, leading, leader, waiting_for, no_puts } = view;
        let state = &applied.state;
        v1::StatusReply {
            cluster_id: bytes(&coordinator.cluster().to_bytes()),
            node_id: bytes(&services.raft.node_id().to_bytes()),
            software: software(),
            role: raft.role.to_owned(),
            term: raft.term,
            raft_timing: services.raft.timing().to_string(),
            committed: raft.committed,
            applied: applied.last_applied.map_or(0, |id| id.index),
            keys: state.objects(),
            cluster_time_ms: leading.map_or(state.time(), Leading::now).0,
            masters: MemberState::of(applied).into_iter().map(member_to_wire).collect(),
            stores: state
                .stores()
                .map(|store| store_status(&store, state.store_segments(store.store), leading))
                .collect(),
            puts_in_flight: state.puts_in_flight(),
            cluster_version: state.cluster_version(),
            cluster_version_max: CLUSTER_VERSION,
            pid: std::process::id(),
            waiting_for,
            leader: leader.map(leader_to_wire),
            no_puts,
            lost_entries: services.raft.lost_entries().unwrap_or_default(),
            outdated: leading.map(|leading| outdated(leading, state)).unwrap_or_default(),
        }
    })
}

/// Converts what a leader knows of callers of older builds for the wire.
fn outdated(leading: &Leading, state: &State) -> Vec<v1::OutdatedCaller> {
    let now = leading.elapsed();
    let caller = |caller: OutdatedCaller| v1::OutdatedCaller {
        client_id: bytes(&caller.client.to_bytes()),
        store: caller
            .as_store()
            .and_then(|id| state.store(id))
            .map(|it| it.name.to_owned())
            .unwrap_or_default(),
        host: caller.host.map(|host| host.to_string()).unwrap_or_default(),
        version_max: caller.version_max,
        silent_ms: u64::try_from(now.saturating_sub(caller.at).as_millis()).unwrap_or(u64::MAX),
    };
    leading.outdated.heard(now).into_iter().map(caller).collect()
}

/// Converts a store's status for the wire. Only a leader can tell whether the store is alive.
fn store_status(
    store: &StoreView<'_>,
    segments: impl Iterator<Item = SegmentView>,
    leading: Option<&Leading>,
) -> v1::StoreStatus {
    // Report the state that clients were told. A fresh look at the heartbeats could show a state that no watcher has
    // got yet.
    let state = match leading.map(|leading| leading.is_suspect(store.store)) {
        Some(false) => "alive",
        Some(true) => "suspect",
        None => "unknown",
    };
    v1::StoreStatus {
        store_id: bytes(&store.store.to_bytes()),
        name: store.name.to_owned(),
        epoch: bytes(&store.epoch.to_bytes()),
        endpoints: endpoints_to_wire(store.endpoints),
        state: state.to_owned(),
        capacity_bytes: store.capacity,
        used_bytes: store.used,
        objects: store.objects,
        http_address: store.http.to_owned(),
        segments: segments.map(segment_to_wire).collect(),
        transports: leading
            .map(|leading| leading.transports.of(store.store))
            .unwrap_or_default()
            .into_iter()
            .map(transport_to_wire)
            .collect(),
    }
}

fn transport_to_wire(transport: TransportUse) -> v1::TransportStatus {
    let TransportUse { name, offered, how, read_bytes, written_bytes } = transport;
    v1::TransportStatus { name, offered, how, read_bytes, written_bytes }
}

fn segment_to_wire(segment: SegmentView) -> v1::SegmentStatus {
    let SegmentView { number, capacity, used, objects } = segment;
    v1::SegmentStatus { number, capacity_bytes: capacity, used_bytes: used, objects }
}

/// Streams leader and store changes until the watcher hangs up, this master stops, or the time `lasts` is over.
pub(super) fn watch(
    services: Arc<Services>,
    leader_only: bool,
    lasts: Option<Duration>,
) -> BoxStream<'static, Result<v1::WatchEvent, Status>> {
    let (cluster, known) = (services.coordinator.cluster(), services.clone());
    let event = move |event: WatchEvent| {
        let store = |(store, suspect): &(StoreId, bool)| v1::StoreStatus {
            store_id: bytes(&store.to_bytes()),
            state: if *suspect { "suspect" } else { "alive" }.to_owned(),
            ..Default::default()
        };
        Ok(v1::WatchEvent {
            leader: event.leader.map(leader_to_wire),
            cluster_id: bytes(&cluster.to_bytes()),
            masters: event.masters,
            spread_ms: u32::try_from(event.spread.as_millis()).unwrap_or(u32::MAX),
            stores: event.stores.iter().map(store).collect(),
            all_suspects: event.all_suspects,
            tls_level: tls_level(&known),
        })
    };
    Box::pin(ReceiverStream::new(leader::watch(services, leader_only, lasts)).map(event))
}

pub(super) async fn list_members(services: &Services) -> Result<v1::ListMembersReply, Refusal> {
    let members = services.members.list().await?.into_iter().map(member_to_wire).collect();
    Ok(v1::ListMembersReply { members, leader: services.coordinator.leader().map(leader_to_wire) })
}

pub(super) async fn add_member(
    members: &Members,
    request: &v1::AddMemberRequest,
) -> Result<v1::AddMemberReply, Refusal> {
    let member = members.add(&request.raft_address).await?;
    Ok(v1::AddMemberReply { member: member.map(member_to_wire) })
}

pub(super) async fn remove_member(
    members: &Members,
    request: &v1::RemoveMemberRequest,
) -> Result<v1::RemoveMemberReply, Refusal> {
    Ok(v1::RemoveMemberReply { removed: members.remove(node_id(&request.node_id)?).await? })
}

pub(super) async fn transfer_leader(
    services: &Services,
    request: &v1::TransferLeaderRequest,
) -> Result<v1::TransferLeaderReply, Refusal> {
    let to = match &request.to[..] {
        [] => None,
        id => Some(node_id(id)?),
    };
    services.members.transfer_leader(to).await?;
    Ok(v1::TransferLeaderReply { leader: services.coordinator.leader().map(leader_to_wire) })
}
