//! Stores: mount, unmount, heartbeats.

use std::net::IpAddr;
use std::sync::Arc;

use mc_index::{Endpoint, MountStore, Security};
use mc_proto::v1;
use mc_types::{GrantKey, SegmentEpoch, SpiffeId, StoreId};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::caller::{Addressee, note_if_outdated};
use super::cluster::tls_level;
use super::convert::bytes;
use crate::access::StoreCaller;
use crate::leader::{HeartbeatSession, Refusal, Services, TransportUse, over};
use crate::metrics::{MasterMetrics, Rpc};

/// Most endpoints and attributes that one mount may name.
const MAX_ENDPOINTS: usize = 16;

pub(super) async fn mount(
    services: &Services,
    request: v1::MountStoreRequest,
) -> Result<v1::MountStoreReply, Refusal> {
    let mounted = services.stores.mount(parse_mount(request)?).await?;
    Ok(v1::MountStoreReply {
        cluster_time_ms: mounted.time.0,
        heartbeat_ms: u64::try_from(mounted.heartbeat.as_millis()).unwrap_or(u64::MAX),
        cluster_id: bytes(&services.coordinator.cluster().to_bytes()),
        order: mounted.order,
    })
}

pub(super) async fn unmount(
    services: &Services,
    request: v1::UnmountStoreRequest,
) -> Result<v1::UnmountStoreReply, Refusal> {
    let (store, epoch) = store_and_epoch(&request.store_id, &request.epoch)?;
    services.stores.unmount(store, epoch).await?;
    Ok(v1::UnmountStoreReply {})
}

/// Sender of heartbeats.
pub(super) struct HeartbeatsFrom {
    pub(super) host: Option<IpAddr>,
    pub(super) caller: StoreCaller,
}

/// Answers a store's heartbeats until the stream ends, this master does not lead any more, or the connection is to be let go.
pub(super) fn heartbeat(
    services: Arc<Services>,
    metrics: Arc<MasterMetrics>,
    us: Addressee,
    from: HeartbeatsFrom,
    mut beats: Streaming<v1::StoreHeartbeat>,
) -> ReceiverStream<Result<v1::StoreHeartbeatReply, Status>> {
    // One answer per heartbeat: the master stops reading from a store that does not read its answers.
    let (replies, stream) = mpsc::channel(2);
    tokio::spawn(async move {
        let coordinator = &services.coordinator;
        let mut session = services.stores.session();
        let over = over(from.caller.connection_age());
        tokio::pin!(over);
        loop {
            let beat = tokio::select! {
                beat = beats.next() => beat,
                () = coordinator.stopped() => return,
                // It comes back over another connection, and is believed meanwhile.
                () = &mut over => return session.let_go(),
            };
            let Some(Ok(beat)) = beat else { return };
            let timer = metrics.calls.rpc(Rpc::Heartbeat);
            // A leader that waits for its lease answers late. Should the store leave meanwhile, its stream must not count: the
            // end of it would make a store suspect that is about to open the next one.
            let reply = tokio::select! {
                reply = answer(&services, &mut session, us, &from, beat) => reply,
                () = replies.closed() => return,
            };
            drop(timer);
            if let Err(refusal) = &reply {
                session.let_go();
                if session.may_lead_on(refusal) {
                    continue;
                }
            }
            let end = reply.is_err();
            if replies.send(reply.map_err(Status::from)).await.is_err() || end {
                break;
            }
        }
    });
    ReceiverStream::new(stream)
}

async fn answer(
    services: &Services,
    session: &mut HeartbeatSession,
    us: Addressee,
    from: &HeartbeatsFrom,
    beat: v1::StoreHeartbeat,
) -> Result<v1::StoreHeartbeatReply, Refusal> {
    us.check(beat.caller.as_ref())?;
    from.caller.is_still_admitted()?;
    from.caller.may_act_on(services, &beat.store_id).await?;
    note_if_outdated(services, beat.caller.as_ref(), from.host);
    let (store, epoch) = store_and_epoch(&beat.store_id, &beat.epoch)?;
    let transport = |transport: v1::TransportStatus| {
        let v1::TransportStatus { name, offered, how, read_bytes, written_bytes } = transport;
        TransportUse { name, offered, how, read_bytes, written_bytes }
    };
    let transports = beat.transports.into_iter().map(transport).collect();
    let answer = session.beat(store, epoch, transports, beat.tls.map(Into::into)).await?;
    let shut_out = answer.is_security_news.then(|| shut_out(&answer.security));
    Ok(v1::StoreHeartbeatReply {
        sequence: beat.sequence,
        cluster_time_ms: answer.time.0,
        term: answer.term,
        cluster_id: bytes(&us.cluster.to_bytes()),
        mounted: answer.mounted,
        dead: answer.dead,
        spread_ms: u32::try_from(answer.spread.as_millis()).unwrap_or(u32::MAX),
        tls_level: tls_level(services),
        shut_out,
        grant_key_may_change: answer.key_may_change,
    })
}

/// Lists the callers that stores have to refuse.
fn shut_out(security: &Security) -> v1::ShutOut {
    let denied = security.principals().filter(|(_, stored)| stored.record.denied);
    let numbers = denied.flat_map(|(name, stored)| [SpiffeId::number_of_path(name), stored.token_number]);
    v1::ShutOut { callers: security.revoked().chain(numbers).collect() }
}

pub(super) fn parse_mount(request: v1::MountStoreRequest) -> Result<MountStore, Refusal> {
    let (store, epoch) = store_and_epoch(&request.store_id, &request.epoch)?;
    let grant_key: [u8; 32] = request.grant_key[..].try_into().map_err(|_| {
        Refusal::Invalid(format!("a grant key has 32 bytes, not {}", request.grant_key.len()))
    })?;
    let crowded = request.endpoints.len() > MAX_ENDPOINTS
        || request.endpoints.iter().any(|endpoint| endpoint.attributes.len() > MAX_ENDPOINTS);
    if request.endpoints.is_empty() || crowded {
        return Err(Refusal::Invalid(format!("a store names 1 to {MAX_ENDPOINTS} endpoints")));
    }
    let endpoint = |endpoint: v1::Endpoint| {
        let mut attributes: Vec<_> = endpoint.attributes.into_iter().collect();
        attributes.sort_unstable();
        Endpoint { transport: endpoint.transport, address: endpoint.address, attributes }
    };
    Ok(MountStore {
        store,
        epoch,
        name: request.name,
        grant_key: GrantKey(grant_key),
        endpoints: request.endpoints.into_iter().map(endpoint).collect(),
        segments: request.segment_bytes,
        http: request.http_address,
    })
}

pub(super) fn store_and_epoch(store: &[u8], epoch: &[u8]) -> Result<(StoreId, SegmentEpoch), Refusal> {
    match (StoreId::from_bytes(store), SegmentEpoch::from_bytes(epoch)) {
        (Some(store), Some(epoch)) => Ok((store, epoch)),
        _ => Err(Refusal::Invalid(format!(
            "a store id and an epoch have 8 bytes each, not {} and {}",
            store.len(),
            epoch.len()
        ))),
    }
}
