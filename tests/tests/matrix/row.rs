use std::time::Duration;

use futures::future::LocalBoxFuture;
use mc_client::{ShmAccess, Transports};
use mc_tests::service::Service;
use mc_tests::{Cluster, ClusterBuilder, Faults, Link, Machine, Process, SmallDisk, Workload, passed_over};

use crate::evictions::{self, Full};
use crate::round::{Round, all_served};
use crate::rounds::Rounds;

/// Puts of [`Row::puts`], where a row does not say otherwise.
const PUTS: usize = 50;

/// A row of the matrix: a fault, and who meets it.
pub(crate) struct Row {
    fault: &'static str,
    role: &'static str,
    cluster: ClusterBuilder,
    workload: Workload,
    rounds: usize,
    service: Service,
    disk_size: Option<&'static str>,
    round_trip: Option<Duration>,
    rest: Option<Rest>,
    full: Option<Full>,
    transports: Transports,
    /// Puts that are acknowledged before a fault, and after it, before it counts as over.
    puts: usize,
}

/// A leader that is gone at once: the others notice by its silence, elect, and clients find out who leads.
pub(crate) const FAILOVER: Service =
    Service::interrupted(Duration::from_secs(2)).unknown(1, "remove under way");
/// A leader that makes room for another one.
pub(crate) const HANDOVER: Service =
    Service::interrupted(Duration::from_millis(1_000)).unknown(1, "remove under way");
/// A majority that is there again: an election, and clients that look for a leader once a second at most.
pub(crate) const FORMED: Service = Service::interrupted(Duration::from_secs(4)).once_back();

/// The same where the old leader is back with a majority only until it is voted out: clients find it, and lose it again.
pub(crate) const FORMED_AGAIN: Service = FORMED
    .failed(500, "leader lost again")
    .local_only(500, "leader lost again")
    .false_misses(500, "leader lost again");

/// The master that the fault of [`Row::run_at`] is meant for.
#[derive(Clone, Copy)]
pub(crate) enum Who {
    Leader,
    Follower,
}

impl Who {
    /// Its role in the table of docs/fault-matrix.md.
    pub(crate) fn role(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Follower => "follower",
        }
    }

    /// Service while this master is lost.
    pub(crate) fn lost(self) -> Service {
        match self {
            Self::Leader => FAILOVER,
            Self::Follower => Service::unaffected(),
        }
    }
}

/// Watches a cluster that no client uses yet.
type Rest = Box<dyn for<'a> FnOnce(&'a Cluster) -> LocalBoxFuture<'a, ()>>;

/// A link whose ends are half of this apart.
pub(crate) fn apart(round_trip: Duration) -> Link {
    Link::Slow { delay: round_trip / 2, jitter: Duration::ZERO }
}

impl Row {
    /// Three masters with faulty disks, clocks and links; one store. `service` is what each client gets all the same.
    pub(crate) fn new(fault: &'static str, role: &'static str, service: Service) -> Self {
        let rounds =
            std::env::var("MC_MATRIX_ROUNDS").map(|n| n.parse().expect("MC_MATRIX_ROUNDS is a number"));
        Self {
            fault,
            role,
            cluster: Cluster::builder().faulty(),
            workload: Workload::new(1).pace(Duration::from_millis(2)),
            rounds: rounds.unwrap_or(1),
            service,
            disk_size: None,
            round_trip: None,
            rest: None,
            full: None,
            transports: Transports::Tcp,
            puts: PUTS,
        }
    }

    /// Lets clients and stores move bytes through shared memory.
    pub(crate) fn shared_memory(mut self) -> Self {
        self.transports = Transports::Shm;
        // Fewer bytes would go over TCP.
        self.workload = self.workload.sizes(20_000..200_000);
        self
    }

    /// Lets clients move bytes by nothing but RDMA, between them and two stores. It runs in a guest that is emulated where the
    /// processor can't do better, so it has less to do, and elections must not come of that.
    pub(crate) fn by_rdma(mut self) -> Self {
        self.transports = Transports::Rdma;
        self.cluster = self.cluster.stores(2).segment("64mb").master_args(["--raft-timing", "wan"]);
        self.workload = self
            .workload
            .clients(2)
            .keys(8)
            .sizes(20_000..400_000)
            .pace(Duration::from_millis(20))
            .may_not_read();
        self.puts = 10;
        self
    }

    pub(crate) fn cluster(mut self, change: impl FnOnce(ClusterBuilder) -> ClusterBuilder) -> Self {
        self.cluster = change(self.cluster);
        self
    }

    pub(crate) fn workload(mut self, workload: Workload) -> Self {
        self.workload = workload;
        self
    }

    /// Gives each master a file system of its own of this size, as `mount` writes it. Where none can be mounted the row
    /// is passed over.
    pub(crate) fn small_disks(mut self, size: &'static str) -> Self {
        self.disk_size = Some(size);
        self
    }

    /// Puts the masters apart from before they start: a message and its answer take this long.
    pub(crate) fn round_trip(mut self, round_trip: Duration) -> Self {
        self.round_trip = Some(round_trip);
        self
    }

    /// Makes the pool, or the quotas of tenants, so small that the leader evicts all the time. Every miss must then be explained by an
    /// eviction of that very value in the log, and evictions keep their promises.
    pub(crate) fn evicting(self, full: Full) -> Self {
        let workload = full.workload(self.workload);
        Self { cluster: evictions::cluster(self.cluster), workload, full: Some(full), ..self }
    }

    /// Leaves the cluster idle between its start and the first call of a client.
    pub(crate) fn rest(
        mut self,
        rest: impl for<'a> FnOnce(&'a Cluster) -> LocalBoxFuture<'a, ()> + 'static,
    ) -> Self {
        self.rest = Some(Box::new(rest));
        self
    }

    /// Runs rounds whose fault is meant for one master: see [`Self::run`].
    pub(crate) async fn run_at(self, who: Who, mut round: impl AsyncFnMut(&mut Round<'_>, usize)) {
        self.run(async |this| {
            let master = match who {
                Who::Leader => this.leader().await,
                Who::Follower => this.cluster.follower().await,
            };
            round(this, master).await;
        })
        .await;
    }

    /// Runs the rounds. `round` makes the fault and takes it back; it does not wait for the service to be back.
    pub(crate) async fn run(self, mut round: impl AsyncFnMut(&mut Round<'_>)) {
        let mut cluster = self.cluster.prepare();
        // Dropped before the cluster is: its folder cannot be removed while something is mounted there.
        let mounted: Option<Vec<_>> = self.disk_size.map_or(Some(Vec::new()), |size| {
            (0..cluster.masters.len())
                .map(|master| SmallDisk::mount(&cluster.master_dir(master), size))
                .collect()
        });
        let Some(disks) = mounted else {
            return passed_over("no file system can be mounted here");
        };
        let mut faults = Faults::new();
        let happened = faults.plan_times(format!("{}, {}", self.fault, self.role), self.rounds as u64);
        if let Some(round_trip) = self.round_trip {
            cluster.links().among_masters(apart(round_trip));
        }
        cluster.masters.iter_mut().chain(&mut cluster.stores).for_each(Process::start);
        cluster.ready().await;
        if let Some(rest) = self.rest {
            rest(&cluster).await;
        }
        if self.full.is_some_and(Full::is_of_pool) {
            evictions::set_watermarks(&cluster).await;
        }
        let machine = Machine::watch(cluster.dir());
        let clients = cluster.client_builder().transports(self.transports);
        let running = self.workload.start(&clients.shared_memory(ShmAccess::SameUid)).await;
        let mut rounds = Rounds::new(self.service, self.full);
        while let Some(number) = rounds.next(self.rounds) {
            let counted = happened.count();
            running.acknowledged(self.puts).await;
            let began = running.recorder().now();
            let mut this =
                Round::begin(number, self.service, &mut cluster, &running, &disks, &machine, &happened);
            round(&mut this).await;
            let ended = this.end();
            all_served(running.recorder()).await;
            running.acknowledged(self.puts).await;
            rounds.judge(ended, happened.count() > counted, began, &running, &machine);
            cluster.ready().await;
        }
        let row = serde_json::json!({ "fault": self.fault, "role": self.role });
        rounds.report(row, running, &mut cluster).await;
    }
}
