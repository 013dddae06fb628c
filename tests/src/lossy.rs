//! A proxy in front of a master that loses replies.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use futures::{Stream, StreamExt as _};
use mc_net::{ChannelOptions, Network as _, TcpNetwork};
use mc_proto::v1::{self, master_client::MasterClient, master_server::Master, master_server::MasterServer};
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

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
        let channel = TcpNetwork.channel(behind, ChannelOptions::default()).expect("an address");
        let lost = Arc::new(Mutex::new(Lost::default()));
        let proxy =
            Proxy { master: MasterClient::new(channel), address: address.clone(), lost: lost.clone() };
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

    async fn status(&self, request: Request<v1::StatusRequest>) -> Result<Response<v1::StatusReply>, Status> {
        self.master.clone().status(request.into_inner()).await
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

    async fn batch_describe(
        &self,
        request: Request<v1::BatchDescribeRequest>,
    ) -> Result<Response<v1::BatchDescribeReply>, Status> {
        self.master.clone().batch_describe(request.into_inner()).await
    }

    async fn report_mismatch(
        &self,
        request: Request<v1::ReportMismatchRequest>,
    ) -> Result<Response<v1::ReportMismatchReply>, Status> {
        self.master.clone().report_mismatch(request.into_inner()).await
    }

    async fn list_keys(
        &self,
        request: Request<v1::ListKeysRequest>,
    ) -> Result<Response<v1::ListKeysReply>, Status> {
        self.master.clone().list_keys(request.into_inner()).await
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

    async fn remove_all(
        &self,
        request: Request<v1::RemoveAllRequest>,
    ) -> Result<Response<v1::RemoveAllReply>, Status> {
        self.master.clone().remove_all(request.into_inner()).await
    }

    async fn batch_drop_replicas(
        &self,
        request: Request<v1::BatchDropReplicasRequest>,
    ) -> Result<Response<v1::BatchDropReplicasReply>, Status> {
        self.master.clone().batch_drop_replicas(request.into_inner()).await
    }

    async fn list_tenants(
        &self,
        request: Request<v1::ListTenantsRequest>,
    ) -> Result<Response<v1::ListTenantsReply>, Status> {
        self.master.clone().list_tenants(request.into_inner()).await
    }

    async fn set_tenant(
        &self,
        request: Request<v1::SetTenantRequest>,
    ) -> Result<Response<v1::SetTenantReply>, Status> {
        self.master.clone().set_tenant(request.into_inner()).await
    }

    async fn list_members(
        &self,
        request: Request<v1::ListMembersRequest>,
    ) -> Result<Response<v1::ListMembersReply>, Status> {
        self.master.clone().list_members(request.into_inner()).await
    }

    async fn transfer_leader(
        &self,
        request: Request<v1::TransferLeaderRequest>,
    ) -> Result<Response<v1::TransferLeaderReply>, Status> {
        self.master.clone().transfer_leader(request.into_inner()).await
    }

    async fn mount_store(
        &self,
        _: Request<v1::MountStoreRequest>,
    ) -> Result<Response<v1::MountStoreReply>, Status> {
        Err(Status::unimplemented("stores talk to the master itself"))
    }

    async fn unmount_store(
        &self,
        _: Request<v1::UnmountStoreRequest>,
    ) -> Result<Response<v1::UnmountStoreReply>, Status> {
        Err(Status::unimplemented("stores talk to the master itself"))
    }

    type HeartbeatStream = Sent<v1::StoreHeartbeatReply>;
    async fn heartbeat(
        &self,
        _: Request<Streaming<v1::StoreHeartbeat>>,
    ) -> Result<Response<Self::HeartbeatStream>, Status> {
        Err(Status::unimplemented("stores talk to the master itself"))
    }

    async fn add_member(
        &self,
        _: Request<v1::AddMemberRequest>,
    ) -> Result<Response<v1::AddMemberReply>, Status> {
        Err(Status::unimplemented("people talk to the master itself"))
    }

    async fn remove_member(
        &self,
        _: Request<v1::RemoveMemberRequest>,
    ) -> Result<Response<v1::RemoveMemberReply>, Status> {
        Err(Status::unimplemented("people talk to the master itself"))
    }

    async fn get_config(
        &self,
        _: Request<v1::GetConfigRequest>,
    ) -> Result<Response<v1::GetConfigReply>, Status> {
        Err(Status::unimplemented("people talk to the master itself"))
    }

    async fn set_config(
        &self,
        _: Request<v1::SetConfigRequest>,
    ) -> Result<Response<v1::SetConfigReply>, Status> {
        Err(Status::unimplemented("people talk to the master itself"))
    }

    async fn finish_upgrade(
        &self,
        _: Request<v1::FinishUpgradeRequest>,
    ) -> Result<Response<v1::FinishUpgradeReply>, Status> {
        Err(Status::unimplemented("people talk to the master itself"))
    }
}
