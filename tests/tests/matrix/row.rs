use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::time::Duration;

use futures::future::{LocalBoxFuture, join_all};
use mc_client::StoreId;
use mc_client::{ShmAccess, Transports};
use mc_tests::checker::{Operation, Outcome};
use mc_tests::service::{Counted, Served, Service, served, unserved, worst};
use mc_tests::{
    Cluster, ClusterBuilder, Deadlines, Fault, Faults, History, Link, Machine, Overtaken, Process, Recorder,
    Running, SmallDisk, Workload, overtaken, passed_over, report, until,
};
use tokio::time::Instant;

use crate::evictions;

/// Puts of [`Row::puts`], where a row does not say otherwise.
const PUTS: usize = 50;
/// Rounds that may be discarded: half of those that were asked for, and so many more.
const MAY_BE_DISCARDED: usize = 2;
/// A call may end so much later than it should: tests share the machine.
const LATE: Duration = Duration::from_secs(1);
/// A leader that can't run, or whose disk stands still, for so long may lose its term without a fault of its own.
const STALL: Duration = Duration::from_millis(150);

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
    evicts: bool,
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

/// A master, and the term that it led.
#[derive(Clone, Copy)]
struct Reign {
    master: usize,
    term: u64,
}

/// One round, while it goes on.
pub(crate) struct Round<'a> {
    pub(crate) cluster: &'a mut Cluster,
    pub(crate) running: &'a Running,
    /// Counts from 0.
    pub(crate) number: usize,
    /// The masters' disks, in a row of [`Row::small_disks`].
    pub(crate) disks: &'a [SmallDisk],
    machine: &'a Machine,
    service: Service,
    begun: std::time::Instant,
    happened: &'a Fault,
    bent_before: u64,
    unreachable: Option<Range<u64>>,
    gone: Option<(StoreId, u64)>,
    discarded: RefCell<Option<String>>,
    counted_from: Option<u64>,
    /// The leader that the fault is meant for.
    meant: Cell<Option<Reign>>,
    /// It led when the fault came.
    led: Cell<bool>,
}

impl Round<'_> {
    /// The master that leads. The fault is meant for it as the leader: a round in which [`Self::hit`] does not find that
    /// it led does not count.
    pub(crate) async fn leader(&self) -> usize {
        let mut found = None;
        until("a master leads", async || {
            let Some(master) = self.cluster.find_leader().await else { return false };
            // The others may have taken their time to answer: it says so once more.
            let status = self.cluster.status(master).await.filter(|status| status.role == "leader");
            found = status.map(|status| Reign { master, term: status.term });
            found.is_some()
        })
        .await;
        self.meant.set(found);
        found.expect("it was found").master
    }

    /// For right after the fault has come: whether the leader that it was meant for led still. It did when no other master
    /// has heard of a newer term yet, since nobody is elected, that leader neither, without the vote of one of them. A round
    /// whose fault missed the leader is discarded.
    pub(crate) async fn hit(&self) {
        let Some(Reign { master, term }) = self.meant.get() else { return };
        let others = (0..self.cluster.masters.len()).filter(|other| *other != master);
        let said = join_all(others.map(|other| self.cluster.status(other))).await;
        self.led.set(said.iter().all(|status| status.as_ref().is_some_and(|status| status.term == term)));
        if !self.led.get() {
            self.discard("another master led, or stood, when the fault came");
        }
    }

    /// The round does not count, and another one takes its place.
    pub(crate) fn discard(&self, why: impl Into<String>) {
        self.discarded.borrow_mut().get_or_insert(why.into());
    }

    /// Asserts a claim of the row, besides the history. Where it does not hold the row fails, unless this machine stood
    /// still for so long during the round that the masters had a reason: then the round is discarded.
    pub(crate) fn claim(&self, holds: bool, what: &str) {
        if holds {
            return;
        }
        let (longest, _) = self.machine.stalls_since(self.begun);
        assert!(
            longest >= STALL,
            "round {}: not so: {what}; this machine stood still for {longest:?} at most",
            self.number
        );
        self.discard(format!("this machine stood still for {longest:?}, and not so: {what}"));
    }

    /// For a fault that keeps clients from what the only store holds, until now: misses are let pass.
    pub(crate) fn unreachable_since(&mut self, since: u64) {
        self.unreachable = Some(since..self.running.recorder().now());
    }

    /// For a fault that takes the memory of a store away: what may lie there may be missed from then on.
    pub(crate) fn gone_since(&mut self, store: StoreId, since: u64) {
        self.gone = Some((store, since));
    }

    /// Waits while the fault lasts: for at least twice as long as clients may be without service, so that no client can wait
    /// the fault out, and for `least`, in which its effects show.
    pub(crate) async fn spell(&self, least: Duration) {
        tokio::time::sleep(least.max(self.service.gap * 2)).await;
    }

    /// Waits until each client has been served for each kind of call that it makes, by calls that begin from now on.
    pub(crate) async fn all_served(&self) {
        all_served(self.running.recorder()).await;
    }

    /// Whether the leader suspects a store.
    pub(crate) async fn is_a_store_suspect(&self) -> bool {
        let leader = self.cluster.leader().await;
        let status = self.cluster.status(leader).await;
        status.is_some_and(|status| status.stores.iter().any(|store| store.state == "suspect"))
    }

    /// The term that each master knows.
    pub(crate) async fn terms(&self) -> Vec<Option<u64>> {
        let all = 0..self.cluster.masters.len();
        let said = join_all(all.map(|master| self.cluster.status(master))).await;
        said.into_iter().map(|status| status.map(|status| status.term)).collect()
    }

    /// Whether the leader that [`Self::leader`] found leads on, in the same term.
    pub(crate) async fn leads_on(&self) -> bool {
        let Some(Reign { master, term }) = self.meant.get() else { return false };
        let status = self.cluster.status(master).await;
        status.is_some_and(|status| status.role == "leader" && status.term == term)
    }

    /// Waits until another master than `old` leads, by its own word, and returns a moment at which that was so.
    pub(crate) async fn another_leads(&self, old: usize) -> Instant {
        until("another master leads", async || {
            self.cluster.find_leader().await.is_some_and(|now| now != old)
        })
        .await;
        Instant::now()
    }

    /// Puts that were begun after `since` and have been acknowledged.
    pub(crate) fn stored_since(&self, since: u64) -> usize {
        let stored = |operation: &Operation| operation.outcome == Outcome::Stored && operation.start > since;
        self.running.recorder().count(stored)
    }

    /// The fault has struck, as its effect shows.
    pub(crate) fn struck(&self) {
        if self.meant.get().is_some() && !self.led.get() {
            self.discard("it was not seen that the leader met the fault");
        }
        if self.discarded.borrow().is_none() {
            self.happened.happened();
        }
    }

    /// The fault was on links: they have held, ended, delayed or lost something.
    pub(crate) fn struck_on_links(&self) {
        assert!(self.cluster.links().bent() > self.bent_before, "nothing met the links' fault");
        self.struck();
    }

    /// From here on service is owed: what came before took the majority, or the clients' way, away.
    pub(crate) fn service_is_owed(&mut self) {
        self.counted_from = Some(self.running.recorder().now());
    }
}

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
            evicts: false,
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
        self.workload =
            self.workload.clients(2).keys(8).sizes(20_000..400_000).pace(Duration::from_millis(20));
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

    /// Makes the pool so small that it evicts all the time. Every miss must then be explained by an eviction of that very
    /// value in the log.
    pub(crate) fn evicting(mut self) -> Self {
        self.cluster = evictions::cluster(self.cluster);
        self.workload = evictions::workload(self.workload);
        self.evicts = true;
        self
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
        if self.evicts {
            evictions::set_watermarks(&cluster).await;
        }
        let machine = Machine::watch(cluster.dir());
        let clients = cluster.client_builder().transports(self.transports);
        let running = self.workload.start(&clients.shared_memory(ShmAccess::SameUid)).await;
        let mut figures: Vec<Served> = Vec::new();
        let (mut unreachable, mut gone) = (Vec::new(), Vec::new());
        let mut discarded: Vec<String> = Vec::new();
        for number in 0.. {
            if figures.len() == self.rounds {
                break;
            }
            let counted = happened.count();
            assert!(
                discarded.len() <= self.rounds / 2 + MAY_BE_DISCARDED,
                "too many rounds do not count: {}",
                discarded.join("; ")
            );
            running.acknowledged(self.puts).await;
            let begun = running.recorder().now();
            let bent_before = cluster.links().bent();
            let mut this = Round {
                cluster: &mut cluster,
                running: &running,
                number,
                disks: &disks,
                machine: &machine,
                service: self.service,
                begun: std::time::Instant::now(),
                happened: &happened,
                bent_before,
                unreachable: None,
                gone: None,
                discarded: RefCell::default(),
                counted_from: None,
                meant: Cell::new(None),
                led: Cell::new(false),
            };
            round(&mut this).await;
            let (counted_from, since) = (this.counted_from.unwrap_or(begun), this.begun);
            unreachable.extend(this.unreachable.take());
            gone.extend(this.gone.take());
            let why = this.discarded.take();
            all_served(running.recorder()).await;
            running.acknowledged(self.puts).await;
            let (longest, stalled) = machine.stalls_since(since);
            let mut got = served_from(running.recorder(), &gone, counted_from, self.service.counted);
            if self.evicts {
                // The log tells of evictions, and is read at the end.
                got.iter_mut().for_each(|it| it.false_misses = 0);
            }
            let breaches = self.service.breaches(&got, stalled);
            assert!(
                breaches.is_empty() || longest >= STALL,
                "round {number}: less service than promised, by a machine that stood still for {stalled:?}:{}\n{}",
                breaches.iter().map(|it| format!("\n  {it}")).collect::<String>(),
                running.errors().join("\n")
            );
            let why = why.or_else(|| {
                breaches.first().map(|it| format!("this machine stood still for {longest:?}, and {it}"))
            });
            assert_in_time(running.recorder(), running.deadlines(), begun, stalled);
            match why {
                None if happened.count() > counted => figures.extend(worst(&got)),
                why => discarded.push(why.unwrap_or_else(|| "the fault did not show".to_owned())),
            }
            cluster.ready().await;
        }
        let mut history = running.stop().await;
        for (store, at) in gone {
            history = history.with_loss(store, at);
        }
        let mut early = Vec::new();
        if self.evicts {
            let logged = evictions::logged(&mut cluster).await;
            history = history.with_evictions(&logged);
            let missed = history.missed_by_eviction(&cluster, &unreachable);
            let Overtaken { judged, too_early } = overtaken(&logged, &history.operations);
            println!(
                "{} evictions, which explain misses of {missed} keys; the order of {judged} was judged",
                history.evictions()
            );
            assert!(missed > 0, "no miss needed an eviction to explain it");
            assert!(judged > 0, "no value was evicted that nothing had used");
            early = too_early;
        }
        let found = history.faults(&cluster, &unreachable);
        let lost = found.iter().filter(|verdict| verdict.is_loss()).count();

        let mut gaps: Vec<f64> = figures.iter().map(|it| ms(it.longest_gap)).collect();
        gaps.sort_unstable_by(f64::total_cmp);
        let all = worst(&figures);
        let most = |figure: fn(&Served) -> usize| all.as_ref().map(figure);
        let line = serde_json::json!({
            "fault": self.fault,
            "role": self.role,
            "gap_ms": ms(self.service.gap),
            "allowed": self.service.allowances(),
            "runs": gaps.len(),
            "discarded": discarded,
            "median_ms": gaps.get(gaps.len() / 2),
            "max_ms": gaps.last(),
            "failed": most(|it| it.failed),
            "unknown": most(|it| it.unknown),
            "local_only": most(|it| it.local_only),
            "false_misses": most(|it| it.false_misses),
            "acknowledged": history.acknowledged(),
            "ledger": history.ledger(),
            "evicted": history.evictions(),
            "final_failures": history.final_failures,
            "final_misses": history.final_misses,
            "lost": lost,
            "wrong": found.len() - lost,
            "suspected": cluster.has_suspected_a_store(),
            "test": std::thread::current().name(),
        });
        report(&line);
        println!("{history}");
        if let Some(verdict) = found.first() {
            panic!("{verdict}");
        }
        assert!(early.is_empty(), "evicted before what was put earlier: {}", early.join("\n"));
        assert_eq!(history.final_failures, 0, "final reads failed, with all faults over");
    }
}

fn ms(gap: Duration) -> f64 {
    (gap.as_secs_f64() * 1e4).round() / 10.0
}

/// Waits until each client has been served for each kind of call that it makes, by calls that begin from now on.
async fn all_served(recorder: &Recorder) {
    let since = recorder.now();
    until("each client is served", async || {
        recorder.look(|operations| unserved(operations, since).is_empty())
    })
    .await;
}

/// Returns the service that each client got since then, where these stores have lost their memory.
fn served_from(recorder: &Recorder, gone: &[(StoreId, u64)], since: u64, counted: Counted) -> Vec<Served> {
    let lost = |history: History, (store, at): &(StoreId, u64)| history.with_loss(*store, *at);
    let history = gone.iter().fold(recorder.history(), lost);
    served(&history.all(), &(since..recorder.now()), counted)
}

/// Every call that ended since then took no longer than it may.
fn assert_in_time(recorder: &Recorder, deadlines: Deadlines, since: u64, stalled: Duration) {
    for operation in recorder.history().operations.iter().filter(|operation| operation.end >= since) {
        let took = Duration::from_nanos(operation.end - operation.start);
        let may = deadlines.of(operation.action);
        assert!(took <= may + LATE + stalled, "a call that may take {may:?} took {took:?}: {operation}");
    }
}
