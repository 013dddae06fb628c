//! A proxy in front of a master that loses replies.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use futures::{Stream, StreamExt as _};
use mc_net::{Network as _, TcpNetwork};
use mc_proto::v1::{self, master_client::MasterClient, master_server::Master, master_server::MasterServer};
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

use crate::by_hand;

/// A proxy in front of a cluster of one master that loses the first reply of every client call.
///
/// The call reaches the master and is carried out, and the client sees a broken connection. The reply to the repeated
/// call gets through. Where the contract promises the same answer, it is compared with the lost one.
///
/// Calls carry no number of their own. A retry is the same request from the same client, in which only `caller` may
/// have changed. Whether such a request is a retry or a new call follows from its kind:
///
/// - Starts, ends and revokes name put ids, which are drawn at random for each put. The same request is therefore a
///   retry, however late and however often it comes.
/// - Exists and gets name keys alone. A client that makes one call after the other repeats a call until it is answered.
///   So the request that follows a lost reply is its retry, and the next one is a new call. If a client asks the same
///   thing twice at a time, one of the two replies may get through at once.
/// - Removes name keys, too. The library never repeats a remove, because the repetition could remove a value that
///   another client has put meanwhile. So each is a new call, and its caller never learns the outcome.
#[derive(Debug)]
pub struct LossyMaster {
    address: String,
    lost: Arc<Mutex<Lost>>,
    server: JoinHandle<()>,
}

/// The master's answer to each item that a repetition must get again; `None` where the state may have changed.
type Answers = Vec<Option<String>>;

#[derive(Debug, Default)]
struct Lost {
    /// Calls that name put ids, and their lost answers.
    named: HashMap<String, Answers>,
    /// Calls without put ids whose reply was lost and that have not been repeated yet.
    awaited: HashSet<String>,
    replies: u64,
    repeated: u64,
    removes: u64,
    changed: Vec<String>,
}

impl LossyMaster {
    /// Starts a proxy on a free port, in front of the master at `behind`.
    pub async fn start(behind: &str) -> Self {
        let listener = TcpNetwork.listen("127.0.0.1:0").await.expect("a free port");
        let address = listener.address.to_string();
        let lost = Arc::new(Mutex::new(Lost::default()));
        let proxy =
            Proxy { master: by_hand::master_at(behind), address: address.clone(), lost: lost.clone() };
        let server = tonic::transport::Server::builder()
            .add_service(MasterServer::new(proxy))
            .serve_with_incoming(listener.incoming);
        let server = tokio::spawn(async move { server.await.expect("the proxy serves") });
        Self { address, lost, server }
    }

    /// Returns the address for clients.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the number of replies that were lost so far.
    pub fn lost(&self) -> u64 {
        self.lost.lock().unwrap().replies
    }

    /// Returns the number of calls that were repeated after their reply was lost.
    pub fn repeated(&self) -> u64 {
        self.lost.lock().unwrap().repeated
    }

    /// Returns the number of removes received; each has lost its reply.
    pub fn removes(&self) -> u64 {
        self.lost.lock().unwrap().removes
    }

    /// Describes the starts, ends and revokes whose repetition got another answer than the lost one.
    pub fn changed_answers(&self) -> Vec<String> {
        self.lost.lock().unwrap().changed.clone()
    }
}

impl Drop for LossyMaster {
    fn drop(&mut self) {
        self.server.abort();
    }
}

struct Proxy {
    master: MasterClient<Channel>,
    address: String,
    lost: Arc<Mutex<Lost>>,
}

impl Lost {
    fn lose<T>(&mut self) -> Result<T, Status> {
        self.replies += 1;
        Err(Status::unavailable("connection reset by the test"))
    }
}

impl Proxy {
    /// Loses the first reply of a call that names put ids, and compares it with those of the repetitions.
    fn lose_once<T>(&self, call: String, answers: Answers, reply: T) -> Result<T, Status> {
        let mut lost = self.lost.lock().unwrap();
        let Some(first) = lost.named.get(&call) else {
            lost.named.insert(call, answers);
            return lost.lose();
        };
        let promised = |(first, now): (&Option<String>, &Option<String>)| first.is_none() || first == now;
        let same = first.len() == answers.len() && first.iter().zip(&answers).all(promised);
        let changed = (!same).then(|| format!("{call}: first {first:?}, then {answers:?}"));
        lost.changed.extend(changed);
        lost.repeated += 1;
        Ok(reply)
    }

    /// Loses the reply of a read, and lets the reply of its repetition pass.
    fn lose_in_turn<T>(&self, call: String, reply: T) -> Result<T, Status> {
        let mut lost = self.lost.lock().unwrap();
        if lost.awaited.remove(&call) {
            lost.repeated += 1;
            return Ok(reply);
        }
        lost.awaited.insert(call);
        lost.lose()
    }

    /// Loses the reply of a remove.
    fn lose_always<T>(&self) -> Result<T, Status> {
        let mut lost = self.lost.lock().unwrap();
        lost.removes += 1;
        lost.lose()
    }

    /// Replaces the leader's address by the proxy's, the only address that clients may know.
    fn leader(&self, leader: Option<v1::Leader>) -> Option<v1::Leader> {
        leader.map(|leader| v1::Leader { address: self.address.clone(), ..leader })
    }
}

/// Returns the key of a call: its kind, its client and its request.
fn call_of(what: &str, caller: Option<&v1::Caller>, asked: &impl fmt::Debug) -> String {
    let client = caller.map(|caller| &caller.client_id[..]).unwrap_or_default();
    format!("{what} of client {client:02x?}: {asked:?}")
}

/// Returns the answers to ends and revokes, which a repetition must get again. The master remembers a put's outcome up
/// to its deadline, and its client repeats no call after that. A put that was revoked is answered like one that was
/// never known.
fn all_promised(results: &[v1::PutEndResult]) -> Answers {
    results.iter().map(|result| Some(result.code.to_string())).collect()
}

/// Methods that are the master's own, written as `async_trait` writes an async method, because it does not look into a macro.
macro_rules! passed_on {
    ($($method:ident($request:ident) -> $reply:ident;)*) => {
        $(
            fn $method<'a, 'b>(
                &'a self,
                request: Request<v1::$request>,
            ) -> BoxFuture<'b, Result<Response<v1::$reply>, Status>>
            where
                'a: 'b,
                Self: 'b,
            {
                let mut master = self.master.clone();
                Box::pin(async move { master.$method(request.into_inner()).await })
            }
        )*
    };
}

type Sent<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Master for Proxy {
    async fn hello(&self, request: Request<v1::HelloRequest>) -> Result<Response<v1::HelloReply>, Status> {
        let mut reply = self.master.clone().hello(request.into_inner()).await?.into_inner();
        reply.leader = self.leader(reply.leader);
        reply.masters = vec![self.address.clone()];
        Ok(Response::new(reply))
    }

    type WatchStream = Sent<v1::WatchEvent>;
    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let events = self.master.clone().watch(request.into_inner()).await?.into_inner();
        let address = self.address.clone();
        let events = events.map(move |event| {
            let mut event = event?;
            event.leader = event.leader.map(|leader| v1::Leader { address: address.clone(), ..leader });
            event.masters = vec![address.clone()];
            Ok(event)
        });
        Ok(Response::new(Box::pin(events)))
    }

    async fn batch_exist(
        &self,
        request: Request<v1::BatchExistRequest>,
    ) -> Result<Response<v1::BatchExistReply>, Status> {
        let request = request.into_inner();
        let call = call_of("exist", request.caller.as_ref(), &(&request.keys, &request.packed));
        let reply = self.master.clone().batch_exist(request).await?;
        self.lose_in_turn(call, reply)
    }

    async fn batch_get(
        &self,
        request: Request<v1::BatchGetRequest>,
    ) -> Result<Response<v1::BatchGetReply>, Status> {
        let request = request.into_inner();
        let call = call_of("get", request.caller.as_ref(), &request.keys);
        let reply = self.master.clone().batch_get(request).await?;
        self.lose_in_turn(call, reply)
    }

    async fn batch_put_start(
        &self,
        request: Request<v1::BatchPutStartRequest>,
    ) -> Result<Response<v1::BatchPutStartReply>, Status> {
        let request = request.into_inner();
        let call = call_of("start", request.caller.as_ref(), &request.items);
        let reply = self.master.clone().batch_put_start(request).await?;
        // Compare the placements only: grants carry the time at which they were made. A key that existed may be gone
        // when the call is repeated, but a started put stays started.
        let started = |result: &v1::PutStartResult| {
            (result.code == mc_types::Code::Ok as i32).then(|| format!("{:?}", result.replicas))
        };
        let answers = reply.get_ref().results.iter().map(started).collect();
        self.lose_once(call, answers, reply)
    }

    async fn batch_put_end(
        &self,
        request: Request<v1::BatchPutEndRequest>,
    ) -> Result<Response<v1::BatchPutEndReply>, Status> {
        let request = request.into_inner();
        let call = call_of("end", request.caller.as_ref(), &request.items);
        let reply = self.master.clone().batch_put_end(request).await?;
        self.lose_once(call, all_promised(&reply.get_ref().results), reply)
    }

    async fn batch_put_revoke(
        &self,
        request: Request<v1::BatchPutRevokeRequest>,
    ) -> Result<Response<v1::BatchPutRevokeReply>, Status> {
        let request = request.into_inner();
        let call = call_of("revoke", request.caller.as_ref(), &request.put_ids);
        let reply = self.master.clone().batch_put_revoke(request).await?;
        self.lose_once(call, all_promised(&reply.get_ref().results), reply)
    }

    async fn batch_remove(
        &self,
        request: Request<v1::BatchRemoveRequest>,
    ) -> Result<Response<v1::BatchRemoveReply>, Status> {
        self.master.clone().batch_remove(request.into_inner()).await?;
        self.lose_always()
    }

    type HeartbeatStream = Sent<v1::StoreHeartbeatReply>;
    async fn heartbeat(
        &self,
        _: Request<Streaming<v1::StoreHeartbeat>>,
    ) -> Result<Response<Self::HeartbeatStream>, Status> {
        Err(Status::unimplemented("stores talk to the master itself"))
    }

    mc_testkit::not_served! {
        "stores talk to the master itself":
        mount_store(MountStoreRequest) -> MountStoreReply;
        unmount_store(UnmountStoreRequest) -> UnmountStoreReply;
    }

    mc_testkit::not_served! {
        "people talk to the master itself":
        add_member(AddMemberRequest) -> AddMemberReply;
        remove_member(RemoveMemberRequest) -> RemoveMemberReply;
        get_config(GetConfigRequest) -> GetConfigReply;
        set_config(SetConfigRequest) -> SetConfigReply;
        finish_upgrade(FinishUpgradeRequest) -> FinishUpgradeReply;
        get_security(GetSecurityRequest) -> GetSecurityReply;
        set_security(SetSecurityRequest) -> SetSecurityReply;
        who_am_i(WhoAmIRequest) -> WhoAmIReply;
        read_audit(ReadAuditRequest) -> ReadAuditReply;
    }

    passed_on! {
        status(StatusRequest) -> StatusReply;
        batch_describe(BatchDescribeRequest) -> BatchDescribeReply;
        report_mismatch(ReportMismatchRequest) -> ReportMismatchReply;
        list_keys(ListKeysRequest) -> ListKeysReply;
        remove_all(RemoveAllRequest) -> RemoveAllReply;
        batch_drop_replicas(BatchDropReplicasRequest) -> BatchDropReplicasReply;
        list_tenants(ListTenantsRequest) -> ListTenantsReply;
        set_tenant(SetTenantRequest) -> SetTenantReply;
        list_members(ListMembersRequest) -> ListMembersReply;
        transfer_leader(TransferLeaderRequest) -> TransferLeaderReply;
    }
}
