//! A master that is a gRPC service over loopback and answers from the shared world.

use std::net::TcpListener;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures::Stream;
use mc_net::Network;
use mc_proto::{
    VERSIONS, status_of,
    v1::{self, BatchExistRequest, ErrorDetail, Leader, master_server::Master, master_server::MasterServer},
};
use mc_types::{ClusterId, Code, NodeId};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tonic::metadata::MetadataMap;
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status, Streaming};

use super::world::{Fault, On, Shared};

/// From this version on a master does not answer our hello, as real ones do; below, it leaves the judgement to us.
pub const REFUSES_OURS: u32 = 8;

/// A fake master's report of itself; each field can be set while it runs.
#[derive(Debug)]
pub struct Says {
    pub node: NodeId,
    pub address: String,
    /// Whom it calls the leader.
    pub leader: watch::Sender<Option<Leader>>,
    /// Another cluster than the world's.
    pub cluster: Mutex<Option<ClusterId>>,
    /// The lowest version it speaks.
    pub version: AtomicU32,
    /// Like SIGSTOP: it accepts and answers nothing.
    pub stopped: AtomicBool,
    /// Client addresses of all masters.
    pub masters: Mutex<Vec<String>>,
    /// Number of the level of TLS; 0: it does not say.
    pub tls_level: AtomicU32,
    pub hellos: AtomicU32,
    pub watches: AtomicU32,
}

/// A running master; dropping it is kill -9: its runtime goes, and with it every connection.
#[derive(Debug)]
pub struct FakeMaster {
    pub says: Arc<Says>,
    runtime: Option<Runtime>,
}

impl Drop for FakeMaster {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[derive(Clone)]
struct Service {
    says: Arc<Says>,
    world: Shared,
}

impl FakeMaster {
    pub fn start(node: u64, world: &Shared) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap(), node, world)
    }

    /// A master that listens on a network.
    pub async fn start_on(network: &dyn Network, node: u64, world: &Shared) -> Self {
        let listener = network.listen("127.0.0.1:0").await.unwrap();
        Self::serving(listener.address.to_string(), async { listener.incoming }, node, world)
    }

    /// A master at the address of one that is gone.
    pub async fn restart(address: &str, node: u64, world: &Shared) -> Self {
        let listener = loop {
            match TcpListener::bind(address) {
                Ok(listener) => break listener,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        Self::on(listener, node, world)
    }

    fn on(listener: TcpListener, node: u64, world: &Shared) -> Self {
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        // It belongs to the runtime on which it is polled.
        let incoming = async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            tokio_stream::wrappers::TcpListenerStream::new(listener)
        };
        Self::serving(address, incoming, node, world)
    }

    /// A master at an address that serves these connections.
    fn serving<C, I>(
        address: String,
        incoming: impl Future<Output = I> + Send + 'static,
        node: u64,
        world: &Shared,
    ) -> Self
    where
        C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
        I: Stream<Item = std::io::Result<C>> + Send + 'static,
    {
        let says = Arc::new(Says {
            node: NodeId(node),
            address,
            leader: watch::Sender::new(None),
            cluster: Mutex::new(None),
            version: AtomicU32::new(*VERSIONS.start()),
            stopped: AtomicBool::new(false),
            masters: Mutex::default(),
            tls_level: AtomicU32::new(0),
            hellos: AtomicU32::new(0),
            watches: AtomicU32::new(0),
        });
        let service = Service { says: Arc::clone(&says), world: Arc::clone(world) };
        let world = Arc::clone(world);
        let service = MasterServer::with_interceptor(service, move |request: Request<()>| {
            world.lock().security.bearers.push(bearer(request.metadata()));
            Ok(request)
        });
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.spawn(async move {
            let server = tonic::transport::Server::builder().add_service(service);
            server.serve_with_incoming(incoming.await).await.unwrap();
        });
        Self { says, runtime: Some(runtime) }
    }

    pub fn as_leader(&self, term: u64) -> Leader {
        Leader {
            node_id: self.says.node.to_bytes().to_vec().into(),
            address: self.says.address.clone(),
            term,
        }
    }

    pub fn names(&self, leader: Option<Leader>) {
        self.says.leader.send_replace(leader);
    }

    pub fn stop(&self, stopped: bool) {
        self.says.stopped.store(stopped, Ordering::SeqCst);
    }
}

impl Service {
    async fn alive(&self) {
        while self.says.stopped.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    fn cluster(&self) -> ClusterId {
        self.says.cluster.lock().unwrap_or(self.world.lock().cluster)
    }

    /// Refuses who means another master or cluster, and what only the leader answers.
    async fn admit(&self, caller: Option<&v1::Caller>) -> Result<(), Status> {
        self.alive().await;
        let caller = caller.ok_or_else(|| Status::internal("no caller"))?;
        let detail = |code: Code, leader| {
            status_of(&ErrorDetail {
                code: code as i32,
                message: "not here".into(),
                leader,
                ours: self.cluster().to_string(),
                theirs: "theirs".into(),
                retry_after_ms: 0,
            })
        };
        if caller.client_id.len() != 16 || caller.version_max != *VERSIONS.end() {
            return Err(Status::internal("the caller does not say who it is"));
        }
        if !caller.cluster_id.is_empty() && caller.cluster_id[..] != self.cluster().to_bytes() {
            return Err(detail(Code::WrongCluster, None));
        }
        if !caller.node_id.is_empty() && caller.node_id[..] != self.says.node.to_bytes() {
            return Err(detail(Code::WrongNode, None));
        }
        let leader = self.says.leader.borrow().clone();
        if leader.as_ref().is_some_and(|leader| leader.node_id[..] == self.says.node.to_bytes()) {
            Ok(())
        } else {
            Err(detail(Code::NotLeader, leader))
        }
    }

    async fn serve<Q, R>(
        &self,
        on: On,
        items: usize,
        request: Request<Q>,
        caller: impl Fn(&Q) -> Option<&v1::Caller>,
        apply: impl Fn(&mut super::world::World, &Q) -> R,
    ) -> Result<Response<R>, Status> {
        let request = request.into_inner();
        self.admit(caller(&request)).await?;
        while self.world.lock().held == Some(on) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let fault = self.world.lock().fault(on, items);
        let apply = || apply(&mut self.world.lock(), &request);
        match fault {
            None => Ok(Response::new(apply())),
            Some(Fault::LoseAnswer) => {
                apply();
                Err(Status::unavailable("connection reset"))
            }
            Some(Fault::NeverAnswer) => {
                apply();
                std::future::pending().await
            }
            Some(Fault::Swallow) => std::future::pending().await,
            Some(Fault::TooManyCalls) => {
                let code = Code::ResourceExhausted as i32;
                Err(status_of(&ErrorDetail { code, retry_after_ms: 60_000, ..Default::default() }))
            }
            Some(Fault::Answer(code)) => {
                Err(status_of(&ErrorDetail { code: code as i32, ..ErrorDetail::default() }))
            }
            Some(Fault::EndPut) => {
                self.world.lock().puts.clear();
                Ok(Response::new(apply()))
            }
            // What was applied before is hidden for the moment of this answer.
            Some(Fault::SayGone) => {
                let objects = std::mem::take(&mut self.world.lock().objects);
                let answer = apply();
                self.world.lock().objects = objects;
                Ok(Response::new(answer))
            }
            Some(Fault::Unmount(store)) => {
                self.world.lock().stores.remove(&store);
                Ok(Response::new(apply()))
            }
            Some(Fault::UnmountAfter(store)) => {
                self.world.lock().unmounting = Some(store);
                Ok(Response::new(apply()))
            }
            Some(Fault::LoseAnswerAndObject) => {
                apply();
                self.world.lock().objects.clear();
                Err(Status::unavailable("connection reset"))
            }
        }
    }
}

/// The header that shows a token.
fn bearer(metadata: &MetadataMap) -> Option<String> {
    metadata.get("authorization").map(|value| value.to_str().unwrap().to_owned())
}

type Events = Pin<Box<dyn Stream<Item = Result<v1::WatchEvent, Status>> + Send>>;
type Beats = Pin<Box<dyn Stream<Item = Result<v1::StoreHeartbeatReply, Status>> + Send>>;

#[tonic::async_trait]
impl Master for Service {
    type WatchStream = Events;
    type HeartbeatStream = Beats;

    async fn hello(&self, _: Request<v1::HelloRequest>) -> Result<Response<v1::HelloReply>, Status> {
        self.alive().await;
        self.says.hellos.fetch_add(1, Ordering::SeqCst);
        let version = self.says.version.load(Ordering::SeqCst);
        if version >= REFUSES_OURS {
            let ours = format!("{version}..={version}");
            let theirs = format!("{}..={}", VERSIONS.start(), VERSIONS.end());
            let code = Code::VersionSkew as i32;
            return Err(status_of(&ErrorDetail { code, ours, theirs, ..ErrorDetail::default() }));
        }
        Ok(Response::new(v1::HelloReply {
            version_min: version,
            version_max: version,
            software: "mc-master of the future".into(),
            cluster_id: self.cluster().to_bytes().to_vec().into(),
            node_id: self.says.node.to_bytes().to_vec().into(),
            leader: self.says.leader.borrow().clone(),
            masters: self.says.masters.lock().clone(),
            tls_level: self.says.tls_level.load(Ordering::SeqCst),
        }))
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> Result<Response<v1::StatusReply>, Status> {
        self.alive().await;
        let member = |(node, address): (u64, &String)| v1::MemberStatus {
            node_id: NodeId(node).to_bytes().to_vec().into(),
            client_address: address.clone(),
            ..v1::MemberStatus::default()
        };
        Ok(Response::new(v1::StatusReply {
            node_id: self.says.node.to_bytes().to_vec().into(),
            leader: self.says.leader.borrow().clone(),
            masters: (1..).zip(self.says.masters.lock().iter()).map(member).collect(),
            keys: self.world.lock().objects.len() as u64,
            ..v1::StatusReply::default()
        }))
    }

    async fn watch(&self, _: Request<v1::WatchRequest>) -> Result<Response<Events>, Status> {
        self.alive().await;
        self.says.watches.fetch_add(1, Ordering::SeqCst);
        let cluster = self.cluster();
        let says = Arc::clone(&self.says);
        let mut leader = self.says.leader.subscribe();
        leader.mark_changed();
        let events = futures::stream::unfold(leader, move |mut leader| {
            let says = Arc::clone(&says);
            async move {
                leader.changed().await.ok()?;
                let event = v1::WatchEvent {
                    leader: leader.borrow_and_update().clone(),
                    cluster_id: cluster.to_bytes().to_vec().into(),
                    stores: Vec::new(),
                    masters: says.masters.lock().clone(),
                    tls_level: says.tls_level.load(Ordering::SeqCst),
                    ..v1::WatchEvent::default()
                };
                Some((Ok(event), leader))
            }
        });
        Ok(Response::new(Box::pin(events)))
    }

    async fn batch_exist(
        &self,
        request: Request<v1::BatchExistRequest>,
    ) -> Result<Response<v1::BatchExistReply>, Status> {
        let BatchExistRequest { keys, packed, .. } = request.get_ref();
        let items = keys.len() + packed.as_ref().map_or(0, |packed| packed.lengths.len());
        self.serve(On::Exist, items, request, |q| q.caller.as_ref(), |world, q| world.exist(q)).await
    }

    async fn batch_get(
        &self,
        request: Request<v1::BatchGetRequest>,
    ) -> Result<Response<v1::BatchGetReply>, Status> {
        let items = request.get_ref().keys.len();
        self.serve(On::Get, items, request, |q| q.caller.as_ref(), |world, q| world.get(q)).await
    }

    async fn batch_describe(
        &self,
        _: Request<v1::BatchDescribeRequest>,
    ) -> Result<Response<v1::BatchDescribeReply>, Status> {
        Err(Status::unimplemented("no test of the client describes objects"))
    }

    async fn report_mismatch(
        &self,
        _: Request<v1::ReportMismatchRequest>,
    ) -> Result<Response<v1::ReportMismatchReply>, Status> {
        Ok(Response::new(v1::ReportMismatchReply {}))
    }

    async fn list_keys(
        &self,
        request: Request<v1::ListKeysRequest>,
    ) -> Result<Response<v1::ListKeysReply>, Status> {
        self.serve(On::List, 1, request, |q| q.caller.as_ref(), |world, q| world.list(q)).await
    }

    async fn batch_put_start(
        &self,
        request: Request<v1::BatchPutStartRequest>,
    ) -> Result<Response<v1::BatchPutStartReply>, Status> {
        let items = request.get_ref().items.len();
        self.serve(On::Start, items, request, |q| q.caller.as_ref(), |world, q| world.start(q)).await
    }

    async fn batch_put_end(
        &self,
        request: Request<v1::BatchPutEndRequest>,
    ) -> Result<Response<v1::BatchPutEndReply>, Status> {
        let items = request.get_ref().items.len();
        self.serve(On::End, items, request, |q| q.caller.as_ref(), |world, q| world.end(q)).await
    }

    async fn batch_put_revoke(
        &self,
        request: Request<v1::BatchPutRevokeRequest>,
    ) -> Result<Response<v1::BatchPutRevokeReply>, Status> {
        let items = request.get_ref().put_ids.len();
        self.serve(On::Revoke, items, request, |q| q.caller.as_ref(), |world, q| world.revoke(q)).await
    }

    async fn batch_remove(
        &self,
        request: Request<v1::BatchRemoveRequest>,
    ) -> Result<Response<v1::BatchRemoveReply>, Status> {
        let items = request.get_ref().items.len();
        self.serve(On::Remove, items, request, |q| q.caller.as_ref(), |world, q| world.remove(q)).await
    }

    async fn remove_all(
        &self,
        _: Request<v1::RemoveAllRequest>,
    ) -> Result<Response<v1::RemoveAllReply>, Status> {
        Err(Status::unimplemented("no test of the client calls remove_all"))
    }

    async fn batch_drop_replicas(
        &self,
        _: Request<v1::BatchDropReplicasRequest>,
    ) -> Result<Response<v1::BatchDropReplicasReply>, Status> {
        Err(Status::unimplemented("no test of the client calls batch_drop_replicas"))
    }

    async fn list_tenants(
        &self,
        request: Request<v1::ListTenantsRequest>,
    ) -> Result<Response<v1::ListTenantsReply>, Status> {
        self.admit(request.get_ref().caller.as_ref()).await?;
        Ok(Response::new(self.world.lock().security.tenants()))
    }

    async fn set_tenant(
        &self,
        request: Request<v1::SetTenantRequest>,
    ) -> Result<Response<v1::SetTenantReply>, Status> {
        self.serve(
            On::SetTenant,
            1,
            request,
            |q| q.caller.as_ref(),
            |world, q| {
                world.security.set_tenant(q);
                v1::SetTenantReply {}
            },
        )
        .await
    }

    async fn mount_store(
        &self,
        _: Request<v1::MountStoreRequest>,
    ) -> Result<Response<v1::MountStoreReply>, Status> {
        Err(Status::unimplemented("no client calls this"))
    }

    async fn unmount_store(
        &self,
        _: Request<v1::UnmountStoreRequest>,
    ) -> Result<Response<v1::UnmountStoreReply>, Status> {
        Err(Status::unimplemented("no client calls this"))
    }

    async fn heartbeat(&self, _: Request<Streaming<v1::StoreHeartbeat>>) -> Result<Response<Beats>, Status> {
        Err(Status::unimplemented("no client calls this"))
    }

    async fn list_members(
        &self,
        request: Request<v1::ListMembersRequest>,
    ) -> Result<Response<v1::ListMembersReply>, Status> {
        self.admit(request.get_ref().caller.as_ref()).await?;
        let leader = self.says.leader.borrow().clone();
        Ok(Response::new(v1::ListMembersReply { members: Vec::new(), leader }))
    }

    async fn transfer_leader(
        &self,
        request: Request<v1::TransferLeaderRequest>,
    ) -> Result<Response<v1::TransferLeaderReply>, Status> {
        self.admit(request.get_ref().caller.as_ref()).await?;
        let leader = self.says.leader.borrow().clone();
        Ok(Response::new(v1::TransferLeaderReply { leader }))
    }

    async fn add_member(
        &self,
        _: Request<v1::AddMemberRequest>,
    ) -> Result<Response<v1::AddMemberReply>, Status> {
        Err(Status::unimplemented("not asked of this fake"))
    }

    async fn remove_member(
        &self,
        _: Request<v1::RemoveMemberRequest>,
    ) -> Result<Response<v1::RemoveMemberReply>, Status> {
        Err(Status::unimplemented("not asked of this fake"))
    }

    async fn get_config(
        &self,
        _: Request<v1::GetConfigRequest>,
    ) -> Result<Response<v1::GetConfigReply>, Status> {
        Err(Status::unimplemented("not asked of this fake"))
    }

    async fn set_config(
        &self,
        _: Request<v1::SetConfigRequest>,
    ) -> Result<Response<v1::SetConfigReply>, Status> {
        Err(Status::unimplemented("not asked of this fake"))
    }

    async fn finish_upgrade(
        &self,
        _: Request<v1::FinishUpgradeRequest>,
    ) -> Result<Response<v1::FinishUpgradeReply>, Status> {
        Err(Status::unimplemented("not asked of this fake"))
    }

    async fn read_audit(
        &self,
        _: Request<v1::ReadAuditRequest>,
    ) -> Result<Response<v1::ReadAuditReply>, Status> {
        Err(Status::unimplemented("not asked of this fake"))
    }

    async fn get_security(
        &self,
        request: Request<v1::GetSecurityRequest>,
    ) -> Result<Response<v1::GetSecurityReply>, Status> {
        self.admit(request.get_ref().caller.as_ref()).await?;
        Ok(Response::new(self.world.lock().security.reply()))
    }

    async fn set_security(
        &self,
        request: Request<v1::SetSecurityRequest>,
    ) -> Result<Response<v1::SetSecurityReply>, Status> {
        let reply =
            self.serve(On::SetSecurity, 1, request, |q| q.caller.as_ref(), |world, q| world.security.set(q));
        reply.await?.into_inner().map(Response::new)
    }

    async fn who_am_i(
        &self,
        request: Request<v1::WhoAmIRequest>,
    ) -> Result<Response<v1::WhoAmIReply>, Status> {
        let bearer = bearer(request.metadata());
        self.admit(request.get_ref().caller.as_ref()).await?;
        Ok(Response::new(self.world.lock().security.who_am_i(bearer.as_deref())))
    }
}
