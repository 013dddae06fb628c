use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use mc_net::{Network as _, TcpNetwork};
use mc_proto::v1::{self, master_server::Master, master_server::MasterServer};
use mc_testkit::Ports;
use mc_types::{ClusterId, Code, GrantKey, NodeId, STORE_INCARNATION, SegmentEpoch};
use tonic::{Request, Response, Status, Streaming};

/// Event at a store, and at which master (by its place).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Mount {
        master: usize,
        epoch: SegmentEpoch,
        key: GrantKey,
        tcp: String,
        segments: Vec<u64>,
        incarnation: Option<String>,
    },
    Beat {
        master: usize,
        epoch: SegmentEpoch,
    },
    Unmount {
        master: usize,
        epoch: SegmentEpoch,
    },
}

/// State that all masters of the cluster agree on and the test changes.
pub struct Agreed {
    pub cluster: ClusterId,
    pub term: u64,
    pub leader: Option<usize>,
    pub mounted: BTreeSet<SegmentEpoch>,
    pub dead: BTreeSet<SegmentEpoch>,
    pub events: Vec<Event>,
    /// Hello and Watch tell nobody of the leader: only redirects do.
    pub silent: bool,
    /// Leader that Hello and Watch name instead, as a master that hears late.
    pub late_news: Option<v1::Leader>,
    /// Refusal of every mount.
    pub mounts_refused: Option<Code>,
    /// Order and time that mounts are answered with.
    pub order: u64,
    pub time_ms: u64,
    /// Number of heartbeat streams that were opened.
    pub streams: usize,
    /// Callers that the next answer to a heartbeat shuts out.
    pub shut_out: Option<v1::ShutOut>,
    /// Last TLS report of a store.
    pub tls: Option<v1::TlsReport>,
    addresses: Vec<String>,
}

/// Masters, each on a runtime of its own, so that one can be killed with all its connections.
pub struct FakeCluster {
    agreed: Arc<Mutex<Agreed>>,
    addresses: Vec<String>,
    running: Vec<Option<tokio::runtime::Runtime>>,
    /// Keeps the ports from other tests, also while a master is killed.
    _ports: Ports,
}

impl FakeCluster {
    /// `masters` of them, none running, the first to lead; their ports are free ones.
    pub fn reserve(masters: usize) -> Self {
        let mut ports = Ports::default();
        let addresses: Vec<String> = (0..masters).map(|_| ports.address()).collect();
        let agreed = Agreed {
            cluster: ClusterId(0xc1),
            term: 1,
            leader: Some(0),
            mounted: BTreeSet::new(),
            dead: BTreeSet::new(),
            events: Vec::new(),
            silent: false,
            late_news: None,
            mounts_refused: None,
            order: 7 << 32,
            time_ms: 1_000,
            streams: 0,
            shut_out: None,
            tls: None,
            addresses: addresses.clone(),
        };
        let running = (0..masters).map(|_| None).collect();
        Self { agreed: Arc::new(Mutex::new(agreed)), addresses, running, _ports: ports }
    }

    pub fn start(masters: usize) -> Self {
        let mut cluster = Self::reserve(masters);
        (0..masters).for_each(|master| cluster.run(master));
        cluster
    }

    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    pub fn agreed(&self) -> MutexGuard<'_, Agreed> {
        self.agreed.lock().unwrap()
    }

    pub fn run(&mut self, master: usize) {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let fake = Fake { place: master, agreed: self.agreed.clone() };
        let address = self.addresses[master].clone();
        runtime.spawn(async move {
            // The port is reserved, but something that looked for a free one may hold it for a moment.
            let mut listener = TcpNetwork.listen(&address).await;
            for _ in 0..500 {
                if listener.is_ok() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
                listener = TcpNetwork.listen(&address).await;
            }
            let listener = listener.unwrap();
            tonic::transport::Server::builder()
                .add_service(MasterServer::new(fake))
                .serve_with_incoming(listener.incoming)
                .await
                .unwrap();
        });
        self.running[master] = Some(runtime);
    }

    /// Gone, as by kill -9: its port is closed and every connection broken.
    pub fn kill(&mut self, master: usize) {
        if let Some(runtime) = self.running[master].take() {
            runtime.shutdown_background();
        }
    }

    pub fn elect(&self, master: usize) {
        let mut agreed = self.agreed();
        agreed.term += 1;
        agreed.leader = Some(master);
    }

    pub fn count(&self, wanted: impl Fn(&Event) -> bool) -> usize {
        self.agreed().events.iter().filter(|event| wanted(event)).count()
    }

    pub fn beats(&self, at: usize) -> usize {
        self.count(|event| matches!(event, Event::Beat { master, .. } if *master == at))
    }

    pub fn mounts(&self) -> Vec<Event> {
        self.agreed().events.iter().filter(|event| matches!(event, Event::Mount { .. })).cloned().collect()
    }
}

impl Drop for FakeCluster {
    fn drop(&mut self) {
        (0..self.running.len()).for_each(|master| self.kill(master));
    }
}

impl Agreed {
    fn leader(&self) -> Option<v1::Leader> {
        let leader = self.leader?;
        Some(v1::Leader { node_id: node(leader), address: self.addresses[leader].clone(), term: self.term })
    }

    fn told(&self) -> Option<v1::Leader> {
        if self.silent { None } else { self.late_news.clone().or_else(|| self.leader()) }
    }
}

fn node(place: usize) -> Bytes {
    Bytes::copy_from_slice(&NodeId(place as u64 + 1).to_bytes())
}

struct Fake {
    place: usize,
    agreed: Arc<Mutex<Agreed>>,
}

impl Fake {
    /// Checks the caller, as every master does before it answers as the leader.
    fn as_leader(&self, caller: Option<&v1::Caller>) -> Result<MutexGuard<'_, Agreed>, Status> {
        let agreed = self.agreed.lock().unwrap();
        let caller = caller.expect("every request names its caller");
        let refuse = |code: Code, leader| {
            let message = format!("{code:?}");
            Err(mc_proto::status_of(&v1::ErrorDetail {
                code: code.into(),
                message,
                leader,
                ..Default::default()
            }))
        };
        assert!(!caller.cluster_id.is_empty(), "a store knows the cluster before it changes anything there");
        if caller.cluster_id[..] != agreed.cluster.to_bytes() {
            return refuse(Code::WrongCluster, None);
        }
        if agreed.leader != Some(self.place) {
            return refuse(Code::NotLeader, agreed.leader());
        }
        if caller.node_id != node(self.place) {
            return refuse(Code::WrongNode, None);
        }
        Ok(agreed)
    }
}

type Sent<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Master for Fake {
    async fn hello(&self, _: Request<v1::HelloRequest>) -> Result<Response<v1::HelloReply>, Status> {
        let agreed = self.agreed.lock().unwrap();
        Ok(Response::new(v1::HelloReply {
            version_min: 1,
            version_max: 1,
            software: "fake".into(),
            cluster_id: Bytes::copy_from_slice(&agreed.cluster.to_bytes()),
            node_id: node(self.place),
            leader: agreed.told(),
            masters: agreed.addresses.clone(),
            tls_level: 0,
        }))
    }

    type WatchStream = Sent<v1::WatchEvent>;
    async fn watch(&self, _: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let agreed = self.agreed.clone();
        let mut last = None;
        let stream = futures::stream::unfold((), move |()| {
            let agreed = agreed.clone();
            let seen = last.clone();
            let now = agreed.lock().unwrap().told();
            last = Some(now.clone());
            async move {
                let mut now = now;
                // A change is told within a millisecond, as a real master does.
                while seen.as_ref() == Some(&now) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    now = agreed.lock().unwrap().told();
                }
                let cluster_id = Bytes::copy_from_slice(&agreed.lock().unwrap().cluster.to_bytes());
                let event = v1::WatchEvent { leader: now, cluster_id, ..Default::default() };
                Some((Ok(event), ()))
            }
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn mount_store(
        &self,
        request: Request<v1::MountStoreRequest>,
    ) -> Result<Response<v1::MountStoreReply>, Status> {
        let request = request.into_inner();
        let mut agreed = self.as_leader(request.caller.as_ref())?;
        let epoch = SegmentEpoch::from_bytes(&request.epoch).unwrap();
        if agreed.dead.contains(&epoch) {
            let code = Code::StoreEpochDead.into();
            return Err(mc_proto::status_of(&v1::ErrorDetail { code, ..Default::default() }));
        }
        if let Some(code) = agreed.mounts_refused {
            return Err(mc_proto::status_of(&v1::ErrorDetail { code: code.into(), ..Default::default() }));
        }
        agreed.mounted.insert(epoch);
        agreed.events.push(Event::Mount {
            master: self.place,
            epoch,
            key: GrantKey(request.grant_key[..].try_into().unwrap()),
            tcp: request.endpoints[0].address.clone(),
            segments: request.segment_bytes,
            incarnation: request.endpoints[0].attributes.get(STORE_INCARNATION).cloned(),
        });
        Ok(Response::new(v1::MountStoreReply {
            cluster_time_ms: agreed.time_ms,
            heartbeat_ms: 20,
            cluster_id: Bytes::copy_from_slice(&agreed.cluster.to_bytes()),
            order: agreed.order,
        }))
    }

    async fn unmount_store(
        &self,
        request: Request<v1::UnmountStoreRequest>,
    ) -> Result<Response<v1::UnmountStoreReply>, Status> {
        let request = request.into_inner();
        let mut agreed = self.as_leader(request.caller.as_ref())?;
        let epoch = SegmentEpoch::from_bytes(&request.epoch).unwrap();
        agreed.mounted.remove(&epoch);
        agreed.dead.insert(epoch);
        agreed.events.push(Event::Unmount { master: self.place, epoch });
        Ok(Response::new(v1::UnmountStoreReply {}))
    }

    type HeartbeatStream = Sent<v1::StoreHeartbeatReply>;
    async fn heartbeat(
        &self,
        request: Request<Streaming<v1::StoreHeartbeat>>,
    ) -> Result<Response<Self::HeartbeatStream>, Status> {
        self.agreed.lock().unwrap().streams += 1;
        let beats = request.into_inner();
        let fake = Self { place: self.place, agreed: self.agreed.clone() };
        let replies = futures::stream::unfold((fake, beats), |(fake, mut beats)| async move {
            let beat = beats.message().await.ok()??;
            let reply = fake.answer(&beat);
            Some((reply, (fake, beats)))
        });
        Ok(Response::new(Box::pin(replies)))
    }

    mc_testkit::not_served! {
        "not asked by stores":
        status(StatusRequest) -> StatusReply;
        batch_exist(BatchExistRequest) -> BatchExistReply;
        batch_get(BatchGetRequest) -> BatchGetReply;
        batch_describe(BatchDescribeRequest) -> BatchDescribeReply;
        report_mismatch(ReportMismatchRequest) -> ReportMismatchReply;
        list_keys(ListKeysRequest) -> ListKeysReply;
        batch_put_start(BatchPutStartRequest) -> BatchPutStartReply;
        batch_put_end(BatchPutEndRequest) -> BatchPutEndReply;
        batch_put_revoke(BatchPutRevokeRequest) -> BatchPutRevokeReply;
        batch_remove(BatchRemoveRequest) -> BatchRemoveReply;
        remove_all(RemoveAllRequest) -> RemoveAllReply;
        batch_drop_replicas(BatchDropReplicasRequest) -> BatchDropReplicasReply;
        list_tenants(ListTenantsRequest) -> ListTenantsReply;
        set_tenant(SetTenantRequest) -> SetTenantReply;
        list_members(ListMembersRequest) -> ListMembersReply;
        transfer_leader(TransferLeaderRequest) -> TransferLeaderReply;
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
}

impl Fake {
    fn answer(&self, beat: &v1::StoreHeartbeat) -> Result<v1::StoreHeartbeatReply, Status> {
        let mut agreed = self.as_leader(beat.caller.as_ref())?;
        let epoch = SegmentEpoch::from_bytes(&beat.epoch).unwrap();
        agreed.events.push(Event::Beat { master: self.place, epoch });
        if beat.tls.is_some() {
            agreed.tls.clone_from(&beat.tls);
        }
        Ok(v1::StoreHeartbeatReply {
            sequence: beat.sequence,
            cluster_time_ms: 1_000 + beat.sequence,
            term: agreed.term,
            cluster_id: Bytes::copy_from_slice(&agreed.cluster.to_bytes()),
            mounted: agreed.mounted.contains(&epoch),
            dead: agreed.dead.contains(&epoch),
            spread_ms: 0,
            tls_level: 0,
            shut_out: agreed.shut_out.take(),
            grant_key_may_change: false,
        })
    }
}
