//! Raising the cluster version: a leader that answers calls, over masters that follow it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mc_durable::{DirectoryLock, FileSystem};
use mc_index::{CLUSTER_VERSION, Command, Op, Settings, Stamp};
use mc_log::Proposal;
use mc_net::TcpNetwork;
use mc_process::metrics::Registry;
use mc_raft::testing::{CLUSTER, Pool};
use mc_raft::{RaftNode, RaftTiming, SnapshotLimits};
use mc_types::{Clock, NodeId, PutId};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::config::system_resolver;
use crate::data_dir::{DataDisk, IdentityFile};
use crate::formation::{Advertise, BoundAddresses, Formation, FormationConfig, Plan};
use crate::leader::term::Unwritten;
use crate::leader::{CoordinatorConfig, Services, ServicesConfig};
use crate::metrics::MasterMetrics;

/// Version of a cluster before its upgrade, when each master has got this build.
const BEFORE: u32 = CLUSTER_VERSION - 1;
/// Read lease from the leader's flags; differs from the default.
const READ_LEASE_MS: u64 = 7_000;

/// Three masters of this build, in a cluster that runs as an older version.
struct Upgraded {
    /// All but the leader.
    pool: Pool,
    leader: Services,
    _dir: TempDir,
}

impl Upgraded {
    /// Starts the cluster at `version`; 0 is the version of a cluster that has just formed.
    async fn start(version: u32) -> Self {
        // The lease outlasts the test however busy the machine is, so that no other master comes to lead.
        let (election_min, election_max) = (Duration::from_secs(10), Duration::from_secs(20));
        let timing = RaftTiming { election_min, election_max, ..RaftTiming::LAN };
        let mut pool = Pool::formed_with(3, SnapshotLimits::default(), timing).await;
        let old = Command { stamp: Stamp::default(), op: Op::SetClusterVersion(version) };
        let last = pool.propose(Proposal(old.encode())).await;
        pool.converge(last).await;
        let leads = pool.leader().await;
        let dir = tempfile::tempdir().unwrap();
        let leader = services(pool.take(leads), &dir, Box::new(|| 0), CancellationToken::new());
        let this = Self { pool, leader, _dir: dir };
        this.assert_version(version).await;
        this
    }

    async fn assert_version(&self, version: u32) {
        assert_eq!(self.leader.coordinator.read(|applied| applied.state.cluster_version()), version);
        let last = self.leader.coordinator.read(|applied| applied.last_applied).unwrap();
        self.pool.converge(last).await;
        for at in self.pool.running() {
            let node = self.pool.node(at);
            assert_eq!(node.index().read(|applied| applied.state.cluster_version()), version);
        }
    }

    async fn assert_seeded(&self) {
        let coordinator = &self.leader.coordinator;
        let read_lease = coordinator.read(|applied| applied.state.settings().read_lease_ms);
        assert_eq!(read_lease, READ_LEASE_MS, "nobody seeds them later");
        let leading = coordinator.lead().await.unwrap();
        assert_eq!(leading.read_lease(), Duration::from_millis(READ_LEASE_MS), "the leader goes by them");
    }

    /// Makes a follower claim to support at most `version`; returns its id.
    fn give_a_follower(&self, version: u32) -> NodeId {
        let at = self.pool.running().next().unwrap();
        self.pool.members[at].supports.store(version, Ordering::Relaxed);
        self.pool.members[at].id
    }
}

/// Returns the services of the only master of a cluster, and what they need as long as they are used.
pub(crate) async fn lone_leader(stop: CancellationToken) -> (Services, (Pool, TempDir)) {
    let mut pool = Pool::formed_with(1, SnapshotLimits::default(), RaftTiming::LAN).await;
    let leads = pool.leader().await;
    let dir = tempfile::tempdir().unwrap();
    let leader = services(pool.take(leads), &dir, Box::new(|| 0), stop);
    (leader, (pool, dir))
}

/// Services that answer calls; unlike a whole master they do nothing unasked, so the version stays as it is.
pub(crate) fn services(
    raft: RaftNode,
    dir: &TempDir,
    unwritten: Unwritten,
    stop: CancellationToken,
) -> Services {
    let identity = IdentityFile::open(&DirectoryLock::acquire(dir.path()).unwrap()).unwrap();
    let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let bound = BoundAddresses { raft: nowhere, client: nowhere, http: nowhere };
    let formation = FormationConfig {
        plan: Plan::Restart,
        advertise: Advertise { host: None, bound },
        network: TcpNetwork::shared(),
        resolver: system_resolver(),
    };
    Services::new(ServicesConfig {
        coordinator: CoordinatorConfig {
            cluster: CLUSTER,
            newcomer: false,
            synced: true,
            raft: Arc::new(raft),
            clock: Clock::monotonic(),
            unwritten,
            disk: DataDisk::new(dir.path(), 0, Arc::new(FileSystem)),
            metrics: Arc::new(MasterMetrics::new(Registry::new())),
            stop,
        },
        seed: Settings { read_lease_ms: READ_LEASE_MS, ..Settings::default() },
        formation: Arc::new(Formation::new(identity, true, formation)),
        tls: None,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_upgrade_raises_the_version_on_every_master_once() {
    let masters = Upgraded::start(BEFORE).await;
    let finish = async |force| masters.leader.configuration.finish_upgrade(force).await;
    let why = finish(false).await.unwrap_err().to_string();
    assert!(why.contains("cannot know yet which clients and stores are of older builds"), "{why}");
    masters.assert_version(BEFORE).await;

    assert_eq!(finish(true).await.unwrap(), (BEFORE, CLUSTER_VERSION));
    masters.assert_version(CLUSTER_VERSION).await;

    let last = || masters.leader.coordinator.read(|applied| applied.last_applied);
    let raised = last();
    assert_eq!(finish(false).await.unwrap(), (CLUSTER_VERSION, CLUSTER_VERSION));
    assert_eq!(last(), raised, "nothing is left to do");
    masters.assert_version(CLUSTER_VERSION).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_whose_build_is_old_holds_the_version_down_and_is_named() {
    let masters = Upgraded::start(BEFORE).await;
    let old = masters.give_a_follower(BEFORE);
    let why = masters.leader.configuration.finish_upgrade(true).await.unwrap_err().to_string();
    assert!(why.contains(&format!("the build of master {old} supports cluster version {BEFORE}")), "{why}");
    masters.assert_version(BEFORE).await;

    assert_eq!(masters.give_a_follower(CLUSTER_VERSION), old);
    assert_eq!(masters.leader.configuration.finish_upgrade(true).await.unwrap(), (BEFORE, CLUSTER_VERSION));
    masters.assert_version(CLUSTER_VERSION).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_has_just_formed_gets_its_settings_with_its_version() {
    let masters = Upgraded::start(0).await;
    masters.leader.configuration.finish_upgrade(true).await.unwrap();
    masters.assert_version(CLUSTER_VERSION).await;
    masters.assert_seeded().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_settings_of_a_cluster_end_no_lease() {
    let masters = Upgraded::start(0).await;
    let leading = masters.leader.coordinator.lead().await.unwrap();
    assert!(leading.leases.grant(PutId(1), 1, leading.lease_end()));
    let nothing_to_do = masters.leader.configuration.seed(&leading).await.unwrap();
    assert!(!nothing_to_do);
    masters.assert_seeded().await;
    assert!(masters.leader.coordinator.lead().await.unwrap().is_leased(PutId(1)));
}
