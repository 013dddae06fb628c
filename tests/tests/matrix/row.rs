use std::io::Write as _;
use std::time::Duration;

use mc_tests::checker::Outcome;
use mc_tests::{Cluster, ClusterBuilder, Fault, Faults, Recorder, Running, Workload};

/// Puts that are acknowledged before a fault, and after it, before it counts as over.
const PUTS: usize = 50;

/// A row of the matrix: a fault, and who meets it.
pub(crate) struct Row {
    fault: &'static str,
    role: &'static str,
    cluster: ClusterBuilder,
    workload: Workload,
    rounds: usize,
}

/// One round, while it goes on.
pub(crate) struct Round<'a> {
    pub(crate) cluster: &'a mut Cluster,
    pub(crate) running: &'a Running,
    /// Counts from 0.
    pub(crate) number: usize,
    happened: &'a Fault,
    bent_before: u64,
    counted_from: Option<u64>,
}

impl Round<'_> {
    /// The fault has struck, as its effect shows.
    pub(crate) fn struck(&self) {
        self.happened.happened();
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

    /// Runs the rounds. `round` makes the fault and takes it back; it does not wait for the service to be back.
    pub(crate) async fn run(self, mut round: impl AsyncFnMut(&mut Round<'_>)) {
        let mut faults = Faults::new();
        let happened = faults.plan_times(format!("{}, {}", self.fault, self.role), self.rounds as u64);
        let mut cluster = self.cluster.start().await;
        let running = self.workload.start(&cluster.client_builder()).await;
        let mut without_service = Vec::new();
        for number in 0..self.rounds {
            running.acknowledged(PUTS).await;
            let begun = running.recorder().now();
            let bent_before = cluster.links().bent();
            let mut this = Round {
                cluster: &mut cluster,
                running: &running,
                number,
                happened: &happened,
                bent_before,
                counted_from: None,
            };
            round(&mut this).await;
            let counted_from = this.counted_from.unwrap_or(begun);
            running.acknowledged(PUTS).await;
            without_service.push(longest_gap(running.recorder(), counted_from));
            cluster.ready().await;
        }
        let history = running.stop().await;
        history.assert_nothing_lost(&cluster);
        faults.assert_happened();

        without_service.sort_unstable();
        let ms = |gap: Duration| (gap.as_secs_f64() * 1e4).round() / 10.0;
        let line = serde_json::json!({
            "fault": self.fault,
            "role": self.role,
            "runs": self.rounds,
            "median_ms": ms(without_service[self.rounds / 2]),
            "max_ms": ms(without_service[self.rounds - 1]),
            "acknowledged": history.acknowledged(),
            // Else this run has failed above.
            "lost": 0,
            "wrong": 0,
            "test": std::thread::current().name(),
        });
        println!("{line}");
        if let Some(path) = std::env::var_os("MC_MATRIX_OUT") {
            let mut file =
                std::fs::File::options().create(true).append(true).open(path).expect("MC_MATRIX_OUT");
            writeln!(file, "{line}").expect("MC_MATRIX_OUT can be written");
        }
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
