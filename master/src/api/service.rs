use std::sync::Arc;

use arc_swap::ArcSwapOption;
use mc_index::CLUSTER_VERSION;
use mc_proto::v1::{self, master_server::Master};
use mc_types::NodeId;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::Refusal;
use super::caller::{Addressee, names_client, versions_meet};
use super::cluster::software;
use super::shed::{Shedder, Sheds};
use crate::leader::Coordinator;
use crate::metrics::{MasterMetrics, Rpc};

/// The client port: it listens before there is a cluster, and says so until there is one.
pub(crate) struct Api {
    node: NodeId,
    metrics: Arc<MasterMetrics>,
    coordinator: ArcSwapOption<Coordinator>,
    waiting: arc_swap::ArcSwap<String>,
    pub(crate) shedder: Shedder,
}

impl Api {
    pub(crate) fn new(node: NodeId, metrics: Arc<MasterMetrics>) -> Arc<Self> {
        let waiting = arc_swap::ArcSwap::from_pointee("starting".to_owned());
        let shedder = Shedder::new(metrics.calls_shed.clone());
        Arc::new(Self { node, metrics, coordinator: ArcSwapOption::empty(), waiting, shedder })
    }

    /// From now on calls are answered.
    pub(crate) fn open(&self, coordinator: Arc<Coordinator>) {
        self.coordinator.store(Some(coordinator));
    }

    /// Why there is no cluster yet, in words.
    pub(crate) fn waits_for(&self, what: String) {
        self.waiting.store(Arc::new(what));
    }

    /// The coordinator, once there is a cluster.
    pub(crate) fn coordinator(&self) -> Option<Arc<Coordinator>> {
        self.coordinator.load_full()
    }

    fn formed(&self) -> Result<Arc<Coordinator>, Refusal> {
        self.coordinator().ok_or_else(|| Refusal::Forming(self.waiting.load().to_string()))
    }

    fn admit(&self, caller: Option<&v1::Caller>) -> Result<Arc<Coordinator>, Refusal> {
        let coordinator = self.formed()?;
        Addressee { cluster: coordinator.cluster, node: self.node }.check(caller)?;
        Ok(coordinator)
    }

    /// For calls that change something.
    fn admit_change(&self, caller: Option<&v1::Caller>) -> Result<Arc<Coordinator>, Refusal> {
        let coordinator = self.admit(caller)?;
        names_client(caller)?;
        Ok(coordinator)
    }

    fn forming_status(&self) -> v1::StatusReply {
        v1::StatusReply {
            node_id: self.node.to_bytes().to_vec().into(),
            software: software(),
            role: "forming".to_owned(),
            cluster_version_max: CLUSTER_VERSION,
            pid: std::process::id(),
            waiting_for: self.waiting.load().to_string(),
            ..Default::default()
        }
    }

    /// The answer of `/status` and of the Status call.
    pub(crate) async fn status_reply(&self) -> v1::StatusReply {
        match self.coordinator() {
            Some(coordinator) => coordinator.status().await,
            None => self.forming_status(),
        }
    }

    /// The status behind the gauges and `/readyz`.
    pub(crate) fn own_status(&self) -> v1::StatusReply {
        self.coordinator().map_or_else(|| self.forming_status(), |coordinator| coordinator.own_status())
    }
}

/// The tonic service over [`Api`].
#[derive(Clone)]
pub(crate) struct MasterService(pub(crate) Arc<Api>);

/// Admits the caller, runs the call on the coordinator, and times it.
macro_rules! call {
    ($self:ident, $rpc:ident, $request:ident, |$coordinator:ident| $body:expr) => {
        call!(admit, $self, $rpc, $request, |$coordinator| $body)
    };
    ($admit:ident, $self:ident, $rpc:ident, $request:ident, |$coordinator:ident| $body:expr) => {{
        let _timer = $self.0.metrics.rpc(Rpc::$rpc);
        let $request = $request.into_inner();
        let $coordinator = $self.0.$admit($request.caller.as_ref())?;
        Ok(Response::new($body))
    }};
}

/// The same for calls that change something.
macro_rules! change {
    ($($call:tt)*) => {
        call!(admit_change, $($call)*)
    };
}

#[tonic::async_trait]
impl Master for MasterService {
    async fn hello(&self, request: Request<v1::HelloRequest>) -> Result<Response<v1::HelloReply>, Status> {
        let _timer = self.0.metrics.rpc(Rpc::Hello);
        self.0.shedder.admit(Sheds::Hello)?;
        let request = request.into_inner();
        versions_meet(request.version_min, request.version_max)?;
        Ok(Response::new(match self.0.coordinator() {
            Some(coordinator) => coordinator.hello(),
            None => v1::HelloReply {
                version_min: *mc_proto::VERSIONS.start(),
                version_max: *mc_proto::VERSIONS.end(),
                software: software(),
                node_id: self.0.node.to_bytes().to_vec().into(),
                ..Default::default()
            },
        }))
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> Result<Response<v1::StatusReply>, Status> {
        let _timer = self.0.metrics.rpc(Rpc::Status);
        Ok(Response::new(self.0.status_reply().await))
    }

    type WatchStream = ReceiverStream<Result<v1::WatchEvent, Status>>;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        self.0.shedder.admit(Sheds::Watch)?;
        call!(self, Watch, request, |coordinator| coordinator.watch(request.leader_only))
    }

    async fn batch_exist(
        &self,
        request: Request<v1::BatchExistRequest>,
    ) -> Result<Response<v1::BatchExistReply>, Status> {
        call!(self, Exist, request, |coordinator| coordinator.exist(request).await?)
    }

    async fn batch_get(
        &self,
        request: Request<v1::BatchGetRequest>,
    ) -> Result<Response<v1::BatchGetReply>, Status> {
        call!(self, Get, request, |coordinator| coordinator.get(request).await?)
    }

    async fn batch_put_start(
        &self,
        request: Request<v1::BatchPutStartRequest>,
    ) -> Result<Response<v1::BatchPutStartReply>, Status> {
        change!(self, PutStart, request, |coordinator| coordinator.put_start(request).await?)
    }

    async fn batch_put_end(
        &self,
        request: Request<v1::BatchPutEndRequest>,
    ) -> Result<Response<v1::BatchPutEndReply>, Status> {
        change!(self, PutEnd, request, |coordinator| coordinator.put_end(request).await?)
    }

    async fn batch_put_revoke(
        &self,
        request: Request<v1::BatchPutRevokeRequest>,
    ) -> Result<Response<v1::BatchPutRevokeReply>, Status> {
        change!(self, PutRevoke, request, |coordinator| coordinator.put_revoke(request).await?)
    }

    async fn batch_remove(
        &self,
        request: Request<v1::BatchRemoveRequest>,
    ) -> Result<Response<v1::BatchRemoveReply>, Status> {
        change!(self, Remove, request, |coordinator| coordinator.remove(request).await?)
    }

    async fn mount_store(
        &self,
        request: Request<v1::MountStoreRequest>,
    ) -> Result<Response<v1::MountStoreReply>, Status> {
        self.0.shedder.admit(Sheds::Mount)?;
        let one_of_few = self.0.shedder.mount_slot()?;
        // A caller that gives up does not take its entry out of the log's queue: the place is taken until it is applied.
        change!(self, Mount, request, |coordinator| {
            let mounting = async move {
                let mounted = coordinator.mount(request).await;
                drop(one_of_few);
                mounted
            };
            let ended = tokio::spawn(mounting).await;
            ended.map_err(|error| Refusal::Unknown(format!("the mount was not finished: {error}")))??
        })
    }

    async fn unmount_store(
        &self,
        request: Request<v1::UnmountStoreRequest>,
    ) -> Result<Response<v1::UnmountStoreReply>, Status> {
        change!(self, Unmount, request, |coordinator| coordinator.unmount(request).await?)
    }

    type HeartbeatStream = ReceiverStream<Result<v1::StoreHeartbeatReply, Status>>;

    async fn heartbeat(
        &self,
        request: Request<Streaming<v1::StoreHeartbeat>>,
    ) -> Result<Response<Self::HeartbeatStream>, Status> {
        let coordinator = self.0.formed()?;
        let us = Addressee { cluster: coordinator.cluster, node: self.0.node };
        Ok(Response::new(coordinator.heartbeat(us, request.into_inner())))
    }

    async fn list_members(
        &self,
        request: Request<v1::ListMembersRequest>,
    ) -> Result<Response<v1::ListMembersReply>, Status> {
        call!(self, Members, request, |coordinator| coordinator.list_members().await?)
    }

    async fn transfer_leader(
        &self,
        request: Request<v1::TransferLeaderRequest>,
    ) -> Result<Response<v1::TransferLeaderReply>, Status> {
        change!(self, TransferLeader, request, |coordinator| coordinator.transfer_leader(&request).await?)
    }

    async fn add_member(
        &self,
        request: Request<v1::AddMemberRequest>,
    ) -> Result<Response<v1::AddMemberReply>, Status> {
        change!(self, AddMember, request, |coordinator| coordinator.add_member(&request.raft_address).await?)
    }

    async fn remove_member(
        &self,
        request: Request<v1::RemoveMemberRequest>,
    ) -> Result<Response<v1::RemoveMemberReply>, Status> {
        change!(self, RemoveMember, request, |coordinator| {
            coordinator.remove_member(super::node_id(&request.node_id)?).await?
        })
    }

    async fn get_config(
        &self,
        request: Request<v1::GetConfigRequest>,
    ) -> Result<Response<v1::GetConfigReply>, Status> {
        call!(self, GetConfig, request, |coordinator| coordinator.get_config().await?)
    }

    async fn set_config(
        &self,
        request: Request<v1::SetConfigRequest>,
    ) -> Result<Response<v1::SetConfigReply>, Status> {
        change!(self, SetConfig, request, |coordinator| coordinator.set_config(&request).await?)
    }

    async fn finish_upgrade(
        &self,
        request: Request<v1::FinishUpgradeRequest>,
    ) -> Result<Response<v1::FinishUpgradeReply>, Status> {
        change!(self, FinishUpgrade, request, |coordinator| coordinator.finish_upgrade().await?)
    }
}
