use std::sync::Arc;

use arc_swap::ArcSwapOption;
use futures::stream::BoxStream;
use mc_index::CLUSTER_VERSION;
use mc_net::{ConnectInfo, Guard, Network};
use mc_proto::v1;
use mc_proto::v1::master_server::Master;
use mc_types::{NodeId, STORE_TENANT};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::audit::{self, AuditedCaller};
use super::call_limits::CallLimits;
use super::caller::{Addressee, holder_of, host_of, names_client, note_if_outdated, versions_meet};
use super::cluster::software;
use super::reply_memory::ReplyMemory;
use super::shed::{SheddableCall, Shedder};
use super::stores::HeartbeatsFrom;
use super::{cluster, config, objects, ports, security, stores, tenants};
use crate::access::{StoreCaller, TenantField, name_of, principal_of, resolve_tenant};
use crate::audit::AuditLogs;
use crate::leader::{Refusal, Services, audited};
use crate::metrics::{MasterMetrics, Rpc};

/// The API on the client port. It listens before there is a cluster, and says so until there is one.
pub(crate) struct Api {
    node: NodeId,
    network: Arc<dyn Network>,
    metrics: Arc<MasterMetrics>,
    pub(crate) audit: Arc<AuditLogs>,
    /// Guard of all ports of this master.
    pub(crate) guard: Arc<Guard>,
    services: ArcSwapOption<Services>,
    waiting: arc_swap::ArcSwap<String>,
    pub(crate) shedder: Shedder,
    call_limits: CallLimits,
    /// Room for answers over HTTP.
    pub(crate) reply_memory: ReplyMemory,
}

impl Api {
    pub(crate) fn new(
        node: NodeId,
        network: Arc<dyn Network>,
        metrics: Arc<MasterMetrics>,
        audit: Arc<AuditLogs>,
    ) -> Arc<Self> {
        let waiting = arc_swap::ArcSwap::from_pointee("starting".to_owned());
        let shedder = Shedder::new(metrics.calls.shed.clone());
        let reply_memory = ReplyMemory::new(ports::passed_on());
        let (counted, noted) = (metrics.clone(), audit.clone());
        let guard = Guard::new(network.tls().cloned(), move |from, denied| {
            counted.calls.denied(denied.reason());
            noted.refused(from.map(|from| from.ip()), denied);
        });
        Arc::new(Self {
            node,
            network,
            metrics,
            audit,
            guard,
            services: ArcSwapOption::empty(),
            waiting,
            shedder,
            call_limits: CallLimits::new(),
            reply_memory,
        })
    }

    /// Starts to answer calls with `services`.
    pub(crate) fn open(&self, services: Arc<Services>) {
        self.services.store(Some(services));
    }

    /// The network over which other masters are asked.
    pub(crate) fn network(&self) -> &dyn Network {
        self.network.as_ref()
    }

    /// This master's id.
    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    /// Sets the reason, for callers, why there is no cluster yet.
    pub(crate) fn waits_for(&self, what: String) {
        self.waiting.store(Arc::new(what));
    }

    /// The services, once there is a cluster.
    pub(crate) fn services(&self) -> Option<Arc<Services>> {
        self.services.load_full()
    }

    fn formed(&self) -> Result<Arc<Services>, Refusal> {
        self.services().ok_or_else(|| Refusal::Forming(self.waiting.load().to_string()))
    }

    fn admit(&self, caller: Option<&v1::Caller>) -> Result<Arc<Services>, Refusal> {
        let services = self.formed()?;
        Addressee { cluster: services.coordinator.cluster(), node: self.node }.check(caller)?;
        Ok(services)
    }

    /// Admits a call that changes something.
    fn admit_change(&self, caller: Option<&v1::Caller>) -> Result<Arc<Services>, Refusal> {
        let services = self.admit(caller)?;
        names_client(caller)?;
        Ok(services)
    }

    /// Returns a request for the tenant that its caller may use.
    async fn of_tenant<R: TenantField>(&self, request: Request<R>) -> Result<R, Status> {
        let (_, call, mut request) = request.into_parts();
        let principal = principal_of(&call)?;
        if let Err(denied) = resolve_tenant(principal, name_of(&call), &mut request) {
            let from = call.get::<ConnectInfo>().and_then(|caller| caller.remote);
            return Err(self.guard.deny(from, denied).into());
        }
        // Those who run the pool set the limit.
        if R::IS_LIMITED && (principal.id().is_none() || principal.is_tenants_user()) {
            self.within_limit(&mut request).await?;
        }
        Ok(request)
    }

    /// Counts a call for its tenant, and refuses it after a moment if the tenant has made enough of them.
    async fn within_limit(&self, request: &mut impl TenantField) -> Result<(), Refusal> {
        let (Some(tenant), Some(services)) = (request.tenant_mut(), self.services()) else { return Ok(()) };
        let limit = services.raft.index().security().borrow().calls(tenant);
        let Some(limit) = limit else { return Ok(()) };
        let Err(again) = self.call_limits.take(tenant, limit) else { return Ok(()) };
        self.call_limits.hold_up(again).await;
        Err(Refusal::TooManyCalls { tenant: tenant.clone(), limit, again })
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

    /// Returns the status for `/status` and for the call Status.
    pub(crate) async fn status_reply(&self) -> v1::StatusReply {
        match self.services() {
            Some(services) => cluster::status(&services).await,
            None => self.forming_status(),
        }
    }

    /// Returns the status behind the gauges.
    pub(crate) fn own_status(&self) -> v1::StatusReply {
        match self.services() {
            Some(services) => cluster::own_status(&services),
            None => self.forming_status(),
        }
    }
}

/// The tonic service over [`Api`].
#[derive(Clone)]
pub(crate) struct MasterService(pub(crate) Arc<Api>);

/// Admits the caller, runs the call on the services, and times it.
macro_rules! call {
    ($self:ident, $rpc:ident, $request:ident, |$services:ident| $body:expr) => {
        call!(admit, $self, $rpc, $request, |$services| $body)
    };
    ($admit:ident, $self:ident, $rpc:ident, $request:ident, |$services:ident| $body:expr) => {{
        let $request = $self.0.of_tenant($request).await?;
        // One that is beyond its tenant's limit waits to be refused, which is no time of a call.
        let _timer = $self.0.metrics.calls.rpc(Rpc::$rpc);
        let $services = $self.0.$admit($request.caller.as_ref())?;
        Ok(Response::new($body))
    }};
}

/// Like `call!`, for calls that change something.
macro_rules! change {
    ($($call:tt)*) => {
        call!(admit_change, $($call)*)
    };
}

/// Like `change!`, for calls that are audited.
macro_rules! audited {
    ($self:ident, $rpc:ident, $request:ident, |$services:ident| $body:expr) => {{
        let caller = AuditedCaller::of($request.extensions());
        change!($self, $rpc, $request, |$services| {
            let call = caller.call(&$request);
            audited(call, async { Ok::<_, Refusal>($body) }).await?
        })
    }};
}

#[tonic::async_trait]
impl Master for MasterService {
    async fn hello(&self, request: Request<v1::HelloRequest>) -> Result<Response<v1::HelloReply>, Status> {
        let _timer = self.0.metrics.calls.rpc(Rpc::Hello);
        self.0.shedder.admit(SheddableCall::Hello)?;
        let request = request.into_inner();
        versions_meet(request.version_min, request.version_max)?;
        Ok(Response::new(match self.0.services() {
            Some(services) => cluster::hello(&services),
            None => v1::HelloReply {
                version_min: *mc_proto::VERSIONS.start(),
                version_max: *mc_proto::VERSIONS.end(),
                software: software(),
                node_id: self.0.node.to_bytes().to_vec().into(),
                ..Default::default()
            },
        }))
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Result<Response<v1::StatusReply>, Status> {
        let _timer = self.0.metrics.calls.rpc(Rpc::Status);
        let mut reply = self.0.status_reply().await;
        // Others' addresses, and the names of other tenants, are not for the user of one tenant.
        if principal_of(request.extensions())?.is_tenants_user() {
            reply.outdated.clear();
            for endpoint in reply.stores.iter_mut().flat_map(|store| &mut store.endpoints) {
                endpoint.attributes.remove(STORE_TENANT);
            }
        }
        Ok(Response::new(reply))
    }

    type WatchStream = BoxStream<'static, Result<v1::WatchEvent, Status>>;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        self.0.shedder.admit(SheddableCall::Watch)?;
        let lasts = self.0.guard.connection_age();
        call!(self, Watch, request, |services| cluster::watch(services, request.leader_only, lasts))
    }

    async fn batch_exist(
        &self,
        request: Request<v1::BatchExistRequest>,
    ) -> Result<Response<v1::BatchExistReply>, Status> {
        call!(self, Exist, request, |services| objects::exist(&services.objects, request).await?)
    }

    async fn batch_get(
        &self,
        request: Request<v1::BatchGetRequest>,
    ) -> Result<Response<v1::BatchGetReply>, Status> {
        let holder = holder_of(request.extensions(), request.get_ref().caller.as_ref());
        call!(self, Get, request, |services| objects::get(&services.objects, request, holder).await?)
    }

    async fn batch_describe(
        &self,
        request: Request<v1::BatchDescribeRequest>,
    ) -> Result<Response<v1::BatchDescribeReply>, Status> {
        call!(self, Describe, request, |services| objects::describe(&services.objects, request).await?)
    }

    async fn report_mismatch(
        &self,
        request: Request<v1::ReportMismatchRequest>,
    ) -> Result<Response<v1::ReportMismatchReply>, Status> {
        change!(self, ReportMismatch, request, |services| {
            objects::report_mismatch(&services.objects, request).await?
        })
    }

    async fn list_keys(
        &self,
        request: Request<v1::ListKeysRequest>,
    ) -> Result<Response<v1::ListKeysReply>, Status> {
        call!(self, ListKeys, request, |services| objects::list_keys(&services.objects, request).await?)
    }

    async fn batch_put_start(
        &self,
        request: Request<v1::BatchPutStartRequest>,
    ) -> Result<Response<v1::BatchPutStartReply>, Status> {
        let host = host_of(request.extensions());
        let holder = holder_of(request.extensions(), request.get_ref().caller.as_ref());
        change!(self, PutStart, request, |services| {
            note_if_outdated(&services, request.caller.as_ref(), host);
            objects::put_start(&services.objects, request, (holder, host)).await?
        })
    }

    async fn batch_put_end(
        &self,
        request: Request<v1::BatchPutEndRequest>,
    ) -> Result<Response<v1::BatchPutEndReply>, Status> {
        change!(self, PutEnd, request, |services| objects::put_end(&services.objects, request).await?)
    }

    async fn batch_put_revoke(
        &self,
        request: Request<v1::BatchPutRevokeRequest>,
    ) -> Result<Response<v1::BatchPutRevokeReply>, Status> {
        change!(self, PutRevoke, request, |services| objects::put_revoke(&services.objects, request).await?)
    }

    async fn batch_remove(
        &self,
        request: Request<v1::BatchRemoveRequest>,
    ) -> Result<Response<v1::BatchRemoveReply>, Status> {
        change!(self, Remove, request, |services| objects::remove(&services.objects, request).await?)
    }

    async fn remove_all(
        &self,
        request: Request<v1::RemoveAllRequest>,
    ) -> Result<Response<v1::RemoveAllReply>, Status> {
        audited!(self, RemoveAll, request, |services| objects::remove_all(&services.objects, request).await?)
    }

    async fn batch_drop_replicas(
        &self,
        request: Request<v1::BatchDropReplicasRequest>,
    ) -> Result<Response<v1::BatchDropReplicasReply>, Status> {
        change!(self, DropReplicas, request, |services| objects::drop_replicas(&services.objects, &request)
            .await?)
    }

    async fn list_tenants(
        &self,
        request: Request<v1::ListTenantsRequest>,
    ) -> Result<Response<v1::ListTenantsReply>, Status> {
        call!(self, ListTenants, request, |services| tenants::list(&services.tenants, &request).await?)
    }

    async fn set_tenant(
        &self,
        request: Request<v1::SetTenantRequest>,
    ) -> Result<Response<v1::SetTenantReply>, Status> {
        let caller = AuditedCaller::of(request.extensions());
        change!(self, SetTenant, request, |services| tenants::set(&services, request, &caller).await?)
    }

    async fn mount_store(
        &self,
        request: Request<v1::MountStoreRequest>,
    ) -> Result<Response<v1::MountStoreReply>, Status> {
        self.0.shedder.admit(SheddableCall::Mount)?;
        let one_of_few = self.0.shedder.mount_slot()?;
        let caller = StoreCaller::of(request.extensions(), &self.0.guard)?;
        let by = AuditedCaller::of(request.extensions());
        // If the caller gives up, its entry stays in the log's queue: the place is taken until that is applied.
        change!(self, Mount, request, |services| {
            caller.may_use_name(&request.name)?;
            caller.may_act_on(&services, &request.store_id).await?;
            let mut request = request;
            caller.name_endpoints(&mut request);
            let mounting = audited(by.call(&request), async move {
                let mounted = stores::mount(&services, request).await;
                drop(one_of_few);
                mounted
            });
            let ended = tokio::spawn(mounting).await;
            ended.map_err(|error| Refusal::Unknown(format!("the mount was not finished: {error}")))??
        })
    }

    async fn unmount_store(
        &self,
        request: Request<v1::UnmountStoreRequest>,
    ) -> Result<Response<v1::UnmountStoreReply>, Status> {
        let caller = StoreCaller::of(request.extensions(), &self.0.guard)?;
        audited!(self, Unmount, request, |services| {
            caller.may_act_on(&services, &request.store_id).await?;
            stores::unmount(&services, request).await?
        })
    }

    type HeartbeatStream = ReceiverStream<Result<v1::StoreHeartbeatReply, Status>>;

    async fn heartbeat(
        &self,
        request: Request<Streaming<v1::StoreHeartbeat>>,
    ) -> Result<Response<Self::HeartbeatStream>, Status> {
        let services = self.0.formed()?;
        let us = Addressee { cluster: services.coordinator.cluster(), node: self.0.node };
        let from = HeartbeatsFrom {
            host: host_of(request.extensions()),
            caller: StoreCaller::of(request.extensions(), &self.0.guard)?,
        };
        Ok(Response::new(stores::heartbeat(services, self.0.metrics.clone(), us, from, request.into_inner())))
    }

    async fn list_members(
        &self,
        request: Request<v1::ListMembersRequest>,
    ) -> Result<Response<v1::ListMembersReply>, Status> {
        call!(self, Members, request, |services| cluster::list_members(&services).await?)
    }

    async fn transfer_leader(
        &self,
        request: Request<v1::TransferLeaderRequest>,
    ) -> Result<Response<v1::TransferLeaderReply>, Status> {
        audited!(self, TransferLeader, request, |services| cluster::transfer_leader(&services, &request)
            .await?)
    }

    async fn add_member(
        &self,
        request: Request<v1::AddMemberRequest>,
    ) -> Result<Response<v1::AddMemberReply>, Status> {
        audited!(self, AddMember, request, |services| cluster::add_member(&services.members, &request)
            .await?)
    }

    async fn remove_member(
        &self,
        request: Request<v1::RemoveMemberRequest>,
    ) -> Result<Response<v1::RemoveMemberReply>, Status> {
        audited!(self, RemoveMember, request, |services| cluster::remove_member(&services.members, &request)
            .await?)
    }

    async fn get_config(
        &self,
        request: Request<v1::GetConfigRequest>,
    ) -> Result<Response<v1::GetConfigReply>, Status> {
        call!(self, GetConfig, request, |services| config::get(&services.configuration).await?)
    }

    async fn set_config(
        &self,
        request: Request<v1::SetConfigRequest>,
    ) -> Result<Response<v1::SetConfigReply>, Status> {
        audited!(self, SetConfig, request, |services| config::set(&services.configuration, &request).await?)
    }

    async fn finish_upgrade(
        &self,
        request: Request<v1::FinishUpgradeRequest>,
    ) -> Result<Response<v1::FinishUpgradeReply>, Status> {
        audited!(self, FinishUpgrade, request, |services| {
            config::finish_upgrade(&services.configuration, &request).await?
        })
    }

    async fn read_audit(
        &self,
        request: Request<v1::ReadAuditRequest>,
    ) -> Result<Response<v1::ReadAuditReply>, Status> {
        let api = &self.0;
        call!(self, ReadAudit, request, |_services| audit::read(&api.audit, &request).await?)
    }

    async fn get_security(
        &self,
        request: Request<v1::GetSecurityRequest>,
    ) -> Result<Response<v1::GetSecurityReply>, Status> {
        call!(self, GetSecurity, request, |services| security::get(&services.security).await?)
    }

    async fn set_security(
        &self,
        request: Request<v1::SetSecurityRequest>,
    ) -> Result<Response<v1::SetSecurityReply>, Status> {
        audited!(self, SetSecurity, request, |services| security::set(&services.security, request).await?)
    }

    async fn who_am_i(
        &self,
        request: Request<v1::WhoAmIRequest>,
    ) -> Result<Response<v1::WhoAmIReply>, Status> {
        let caller = security::who_is(request.extensions())?;
        call!(self, WhoAmI, request, |services| security::with_expiry(caller, &services))
    }
}
