use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use mc_types::StoreId;

use crate::checker::{Action, Digest, Losses, Operation, Outcome, Verdict, check, check_all};
use crate::{Cluster, report};

/// Records operations as they happen; clones record into the same history.
#[derive(Clone, Debug)]
pub struct Recorder {
    origin: Instant,
    origin_by_the_wall: SystemTime,
    operations: Arc<Mutex<Vec<Operation>>>,
}

/// Calls of clients and their answers, with the times of the run.
#[derive(Clone, Debug)]
pub struct History {
    /// Start of the run, by the clock that processes write into their logs.
    began: SystemTime,
    /// The operations, in the order of their ends.
    pub operations: Vec<Operation>,
    /// Evictions, as the masters' log tells of them.
    evictions: Vec<Operation>,
    /// Time from which on all faults were over and only the final reads went on.
    pub settled: u64,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Recorder {
    /// Makes an empty history that begins now.
    pub fn new() -> Self {
        Self { origin: Instant::now(), origin_by_the_wall: SystemTime::now(), operations: Arc::default() }
    }

    /// Returns the present time of this history, in nanoseconds. Callers take it before a call; [`Self::record`] takes
    /// it after.
    pub fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Records an operation that began at `start` and has just ended.
    pub fn record(&self, client: u32, key: &str, action: Action, outcome: Outcome, start: u64) {
        let operation = Operation { client, key: key.to_owned(), action, outcome, start, end: self.now() };
        self.operations.lock().unwrap().push(operation);
    }

    /// Counts the recorded operations that satisfy `wanted`.
    pub fn count(&self, wanted: impl Fn(&Operation) -> bool) -> usize {
        self.operations.lock().unwrap().iter().filter(|operation| wanted(operation)).count()
    }

    /// Returns the history recorded so far.
    pub fn history(&self) -> History {
        let operations = self.operations.lock().unwrap().clone();
        History { began: self.origin_by_the_wall, operations, evictions: Vec::new(), settled: u64::MAX }
    }
}

impl History {
    /// Returns the history with `settled` as the time from which on only the final reads went on.
    #[must_use]
    pub fn settled_at(mut self, settled: u64) -> Self {
        self.settled = settled;
        self
    }

    /// Adds the evictions that took effect, each a key and its value. When they did is not known: it was after the value's
    /// put began.
    #[must_use]
    pub fn with_evictions(mut self, evicted: &[(String, Digest)]) -> Self {
        let starts: HashMap<Digest, u64> =
            self.operations.iter().filter_map(|it| Some((it.action.writes()?, it.start))).collect();
        let end = self.operations.iter().map(|it| it.end).max().map_or(0, |last| last + 1);
        let eviction = |(key, value): &(String, Digest)| {
            Operation::eviction(key, *value, starts.get(value).copied().unwrap_or(0), end)
        };
        self.evictions = evicted.iter().map(eviction).collect();
        self
    }

    /// Returns the operations of the clients and of the pool.
    fn all(&self) -> Vec<Operation> {
        [&self.operations[..], &self.evictions].concat()
    }

    /// Judges the history with [`check`].
    pub fn check(&self, losses: Losses) -> Verdict {
        check(&self.all(), losses)
    }

    /// Judges the history of a run in which every store lived: no acknowledged value may be missed that was not evicted.
    ///
    /// On a busy machine a store's heartbeats may be late, and its keys are then not offered for a moment. The masters'
    /// logs say when they suspected a store. A miss is allowed only around that time, and only before the final reads.
    #[track_caller]
    pub fn assert_nothing_lost(&self, cluster: &Cluster) {
        self.judge(cluster, None);
    }

    /// Judges a run like [`Self::assert_nothing_lost`] if all its objects were on one store. A miss is allowed only
    /// where the masters suspected that store; the others may have failed.
    #[track_caller]
    pub fn assert_nothing_lost_on(&self, cluster: &Cluster, store: StoreId) {
        self.judge(cluster, Some(store));
    }

    #[track_caller]
    fn judge(&self, cluster: &Cluster, store: Option<StoreId>) {
        let spans = self.suspicions(cluster, store);
        if !spans.is_empty() {
            let ms = |span: &Range<u64>| [span.start / 1_000_000, span.end / 1_000_000];
            let spans: Vec<_> = spans.iter().map(ms).collect();
            let test = std::thread::current().name().map(str::to_owned);
            report(&serde_json::json!({ "test": test, "store_suspected_ms": spans }));
        }
        println!("{self}");
        self.check(losses_within(spans)).assert_ok();
    }

    /// Returns the verdict on each key whose operations nothing explains, judged as in [`Self::assert_nothing_lost`]. A
    /// miss is also allowed within the spans of `unreachable`.
    #[must_use]
    pub fn faults(&self, cluster: &Cluster, unreachable: &[Range<u64>]) -> Vec<Verdict> {
        check_all(&self.all(), &self.losses(cluster, unreachable))
    }

    /// Counts the keys of which a miss is explained by an eviction and by nothing else.
    pub fn missed_by_eviction(&self, cluster: &Cluster, unreachable: &[Range<u64>]) -> usize {
        let without = check_all(&self.operations, &self.losses(cluster, unreachable));
        without.iter().filter(|verdict| verdict.is_loss()).count()
    }

    fn losses(&self, cluster: &Cluster, unreachable: &[Range<u64>]) -> Losses {
        let mut spans = self.suspicions(cluster, None);
        spans.extend_from_slice(unreachable);
        losses_within(spans)
    }

    fn suspicions(&self, cluster: &Cluster, store: Option<StoreId>) -> Vec<Range<u64>> {
        let logs = cluster.masters.iter().map(crate::Process::output);
        logs.flat_map(|log| suspicions(&log, store, self.began, self.settled)).collect()
    }

    /// Counts the acknowledged puts.
    pub fn acknowledged(&self) -> usize {
        self.count(|operation| operation.outcome == Outcome::Stored)
    }

    /// Counts the evictions.
    pub fn evictions(&self) -> usize {
        self.evictions.len()
    }

    /// Counts the reads that were answered from a client's own cache, without a leader.
    pub fn local_reads(&self) -> usize {
        self.count(|operation| matches!(operation.outcome, Outcome::LocalValue(_)))
    }

    /// Counts the operations with this outcome.
    pub fn outcomes(&self, outcome: Outcome) -> usize {
        self.count(|operation| operation.outcome == outcome)
    }

    /// Returns the duration of the longest operation.
    pub fn slowest(&self) -> Duration {
        let longest = self.operations.iter().map(|operation| operation.end - operation.start).max();
        Duration::from_nanos(longest.unwrap_or(0))
    }

    fn count(&self, wanted: impl Fn(&Operation) -> bool) -> usize {
        self.operations.iter().filter(|operation| wanted(operation)).count()
    }
}

impl Cluster {
    /// Returns whether the masters' logs say that they suspected a store, so that a miss is allowed in the history.
    pub fn has_suspected_a_store(&self) -> bool {
        let says = |line: &str| line.split_once("suspects=[").is_some_and(|(_, rest)| names(rest, None));
        self.masters.iter().any(|master| master.output().lines().any(says))
    }
}

fn losses_within(spans: Vec<Range<u64>>) -> Losses {
    if spans.is_empty() { Losses::None } else { Losses::Within(spans) }
}

/// Returns whether a list of store ids, which ends at the first bracket of `rest`, names this store; `None`: any.
fn names(rest: &str, store: Option<StoreId>) -> bool {
    let list = rest.split(']').next().unwrap_or_default();
    store.map_or(!list.is_empty(), |store| list.contains(&store.to_string()))
}

/// Longest delay, in nanoseconds, between a suspicion and its line in the master's log.
const LOGGED_LATE: u64 = 1_500_000_000;
/// Longest time, in nanoseconds, for which a client avoids a store that failed it or that it heard to be suspect.
pub const AVOIDED_FOR: u64 = 5_000_000_000;

/// Returns the spans of a history's time in which clients may have missed the objects of a store, by one master's log.
///
/// A suspicion lasts until all was settled if the log does not show its end, or if its time is outside the run (some
/// tests move clocks).
fn suspicions(log: &str, store: Option<StoreId>, began: SystemTime, settled: u64) -> Vec<Range<u64>> {
    let mut spans = Vec::new();
    let mut since = None;
    for line in log.lines() {
        let Some((before, suspects)) = line.split_once("suspects=[") else { continue };
        let at = before.split_whitespace().next().and_then(wall_clock);
        let at = at.and_then(|at| at.duration_since(began).ok()).map(|at| at.as_nanos() as u64);
        let back = suspects.split_once("back=[").is_some_and(|(_, back)| names(back, store));
        let (is_suspect, was_suspect) = (names(suspects, store), back);
        if since.is_none() && (is_suspect || was_suspect) {
            since = Some(at.filter(|at| *at < settled).map_or(0, |at| at.saturating_sub(LOGGED_LATE)));
        }
        if let Some(start) = since.take_if(|_| !is_suspect) {
            let end = at.map_or(settled, |at| at.saturating_add(AVOIDED_FOR).min(settled));
            spans.push(start..end);
        }
    }
    spans.extend(since.map(|start| start..settled));
    spans
}

/// Parses the time of a log line, such as 2026-11-23T07:05:23.123456Z.
fn wall_clock(text: &str) -> Option<SystemTime> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.split('-').map(|field| field.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let mut time = time.split(':').map(|field| field.parse::<u64>().ok());
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let mut days = (1970..year).map(|year| 365 + u64::from(is_leap(year))).sum::<u64>();
    days += before.get(usize::try_from(month.checked_sub(1)?).ok()?)? + day.checked_sub(1)?;
    days += u64::from(month > 2 && is_leap(year));
    let seconds = Duration::from_secs(((days * 24 + hour) * 60 + minute) * 60 + second);
    let fraction = Duration::from_secs_f64(format!("0.{fraction}").parse().ok()?);
    Some(SystemTime::UNIX_EPOCH + seconds + fraction)
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} operations: {} puts acknowledged, {} reads of a value, {} puts and {} reads without a leader, {} failed, \
             {} of unknown outcome, slowest {:?}",
            self.operations.len(),
            self.acknowledged(),
            self.count(|operation| matches!(operation.outcome, Outcome::Value(_))),
            self.outcomes(Outcome::LocalOnly),
            self.local_reads(),
            self.outcomes(Outcome::Failed),
            self.outcomes(Outcome::Unknown),
            self.slowest()
        )
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "one span of time")]
mod tests {
    use super::*;

    #[test]
    fn a_logs_time_is_read() {
        let secs = |text| {
            wall_clock(text).map(|at| at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64())
        };
        assert_eq!(secs("1970-01-02T00:00:01.5Z"), Some(86_401.5));
        assert_eq!(secs("2024-02-29T12:00:00Z"), Some(1_709_208_000.0));
        assert_eq!(secs("2026-11-23T07:05:23.250000Z"), Some(1_795_417_523.25));
        assert_eq!((secs("error:"), secs("2026-13-01T00:00:00Z")), (None, None));
    }

    #[test]
    fn losses_are_let_pass_around_a_suspicion_only() {
        let began = wall_clock("2026-11-23T07:00:00Z").unwrap();
        let s = 1_000_000_000;
        let log = "2026-11-23T07:00:10.000000Z  INFO stores changed suspects=[000000000000000a,000000000000000b]\n\
            2026-11-23T07:00:12.000000Z  INFO stores changed suspects=[000000000000000b]\n\
            2026-11-23T07:00:40.000000Z  INFO stores changed suspects=[000000000000000a] more=0 back=[]\n\
            2026-11-23T07:00:50.000000Z  INFO stores changed suspects=[000000000000000a] more=0 \
            back=[000000000000000d]\n";
        let spans = |store| suspicions(log, Some(StoreId(store)), began, 60 * s);
        assert_eq!(spans(0xa), [8_500_000_000..17 * s, 38_500_000_000..60 * s]);
        assert_eq!(spans(0xb), [8_500_000_000..45 * s]);
        assert_eq!(spans(0xc), []);
        assert_eq!(spans(0xd), [48_500_000_000..55 * s], "a store that was suspect between two lines");
        // With a master's clock an hour ahead, no moment of the run is known to be free of suspicion.
        assert_eq!(suspicions(log, Some(StoreId(0xc)), began, s), []);
        assert_eq!(suspicions(log, Some(StoreId(0xb)), began, s), [0..s]);
        assert_eq!(suspicions(log, None, began, 60 * s), [8_500_000_000..60 * s]);
    }
}
