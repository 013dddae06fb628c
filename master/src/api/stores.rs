//! Stores: mount, unmount, heartbeats.

use std::sync::Arc;

use mc_index::{Endpoint, MountStore, Op, Response};
use mc_proto::v1;
use mc_types::{Code, GrantKey, SegmentEpoch, StoreId};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::Refusal;
use super::caller::Addressee;
use super::grants::bytes;
use crate::leader::{Coordinator, Leading, StoreState};
use crate::metrics::Rpc;

/// Most endpoints and attributes that one mount may name.
const MAX_ENDPOINTS: usize = 16;

impl Coordinator {
    pub(crate) async fn mount(&self, request: v1::MountStoreRequest) -> Result<v1::MountStoreReply, Refusal> {
        let mount = parse_mount(request)?;
        let leading = self.lead().await?;
        self.refuse_impostor(&mount, &leading)?;
        let (store, name) = (mount.store, mount.name.clone());
        let code = single_code(self.propose(&leading, Op::MountStore(mount)).await?)?;
        match code {
            Code::Ok => {}
            Code::StoreEpochDead => {
                return Err(Refusal::Store {
                    code,
                    message: format!(
                        "store {store} mounts memory that was declared dead: it allocates again"
                    ),
                });
            }
            _ => {
                return Err(Refusal::Invalid(format!("store {store} ({name}) asks for impossible segments")));
            }
        }
        let heartbeat_ms = self.index.read(|applied| applied.state.settings().store_heartbeat_ms);
        // It may have been called suspect under the epoch before.
        leading.liveness.mounted(store, leading.elapsed());
        self.refresh_suspect(&leading, store);
        tracing::info!(%store, name, "store mounted");
        Ok(v1::MountStoreReply {
            cluster_time_ms: leading.now().0,
            heartbeat_ms,
            cluster_id: bytes(&self.cluster.to_bytes()),
        })
    }

    /// Two processes with one store id (a copied data directory) would take each other's memory away in turns.
    fn refuse_impostor(&self, mount: &MountStore, leading: &Leading) -> Result<(), Refusal> {
        let known = self.index.read(|applied| {
            let store = applied.state.store(mount.store)?;
            Some((store.epoch, store.name.to_owned(), store.endpoints.to_vec()))
        });
        // Right after a failover the store that is mounted is believed to be alive until it had time to say so.
        let alive = leading.liveness.state(mount.store, leading.elapsed()) == StoreState::Alive;
        match known {
            Some((epoch, name, endpoints))
                if alive && epoch != mount.epoch && endpoints != mount.endpoints =>
            {
                Err(Refusal::Store {
                    code: Code::SegmentAlreadyExists,
                    message: format!(
                        "store {} is alive as {name} at another address: two stores share a data directory, or a copy of \
                     one; give this one a --data-dir of its own",
                        mount.store
                    ),
                })
            }
            _ => Ok(()),
        }
    }

    pub(crate) async fn unmount(
        &self,
        request: v1::UnmountStoreRequest,
    ) -> Result<v1::UnmountStoreReply, Refusal> {
        let (store, epoch) = store_and_epoch(&request.store_id, &request.epoch)?;
        let leading = self.lead().await?;
        single_code(self.propose(&leading, Op::DropStore { store, epoch }).await?)?;
        tracing::info!(%store, "store unmounted");
        Ok(v1::UnmountStoreReply {})
    }

    /// Answers a store's heartbeats until the stream ends or this master does not lead any more.
    pub(crate) fn heartbeat(
        self: &Arc<Self>,
        us: Addressee,
        mut beats: Streaming<v1::StoreHeartbeat>,
    ) -> ReceiverStream<Result<v1::StoreHeartbeatReply, Status>> {
        // One answer per beat: a store that does not read its answers is not read further.
        let (replies, stream) = mpsc::channel(2);
        let this = self.clone();
        tokio::spawn(async move {
            let mut open: Option<OpenStream> = None;
            loop {
                let beat = tokio::select! {
                    beat = beats.next() => beat,
                    () = this.stop.cancelled() => return,
                };
                let Some(Ok(beat)) = beat else { return };
                let reply = this.beat(us, &beat, &mut open).await;
                // Without an answer the stream says nothing of the store: neither its end nor a new reign of this master
                // makes it suspect.
                if reply.is_err()
                    && let Some(open) = open.take()
                {
                    open.let_go();
                }
                if this.may_lead_on(&reply) {
                    continue;
                }
                let end = reply.is_err();
                if replies.send(reply.map_err(Status::from)).await.is_err() || end {
                    break;
                }
            }
        });
        ReceiverStream::new(stream)
    }

    /// This master leads by its own account and could not make sure of it: it will, or hears who leads. Ending the stream
    /// would bring back the whole fleet at once. The store looks for another leader by itself when no answers come.
    fn may_lead_on<T>(&self, reply: &Result<T, Refusal>) -> bool {
        matches!(reply, Err(Refusal::NotLeader { leader: None, .. })) && self.raft.view().role == "leader"
    }

    async fn beat(
        self: &Arc<Self>,
        us: Addressee,
        beat: &v1::StoreHeartbeat,
        open: &mut Option<OpenStream>,
    ) -> Result<v1::StoreHeartbeatReply, Refusal> {
        let _timer = self.metrics.rpc(Rpc::Heartbeat);
        us.check(beat.caller.as_ref())?;
        let (store, epoch) = store_and_epoch(&beat.store_id, &beat.epoch)?;
        let leading = self.lead().await?;
        let (mounted, dead) = self.index.read(|applied| {
            let mounted = applied.state.mounted_epoch(store) == Some(epoch);
            (mounted, !mounted && applied.state.epoch_is_dead(store, epoch))
        });
        // An epoch that is not mounted says nothing of the one that is.
        if mounted {
            match open {
                Some(open) if Arc::ptr_eq(&open.leading, &leading) => {
                    leading.liveness.beat(store, leading.elapsed());
                    if leading.is_suspect(store) {
                        self.refresh_suspect(&leading, store);
                    }
                }
                _ => *open = Some(OpenStream::begin(self, store, leading.clone())),
            }
        }
        Ok(v1::StoreHeartbeatReply {
            sequence: beat.sequence,
            cluster_time_ms: leading.now().0,
            term: leading.term,
            cluster_id: bytes(&self.cluster.to_bytes()),
            mounted,
            dead,
            spread_ms: u32::try_from(leading.liveness.spread().as_millis()).unwrap_or(u32::MAX),
        })
    }
}

/// A store's open stream in one term: its end makes the store suspect at once, unless it was ended from here.
struct OpenStream {
    coordinator: Arc<Coordinator>,
    leading: Arc<Leading>,
    store: StoreId,
    let_go: bool,
}

impl OpenStream {
    fn begin(on: &Arc<Coordinator>, store: StoreId, leading: Arc<Leading>) -> Self {
        leading.liveness.opened(store, leading.elapsed());
        on.refresh_suspect(&leading, store);
        Self { coordinator: on.clone(), leading, store, let_go: false }
    }

    /// Ends it for reasons of this master.
    fn let_go(mut self) {
        self.let_go = true;
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        match self.let_go {
            true => self.leading.liveness.let_go(self.store, self.leading.elapsed()),
            false => self.leading.liveness.closed(self.store),
        }
        self.coordinator.refresh_suspect(&self.leading, self.store);
    }
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

fn single_code(response: Response) -> Result<Code, Refusal> {
    match response {
        Response::Codes(codes) if codes.len() == 1 => Ok(codes[0]),
        other => Err(Refusal::Unknown(format!("expected one code, got {other:?}, which is a bug"))),
    }
}
