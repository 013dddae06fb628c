//! A cluster for tests.

#![allow(clippy::unwrap_used, reason = "a cluster for tests; shipped builds do not have it")]

#[cfg(test)]
pub(crate) mod gate;
pub mod mem_log;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use mc_index::{CLUSTER_VERSION, Command, Op, Stamp};
use mc_log::{LogId, MasterNode, Proposal, VoteTiming};
use mc_net::{Guard, Network, TcpNetwork};
use mc_proto::v1;
use mc_testkit::{Link, Links, eventually};
use mc_types::{Clock, ClusterId, ClusterTime, NodeId};
use metrics::Histogram;
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::Status;

use crate::apply::audit::AuditSink;
use crate::apply::snapshot_limits::SnapshotLimits;
use crate::network::server::rpc_times::RpcTimes;
use crate::network::server::service::{Formation, RaftService};
use crate::node::RaftNode;
use crate::node::config::{RaftNodeConfig, RaftStartError};
use crate::snapshots::{Disk, FileSystem};
use crate::timing::RaftTiming;
use mem_log::MemLog;

pub const CLUSTER: ClusterId = ClusterId(0xc1);

pub const NO_CLUSTER: &str = "this node takes part in no cluster";

/// Time limit of a commit, long enough for a machine that is busy with other builds.
const COMMIT: Duration = Duration::from_secs(60);

/// Metrics that are not read.
pub fn unread_metrics() -> RpcTimes {
    RpcTimes::new(|_| Histogram::noop())
}

/// A formation without a cluster: it refuses every call.
pub struct NoFormation;

#[tonic::async_trait]
impl Formation for NoFormation {
    async fn meet(&self, _: v1::MeetRequest) -> Result<v1::MeetReply, Status> {
        Err(Status::unimplemented("meet"))
    }
    async fn found(&self, _: v1::FoundRequest) -> Result<v1::FoundReply, Status> {
        Err(Status::unimplemented("found"))
    }

    fn admit(&self, _: ClusterId, _: NodeId) -> Result<(), Status> {
        Err(Status::unavailable(NO_CLUSTER))
    }
}

/// A master that forms nothing, and says who it is and what its build supports.
struct Announced {
    node: NodeId,
    supports: Arc<AtomicU32>,
}

#[tonic::async_trait]
impl Formation for Announced {
    async fn meet(&self, _: v1::MeetRequest) -> Result<v1::MeetReply, Status> {
        Ok(v1::MeetReply {
            instance: vec![0; 16].into(),
            node_id: self.node.to_bytes().to_vec().into(),
            cluster_version_max: self.supports.load(Ordering::Relaxed),
            ..v1::MeetReply::default()
        })
    }

    async fn found(&self, request: v1::FoundRequest) -> Result<v1::FoundReply, Status> {
        NoFormation.found(request).await
    }

    fn admit(&self, cluster: ClusterId, to: NodeId) -> Result<(), Status> {
        NoFormation.admit(cluster, to)
    }
}

/// A test's master: its state that survives a restart, and its running node.
pub struct Member {
    pub id: NodeId,
    /// The highest cluster version that its build supports, as it tells others.
    pub supports: Arc<AtomicU32>,
    pub address: String,
    pub log: MemLog,
    pub vote_timing: Arc<VoteTiming>,
    pub snapshot_dir: PathBuf,
    /// Directory of its snapshots, from its next start on.
    pub(crate) disk: Arc<dyn Disk>,
    running: Option<Running>,
}

struct Running {
    node: Arc<RaftNode>,
    stop: oneshot::Sender<()>,
    server: JoinHandle<()>,
}

pub struct Pool {
    pub members: Vec<Member>,
    pub limits: SnapshotLimits,
    pub clock: Clock,
    pub timing: RaftTiming,
    /// Network by which masters that start reach the others.
    network: Arc<dyn Network>,
    /// Keeps the ports of masters open whose nodes were taken.
    taken: Vec<oneshot::Sender<()>>,
    _dir: TempDir,
}

impl Pool {
    /// Returns `n` running masters of a cluster that has not been formed.
    pub async fn unformed(n: u64, limits: SnapshotLimits, timing: RaftTiming) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let clock = Clock::monotonic();
        let (members, network, taken) = (Vec::new(), TcpNetwork::shared(), Vec::new());
        let mut pool = Self { members, limits, clock, timing, network, taken, _dir: dir };
        for id in 1..=n {
            pool.add(NodeId(id)).await;
        }
        pool
    }

    /// Returns `n` masters of one cluster, with a leader.
    pub async fn formed(n: u64, limits: SnapshotLimits) -> Self {
        Self::formed_with(n, limits, RaftTiming::LAN).await
    }

    /// Like [`Self::formed`], with another Raft timing.
    pub async fn formed_with(n: u64, limits: SnapshotLimits, timing: RaftTiming) -> Self {
        let pool = Self::unformed(n, limits, timing).await;
        pool.node(0).initialize(pool.addresses()).await.unwrap();
        pool.leader().await;
        pool
    }

    /// Three masters whose messages pass through a proxy each and take `round_trip` there and back, with a leader.
    pub async fn far_apart(timing: RaftTiming, round_trip: Duration) -> (Self, Links) {
        let mut pool = Self::unformed(3, SnapshotLimits::default(), timing).await;
        let addresses: Vec<_> = pool.members.iter().map(|member| member.address.clone()).collect();
        let links = Links::new(&addresses, &addresses, &[]);
        links.with_clients(slow(round_trip));
        pool.network = links.network(TcpNetwork::shared());
        for at in 0..3 {
            pool.stop(at).await;
            pool.start(at).await.unwrap();
        }
        pool.node(0).initialize(pool.addresses()).await.unwrap();
        pool.leader().await;
        (pool, links)
    }

    /// Starts an empty master on a port of its own and returns its place.
    pub async fn add(&mut self, id: NodeId) -> usize {
        let snapshot_dir = self._dir.path().join(format!("{}-{id}", self.members.len()));
        self.members.push(Member {
            id,
            supports: Arc::new(AtomicU32::new(CLUSTER_VERSION)),
            address: "127.0.0.1:0".into(),
            log: MemLog::default(),
            vote_timing: Arc::default(),
            snapshot_dir,
            disk: Arc::new(FileSystem),
            running: None,
        });
        let at = self.members.len() - 1;
        self.start(at).await.unwrap();
        at
    }

    /// Starts a stopped master again, at its old address.
    pub async fn start(&mut self, at: usize) -> Result<(), RaftStartError> {
        let member = &mut self.members[at];
        let announced = Announced { node: member.id, supports: member.supports.clone() };
        let service = RaftService::new(member.id, Arc::new(announced), unread_metrics());
        let listener = TcpNetwork.listen(&member.address).await.unwrap();
        member.address = listener.address.to_string();
        let log = member.log.clone();
        let config = RaftNodeConfig {
            node: member.id,
            cluster: CLUSTER,
            timing: self.timing,
            network: self.network.clone(),
            clock: self.clock.clone(),
            log: log.clone(),
            vote_timing: member.vote_timing.clone(),
            bytes_since: Arc::new(move |index| log.bytes_since(index)),
            pace: Arc::default(),
            nearly_full: Arc::new(|| false),
            has_descriptors: Arc::new(|| true),
            snapshot_dir: member.snapshot_dir.clone(),
            limits: self.limits,
            service: service.clone(),
            apply_seconds: Histogram::noop(),
            audit: AuditSink::new(drop),
            election_seconds: Histogram::noop(),
        };
        let node = start_node(member.disk.clone(), config).await?;
        let (stop, stopped) = oneshot::channel();
        let server = tokio::spawn(async move {
            let stopped = async move { drop(stopped.await) };
            // Open streams would delay a graceful end, and the test wants the node gone.
            tokio::select! {
                () = stopped => {}
                served = service.serve(listener, Guard::open(), std::future::pending()) => served.unwrap(),
            }
        });
        member.running = Some(Running { node: Arc::new(node), stop, server });
        Ok(())
    }

    /// Stops a master and closes its port and connections.
    pub async fn stop(&mut self, at: usize) {
        let running = self.members[at].running.take().unwrap();
        drop(running.stop);
        running.server.await.unwrap();
        running.node.shutdown().await;
    }

    /// Stops a master and forgets everything on its disk but its address. It comes back as `id`.
    pub async fn wipe(&mut self, at: usize, id: NodeId) {
        self.stop(at).await;
        let member = &mut self.members[at];
        member.log = MemLog::default();
        member.vote_timing = Arc::default();
        std::fs::remove_dir_all(&member.snapshot_dir).unwrap();
        member.id = id;
    }

    pub fn node(&self, at: usize) -> Arc<RaftNode> {
        self.members[at].running.as_ref().unwrap().node.clone()
    }

    /// Takes the node of a running master, for the other parts of a master. Its port goes on answering.
    pub fn take(&mut self, at: usize) -> RaftNode {
        let Running { node, stop, .. } = self.members[at].running.take().unwrap();
        self.taken.push(stop);
        Arc::into_inner(node).unwrap()
    }

    pub fn running(&self) -> impl Iterator<Item = usize> {
        (0..self.members.len()).filter(|at| self.members[*at].running.is_some())
    }

    pub fn addresses(&self) -> BTreeMap<NodeId, MasterNode> {
        let node = |member: &Member| {
            let [raft, client, http] = [(); 3].map(|()| member.address.clone());
            MasterNode { raft, client, http }
        };
        self.members.iter().map(|member| (member.id, node(member))).collect()
    }

    /// The place of the master that leads and holds the lease.
    pub async fn leader(&self) -> usize {
        eventually("a leader", async || self.running().find(|at| self.node(*at).presumed_term().is_some()))
            .await
    }

    /// Proposes until a leader accepts; returns the entry's log id.
    pub async fn write(&self, value: u64) -> LogId {
        self.propose(command(value)).await
    }

    pub async fn propose(&self, command: Proposal) -> LogId {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
        loop {
            let leader = self.node(self.leader().await);
            // A leader without a majority may lead on, and never answers.
            let write = tokio::time::timeout(COMMIT, leader.raft().client_write(command.clone()));
            match write.await {
                Ok(Ok(written)) => return written.log_id,
                Ok(Err(err)) => assert!(tokio::time::Instant::now() < deadline, "no write for 10 s: {err}"),
                Err(_) => panic!("the leader {} commits nothing for {COMMIT:?}", leader.node_id()),
            }
        }
    }

    /// The index of one master.
    pub fn index_bytes(&self, at: usize) -> Vec<u8> {
        self.node(at).index().read(|applied| {
            let mut bytes = Vec::new();
            applied.state.write_snapshot(&mut bytes).unwrap();
            bytes
        })
    }

    /// Waits until every running master has applied `log_id` and as much as the others, and asserts that they hold the
    /// same index then. An election adds an entry, which one of them applies first.
    pub async fn converge(&self, log_id: LogId) {
        let snapshot = |at: usize| {
            self.node(at).index().read(|applied| {
                let mut bytes = Vec::new();
                applied.state.write_snapshot(&mut bytes).unwrap();
                (applied.last_applied, bytes)
            })
        };
        let all = eventually("all to have applied the same entries", async || {
            let all: Vec<_> = self.running().map(snapshot).collect();
            let first = all.first()?.0.filter(|applied| *applied >= log_id)?;
            all.iter().all(|(applied, _)| *applied == Some(first)).then_some(all)
        })
        .await;
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "replicas differ");
    }
}

/// Boxed as [`RaftNode::start`] is: tests of other crates start masters, too.
fn start_node(
    disk: Arc<dyn Disk>,
    config: RaftNodeConfig<MemLog>,
) -> BoxFuture<'static, Result<RaftNode, RaftStartError>> {
    Box::pin(RaftNode::start_on(disk, config))
}

/// A link with this round trip.
pub fn slow(round_trip: Duration) -> Link {
    Link::Slow { delay: round_trip / 2, jitter: Duration::ZERO }
}

pub fn command(value: u64) -> Proposal {
    let stamp = Stamp { now: ClusterTime(value), ..Stamp::default() };
    Proposal(Command { stamp, op: Op::Tick }.encode())
}
