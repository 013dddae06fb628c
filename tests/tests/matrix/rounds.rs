use std::ops::Range;
use std::time::Duration;

use mc_client::StoreId;
use mc_tests::checker::Verdict;
use mc_tests::service::{Served, Service, served, worst};
use mc_tests::{
    Cluster, Deadlines, History, Logged, Machine, Overtaken, Recorder, Running, overtaken, report,
};
use serde_json::Value;

use crate::evictions::{self, Full};
use crate::needs::Needs;
use crate::round::{EndedRound, STALL};

/// Rounds that may be discarded: half of those that were asked for, and so many more.
const MAY_BE_DISCARDED: usize = 2;
/// A call may end so much later than it should: tests share the machine.
const LATE: Duration = Duration::from_secs(1);

/// The rounds of a row so far.
pub(crate) struct Rounds {
    service: Service,
    /// Cause of evictions, if there are any.
    full: Option<Full>,
    /// The worst service in each round that counts.
    counted: Vec<Served>,
    /// Reason for which a round does not count.
    discarded: Vec<String>,
    unreachable: Vec<Range<u64>>,
    gone: Vec<(StoreId, u64)>,
}

impl Rounds {
    pub(crate) fn new(service: Service, full: Option<Full>) -> Self {
        Self {
            service,
            full,
            counted: Vec::new(),
            discarded: Vec::new(),
            unreachable: Vec::new(),
            gone: Vec::new(),
        }
    }

    /// Returns the number of the next round, `None` if `wanted` have counted.
    pub(crate) fn next(&self, wanted: usize) -> Option<usize> {
        assert!(
            self.discarded.len() <= wanted / 2 + MAY_BE_DISCARDED,
            "too many rounds do not count: {}",
            self.discarded.join("; ")
        );
        (self.counted.len() < wanted).then(|| self.counted.len() + self.discarded.len())
    }

    /// Judges the service in a round that began at the time `began` of the history. It counts if the fault has `struck` and
    /// nothing speaks against it.
    pub(crate) fn judge(
        &mut self,
        ended: EndedRound,
        struck: bool,
        began: u64,
        running: &Running,
        machine: &Machine,
    ) {
        self.unreachable.extend(ended.unreachable);
        self.gone.extend(ended.gone);
        let (longest, stalled) = machine.stalls_since(ended.begun);
        let got = self.served_from(running.recorder(), ended.counted_from);
        let breaches = self.service.breaches(&got, stalled);
        assert!(
            breaches.is_empty() || longest >= STALL,
            "less service than promised, by a machine that stood still for {stalled:?}:{}\n{}",
            breaches.iter().map(|it| format!("\n  {it}")).collect::<String>(),
            running.errors().join("\n")
        );
        assert_in_time(running.recorder(), running.deadlines(), began, stalled);
        let stood_still =
            || breaches.first().map(|it| format!("this machine stood still for {longest:?}, and {it}"));
        match ended.discarded.or_else(stood_still) {
            None if struck => self.counted.extend(worst(&got)),
            why => self.discarded.push(why.unwrap_or_else(|| "the fault did not show".to_owned())),
        }
    }

    /// Returns the service that each client got since then.
    fn served_from(&self, recorder: &Recorder, since: u64) -> Vec<Served> {
        let history = self.with_losses(recorder.history());
        let mut got = served(&history.all(), &(since..recorder.now()), self.service.counted);
        if self.full.is_some() {
            // The log tells of evictions, and is read at the end.
            got.iter_mut().for_each(|it| it.false_misses = 0);
        }
        got
    }

    fn with_losses(&self, history: History) -> History {
        self.gone.iter().fold(history, |history, (store, at)| history.with_loss(*store, *at))
    }

    /// Ends the clients, judges all that they saw, and reports it with `row`, the row's own fields.
    pub(crate) async fn report(self, row: Value, running: Running, cluster: &mut Cluster) {
        let mut history = self.with_losses(running.stop().await);
        let broken = match self.full {
            Some(full) => self.evictions(full, &mut history, cluster).await,
            None => Vec::new(),
        };
        let found = history.faults(cluster, &self.unreachable);
        report(&self.line(row, &history, &found, cluster));
        println!("{history}");
        if let Some(verdict) = found.first() {
            panic!("{verdict}");
        }
        assert!(broken.is_empty(), "{} evictions broke a promise:\n{}", broken.len(), broken.join("\n"));
        assert_eq!(history.final_failures, 0, "final reads failed, with all faults over");
    }

    /// Adds the evictions of the log to the history, and returns those that broke a promise, in words.
    async fn evictions(&self, full: Full, history: &mut History, cluster: &mut Cluster) -> Vec<String> {
        let (logged, needs) = evictions::logged(cluster).await;
        *history = history.clone().with_evictions(&logged);
        let missed = history.missed_by_eviction(cluster, &self.unreachable);
        let Overtaken { judged, soft, too_early } = overtaken(&logged, &history.operations);
        let Needs { for_pool, for_quotas, for_both, needless, .. } = needs;
        let in_pages =
            logged.iter().filter(|it| matches!(it, Logged::Evicted(key, _) if key.contains('/'))).count();
        println!(
            "{} evictions, {for_pool} for the pool, {for_quotas} for quotas, {for_both} for either, {in_pages} of parts of pages, \
             {soft} of values with a soft pin; they explain misses of {missed} keys; the order of {judged} was judged",
            history.evictions()
        );
        assert!(missed > 0, "no miss needed an eviction to explain it");
        assert!(judged > 0, "no value was evicted that nothing had used");
        assert!(in_pages > 0, "no page was evicted");
        let needed = match full {
            Full::Pool => for_pool > 0,
            Full::Tenants => for_quotas > 0,
            Full::PoolAndTenants => for_pool > 0 && for_both > 0,
        };
        assert!(needed, "nothing was evicted for {full:?}");
        [too_early, needless].concat()
    }

    /// Adds the figures of the rounds to the fields of the row.
    fn line(&self, mut row: Value, history: &History, found: &[Verdict], cluster: &Cluster) -> Value {
        let lost = found.iter().filter(|verdict| verdict.is_loss()).count();
        let mut gaps: Vec<f64> = self.counted.iter().map(|it| ms(it.longest_gap)).collect();
        gaps.sort_unstable_by(f64::total_cmp);
        let all = worst(&self.counted);
        let most = |figure: fn(&Served) -> usize| all.as_ref().map(figure);
        let figures = serde_json::json!({
            "gap_ms": ms(self.service.gap),
            "allowed": self.service.allowances(),
            "runs": gaps.len(),
            "discarded": self.discarded,
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
        if let (Value::Object(row), Value::Object(figures)) = (&mut row, figures) {
            row.extend(figures);
        }
        row
    }
}

fn ms(gap: Duration) -> f64 {
    (gap.as_secs_f64() * 1e4).round() / 10.0
}

/// Every call that ended since then took no longer than it may.
fn assert_in_time(recorder: &Recorder, deadlines: Deadlines, since: u64, stalled: Duration) {
    for operation in recorder.history().operations.iter().filter(|operation| operation.end >= since) {
        let took = Duration::from_nanos(operation.end - operation.start);
        let may = deadlines.of(operation.action);
        assert!(took <= may + LATE + stalled, "a call that may take {may:?} took {took:?}: {operation}");
    }
}
