use std::cell::Cell;
use std::time::Duration;

use futures::future::{LocalBoxFuture, join_all};
use mc_tests::checker::{Operation, Outcome};
use mc_tests::{
    Cluster, ClusterBuilder, Fault, Faults, Link, Process, Recorder, Running, SmallDisk, Workload,
    passed_over, report, until,
};
use tokio::time::Instant;

/// Puts that are acknowledged before a fault, and after it, before it counts as over.
const PUTS: usize = 50;
/// Rounds beyond twice those that were asked for, in place of rounds whose fault missed whom it was meant for.
const MORE_ROUNDS: usize = 4;

/// A row of the matrix: a fault, and who meets it.
pub(crate) struct Row {
    fault: &'static str,
    role: &'static str,
    cluster: ClusterBuilder,
    workload: Workload,
    rounds: usize,
    disk_size: Option<&'static str>,
    round_trip: Option<Duration>,
    rest: Option<Rest>,
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
    happened: &'a Fault,
    bent_before: u64,
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
    /// has heard of a newer term yet, since nobody is elected, that leader neither, without the vote of one of them.
    pub(crate) async fn hit(&self) {
        let Some(Reign { master, term }) = self.meant.get() else { return };
        let others = (0..self.cluster.masters.len()).filter(|other| *other != master);
        let said = join_all(others.map(|other| self.cluster.status(other))).await;
        self.led.set(said.iter().all(|status| status.as_ref().is_some_and(|status| status.term == term)));
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
        if self.meant.get().is_none() || self.led.get() {
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
    /// Three masters with faulty disks, clocks and links; one store.
    pub(crate) fn new(fault: &'static str, role: &'static str) -> Self {
        let rounds =
            std::env::var("MC_MATRIX_ROUNDS").map(|n| n.parse().expect("MC_MATRIX_ROUNDS is a number"));
        Self {
            fault,
            role,
            cluster: Cluster::builder().faulty(),
            workload: Workload::new(1).pace(Duration::from_millis(2)),
            rounds: rounds.unwrap_or(1),
            disk_size: None,
            round_trip: None,
            rest: None,
        }
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

    /// Leaves the cluster idle between its start and the first call of a client.
    pub(crate) fn rest(
        mut self,
        rest: impl for<'a> FnOnce(&'a Cluster) -> LocalBoxFuture<'a, ()> + 'static,
    ) -> Self {
        self.rest = Some(Box::new(rest));
        self
    }

    /// Runs the rounds. `round` makes the fault and takes it back; it does not wait for the service to be back.
    pub(crate) async fn run(self, mut round: impl AsyncFnMut(&mut Round<'_>)) {
        let mut faults = Faults::new();
        let happened = faults.plan_times(format!("{}, {}", self.fault, self.role), self.rounds as u64);
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
        if let Some(round_trip) = self.round_trip {
            cluster.links().among_masters(apart(round_trip));
        }
        cluster.masters.iter_mut().chain(&mut cluster.stores).for_each(Process::start);
        cluster.ready().await;
        if let Some(rest) = self.rest {
            rest(&cluster).await;
        }
        let running = self.workload.start(&cluster.client_builder()).await;
        let mut without_service = Vec::new();
        // Rounds whose fault missed whom it was meant for.
        let mut discarded = Vec::new();
        for number in 0..2 * self.rounds + MORE_ROUNDS {
            let counted = happened.count();
            if counted >= self.rounds as u64 {
                break;
            }
            running.acknowledged(PUTS).await;
            let begun = running.recorder().now();
            let bent_before = cluster.links().bent();
            let mut this = Round {
                cluster: &mut cluster,
                running: &running,
                number,
                disks: &disks,
                happened: &happened,
                bent_before,
                counted_from: None,
                meant: Cell::new(None),
                led: Cell::new(false),
            };
            round(&mut this).await;
            let counted_from = this.counted_from.unwrap_or(begun);
            running.acknowledged(PUTS).await;
            if happened.count() > counted {
                without_service.push(longest_gap(running.recorder(), counted_from));
            } else {
                discarded.push(number);
            }
            cluster.ready().await;
        }
        let history = running.stop().await;
        history.assert_nothing_lost(&cluster);
        faults.assert_happened();

        without_service.sort_unstable();
        let runs = without_service.len();
        let ms = |gap: Duration| (gap.as_secs_f64() * 1e4).round() / 10.0;
        let line = serde_json::json!({
            "fault": self.fault,
            "role": self.role,
            "runs": runs,
            "discarded_rounds": discarded,
            "median_ms": ms(without_service[runs / 2]),
            "max_ms": ms(without_service[runs - 1]),
            "acknowledged": history.acknowledged(),
            // Else this run has failed above.
            "lost": 0,
            "wrong": 0,
            "suspected": cluster.has_suspected_a_store(),
            "test": std::thread::current().name(),
        });
        report(&line);
    }
}

/// The longest time between two acknowledged puts, from `since` to the end of the record.
fn longest_gap(recorder: &Recorder, since: u64) -> Duration {
    let operations = recorder.history().operations;
    let mut acknowledged: Vec<u64> = operations
        .iter()
        .filter(|operation| operation.outcome == Outcome::Stored && operation.end >= since)
        .map(|operation| operation.end)
        .collect();
    acknowledged.push(since);
    acknowledged.sort_unstable();
    let longest = acknowledged.windows(2).map(|pair| pair[1] - pair[0]).max();
    Duration::from_nanos(longest.unwrap_or(0))
}
