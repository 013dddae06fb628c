//! Test network on loopback with names of its own: a name leads to a running process, and nowhere once that has ended.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use futures::future::BoxFuture;
use hyper_util::rt::TokioIo;
use mc_net::{ChannelOptions, Connection, Listener, Network, TcpNetwork, endpoint};
use mc_proto::v1::raft_client::RaftClient;
use mc_proto::v1::raft_server::{Raft, RaftServer};
use mc_proto::v1::*;
use mc_types::{ClusterId, NodeId};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tonic::transport::{Channel, Server, Uri};
use tonic::{Request, Response, Status, Streaming};

use super::LONG;
use crate::config::Resolver;
use crate::formation::FormationService;

/// Which process a host name or address leads to, and the records of names that have several.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    hosts: Arc<Mutex<HashMap<String, SocketAddr>>>,
    records: Arc<Mutex<HashMap<String, Vec<SocketAddr>>>>,
}

impl Names {
    pub(super) fn set(&self, host: &str, address: SocketAddr) {
        self.hosts.lock().insert(host.to_owned(), address);
    }

    pub(super) fn remove(&self, host: &str) {
        self.hosts.lock().remove(host);
    }

    /// Makes `alias` lead where `host` leads now.
    pub(super) fn alias(&self, alias: &str, host: &str) {
        let address = self.hosts.lock()[host];
        self.set(alias, address);
    }

    pub(super) fn set_records(&self, name: &str, ips: &[&str]) {
        let records = ips.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 50055)).collect();
        self.records.lock().insert(name.to_owned(), records);
    }

    fn find(&self, host: &str) -> io::Result<SocketAddr> {
        self.hosts.lock().get(host).copied().ok_or_else(|| io::Error::other("nobody listens there"))
    }

    /// Returns a resolver: every name has one record, except for those that were given several.
    pub(super) fn resolver(&self) -> Resolver {
        let records = Arc::clone(&self.records);
        Arc::new(move |address| {
            let found = records.lock().get(address.host()).cloned();
            Box::pin(async move {
                Ok(found.unwrap_or_else(|| vec![SocketAddr::new([127, 0, 0, 1].into(), address.port())]))
            })
        })
    }
}

#[derive(Debug)]
pub(super) struct TestNetwork(pub(super) Names);

impl Network for TestNetwork {
    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Listener>> {
        Box::pin(async move { TcpNetwork.listen(address).await })
    }

    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Connection>> {
        TcpNetwork.connect(address)
    }

    fn channel(&self, address: &str, options: ChannelOptions) -> Result<Channel, tonic::transport::Error> {
        let names = self.0.clone();
        let connector = tower::service_fn(move |uri: Uri| {
            let found = names.find(uri.host().unwrap_or_default().trim_matches(['[', ']']));
            async move { io::Result::Ok(TokioIo::new(TcpStream::connect(found?).await?)) }
        });
        Ok(endpoint(address, options)?.connect_with_connector_lazy(connector))
    }
}

/// Calls a node as the leader of `cluster` would, until the node takes part.
pub(super) async fn call_until_admitted(names: &Names, raft: &str, cluster: ClusterId, to: NodeId) {
    let mut client =
        RaftClient::new(TestNetwork(names.clone()).channel(raft, ChannelOptions::default()).unwrap());
    let admitted = async {
        while client.append(call(cluster, to)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    // A test that kills the called node does not wait for this.
    let _ = tokio::time::timeout(LONG, admitted).await;
}

pub(super) fn call(cluster: ClusterId, to: NodeId) -> AppendRequest {
    let envelope = Envelope {
        cluster_id: cluster.to_bytes().to_vec().into(),
        to: to.to_bytes().to_vec().into(),
        ..Envelope::default()
    };
    AppendRequest { envelope: Some(envelope), ..AppendRequest::default() }
}

pub(super) async fn serve(listener: Listener, served: Served, stopped: oneshot::Receiver<()>) {
    let stopped = async {
        // A test that is over drops the sender.
        let _ = stopped.await;
    };
    Server::builder()
        .add_service(RaftServer::new(served))
        .serve_with_incoming_shutdown(listener.incoming, stopped)
        .await
        .unwrap();
}

/// The Raft service with formation behind it, and no Raft.
pub(super) struct Served(pub(super) Arc<FormationService>);

#[tonic::async_trait]
impl Raft for Served {
    type AppendStreamStream = Pin<Box<dyn Stream<Item = Result<AppendReply, Status>> + Send>>;

    async fn meet(&self, request: Request<MeetRequest>) -> Result<Response<MeetReply>, Status> {
        self.0.meet(request.into_inner()).await.map(Response::new)
    }

    async fn found(&self, request: Request<FoundRequest>) -> Result<Response<FoundReply>, Status> {
        self.0.found(request.into_inner()).await.map(Response::new)
    }

    async fn append(&self, request: Request<AppendRequest>) -> Result<Response<AppendReply>, Status> {
        let envelope = request.into_inner().envelope.unwrap_or_default();
        let cluster = ClusterId::from_bytes(&envelope.cluster_id).unwrap();
        self.0.admit(cluster, NodeId::from_bytes(&envelope.to).unwrap())?;
        Ok(Response::new(AppendReply::default()))
    }

    async fn append_stream(
        &self,
        _: Request<Streaming<AppendRequest>>,
    ) -> Result<Response<Self::AppendStreamStream>, Status> {
        Err(Status::unimplemented("append_stream"))
    }

    async fn vote(&self, _: Request<VoteRequest>) -> Result<Response<VoteReply>, Status> {
        Err(Status::unimplemented("vote"))
    }

    async fn pre_vote(&self, _: Request<VoteRequest>) -> Result<Response<VoteReply>, Status> {
        Err(Status::unimplemented("pre_vote"))
    }

    async fn install_snapshot(
        &self,
        _: Request<Streaming<SnapshotPiece>>,
    ) -> Result<Response<SnapshotReply>, Status> {
        Err(Status::unimplemented("install_snapshot"))
    }

    async fn transfer_leader(
        &self,
        _: Request<RaftTransferLeaderRequest>,
    ) -> Result<Response<RaftTransferLeaderReply>, Status> {
        Err(Status::unimplemented("transfer_leader"))
    }
}
