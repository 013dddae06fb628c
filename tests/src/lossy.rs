//! A master in front of a master that loses replies.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use futures::{Stream, StreamExt as _};
use mc_base::net::{ChannelOptions, Network as _, TcpNetwork};
use mc_proto::v1;
use mc_proto::v1::master_client::MasterClient;
use mc_proto::v1::master_server::{Master, MasterServer};
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

/// Stands before a cluster of one master and loses the reply of every call of a client once: the call reaches the master
/// and is carried out, and the client hears of a broken connection. The repetition's reply gets through, and is compared
/// with the lost one.
#[derive(Debug)]
pub struct LossyMaster {
    address: String,
    lost: Arc<Mutex<Lost>>,
    server: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Lost {
    /// The reply that was lost, by what was asked.
    replies: HashMap<String, String>,
    repeated: u64,
    changed: Vec<String>,
}

impl LossyMaster {
    /// Listens on a free port, in front of the master at `behind`.
    ///
    /// # Panics
    /// When there is no port.
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

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Replies that were lost so far.
    #[must_use]
    pub fn lost(&self) -> usize {
        self.lost.lock().unwrap().replies.len()
    }

    /// Calls that came again after their reply was lost.
    #[must_use]
    pub fn repeated(&self) -> u64 {
        self.lost.lock().unwrap().repeated
    }

    /// Puts whose repetition got another answer than the one that was lost.
    #[must_use]
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

impl Proxy {
    /// Loses `reply` if `what` is asked for the first time. `answer` is the part of the reply that has to be the same
    /// when the call comes again; `None` where the world may have moved on.
    fn pass<T>(&self, what: String, answer: Option<String>, reply: T) -> Result<T, Status> {
        let mut lost = self.lost.lock().unwrap();
        match lost.replies.get(&what).cloned() {
            None => {
                lost.replies.insert(what, answer.unwrap_or_default());
                Err(Status::unavailable("connection reset by the test"))
            }
            Some(before) => {
                lost.repeated += 1;
                if !before.is_empty() && answer.as_ref() != Some(&before) {
                    let answer = answer.unwrap_or_default();
                    lost.changed.push(format!("{what}: first {before}, then {answer}"));
                }
                Ok(reply)
            }
        }
    }

    /// The proxy is all that its clients may know of.
    fn leader(&self, leader: Option<v1::Leader>) -> Option<v1::Leader> {
        leader.map(|leader| v1::Leader { address: self.address.clone(), ..leader })
    }
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
        let what = format!("exist {:?}", request.keys);
        let reply = self.master.clone().batch_exist(request).await?;
        self.pass(what, None, reply)
    }

    async fn batch_get(
        &self,
        request: Request<v1::BatchGetRequest>,
    ) -> Result<Response<v1::BatchGetReply>, Status> {
        let request = request.into_inner();
        let what = format!("get {:?}", request.keys);
        let reply = self.master.clone().batch_get(request).await?;
        self.pass(what, None, reply)
    }

    async fn batch_put_start(
        &self,
        request: Request<v1::BatchPutStartRequest>,
    ) -> Result<Response<v1::BatchPutStartReply>, Status> {
        let request = request.into_inner();
        let what = format!("start {:?}", request.items.iter().map(|item| &item.put_id).collect::<Vec<_>>());
        let reply = self.master.clone().batch_put_start(request).await?;
        // Places; grants carry the time at which they were made. A key that existed may be gone when the call comes again,
        // but a put that was started stays so.
        let results = &reply.get_ref().results;
        let answer = results.iter().all(|result| result.code == 0).then(|| format!("{results:?}"));
        self.pass(what, answer, reply)
    }

    async fn batch_put_end(
        &self,
        request: Request<v1::BatchPutEndRequest>,
    ) -> Result<Response<v1::BatchPutEndReply>, Status> {
        let request = request.into_inner();
        let what = format!("end {:?}", request.items.iter().map(|item| &item.put_id).collect::<Vec<_>>());
        let reply = self.master.clone().batch_put_end(request).await?;
        self.pass(what, None, reply)
    }

    async fn batch_put_revoke(
        &self,
        request: Request<v1::BatchPutRevokeRequest>,
    ) -> Result<Response<v1::BatchPutRevokeReply>, Status> {
        let request = request.into_inner();
        let what = format!("revoke {:?}", request.put_ids);
        let reply = self.master.clone().batch_put_revoke(request).await?;
        self.pass(what, None, reply)
    }

    async fn batch_remove(
        &self,
        request: Request<v1::BatchRemoveRequest>,
    ) -> Result<Response<v1::BatchRemoveReply>, Status> {
        let request = request.into_inner();
        let what = format!("remove {:?}", request.items);
        let reply = self.master.clone().batch_remove(request).await?;
        self.pass(what, None, reply)
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
