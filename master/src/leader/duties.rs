//! A leader's duties that no call asks for: keep the time, watch the stores, clean up.

use std::sync::Arc;
use std::time::Duration;

use mc_index::Request;
use mc_types::StoreId;
use tokio::time::Instant;

use crate::leader::services::Services;
use crate::leader::term::{Coordinator, LOOK_INTERVAL, Leading, Liveness, Refusal, StoreEvents};

/// Interval at which an idle leader logs the time, so that deadlines pass and a successor starts from a recent stamp.
const TICK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of objects that one entry frees after a store was dropped, or after a `remove_all`. Applying it takes
/// some milliseconds in an index of 10 million objects, for which reads and puts wait.
const SWEEP_LIMIT: u32 = 256;

/// Watches the stores until this master stops; does nothing while it does not lead. Runs apart from the duties that
/// commit entries, so that waiting for a commit does not hide a store's silence.
pub(crate) async fn watch_stores(services: Arc<Services>) {
    let coordinator = &services.coordinator;
    let mut logged = LastLogged::default();
    while coordinator.pause(LOOK_INTERVAL).await {
        match coordinator.on_duty() {
            Some(leading) => {
                services.stores.refresh_suspects(&leading);
                let is_mounted =
                    |store| coordinator.read(|applied| applied.state.mounted_epoch(store).is_some());
                if let Some(StoresLine { suspects, more, back }) =
                    logged.of(leading.term, &leading.liveness, is_mounted, leading.elapsed())
                {
                    let (suspects, back) = (listed(&suspects), listed(&back));
                    tracing::info!(%suspects, more, %back, "stores changed");
                }
            }
            // Being unsure for a moment is not the end of a term.
            None if !coordinator.is_leader() => coordinator.step_down(),
            None => {}
        }
    }
}

/// Returns a list of ids for a line of the log, such as `[02a68edd6f1ba3c4,500d7fd61b2c3d4e]`.
fn listed(stores: &[StoreId]) -> String {
    let ids: Vec<_> = stores.iter().map(ToString::to_string).collect();
    format!("[{}]", ids.join(","))
}

/// The state of the stores as last logged. Many stores that come and go at once make few log lines, and short ones.
#[derive(Debug, Default)]
struct LastLogged {
    term: u64,
    /// Number of this term's changes that were looked at.
    seen: u64,
    suspects: Vec<StoreId>,
    at: Option<Duration>,
}

/// A line about the stores.
#[derive(Debug, PartialEq, Eq)]
struct StoresLine {
    /// The first suspects.
    suspects: Vec<StoreId>,
    /// Number of the other suspects.
    more: usize,
    /// The first stores that were suspect since the last line, are not now, and are mounted. Without them, nothing would explain
    /// the misses of clients that read while a store reconnected. One that was unmounted is not back: its stream ends a moment
    /// before.
    back: Vec<StoreId>,
}

impl LastLogged {
    /// Least time between two lines.
    const EACH: Duration = Duration::from_secs(1);
    /// Most ids in a list of a line.
    const IDS: usize = 8;

    /// Returns the line to log now, if any.
    fn of(
        &mut self,
        term: u64,
        liveness: &Liveness,
        is_mounted: impl Fn(StoreId) -> bool,
        now: Duration,
    ) -> Option<StoresLine> {
        let seen = if self.term == term { self.seen } else { 0 };
        let StoreEvents { stores, seen, .. } = liveness.news(Some(seen), usize::MAX);
        let suspects = liveness.suspects();
        let is_news = !stores.is_empty() || self.suspects != *suspects;
        if !is_news || self.at.is_some_and(|at| now.saturating_sub(at) < Self::EACH) {
            return None;
        }
        let back = stores.iter().filter(|(_, suspect)| !suspect).map(|(store, _)| *store);
        let back = back.filter(|store| is_mounted(*store));
        let line = StoresLine {
            suspects: suspects.iter().copied().take(Self::IDS).collect(),
            more: suspects.len().saturating_sub(Self::IDS),
            back: back.take(Self::IDS).collect(),
        };
        let is_known = suspects.is_empty() && self.suspects.is_empty() && line.back.is_empty();
        let at = if is_known { self.at } else { Some(now) };
        *self = Self { term, seen, suspects: suspects.to_vec(), at };
        (!is_known).then_some(line)
    }
}

/// Proposes the entries of a leader's duties until this master stops; does nothing while it does not lead.
pub(crate) async fn keep_the_log_going(services: Arc<Services>) {
    let coordinator = &services.coordinator;
    let mut last_tick = Instant::now();
    let mut swept = Swept::All;
    while match swept {
        Swept::All => coordinator.pause(LOOK_INTERVAL).await,
        Swept::Slice => !coordinator.is_stopping(),
    } {
        swept = Swept::All;
        let Some(leading) = coordinator.on_duty() else { continue };
        let seeded = services.configuration.seed(&leading).await;
        if !seeded.as_ref().is_ok_and(|seeded| *seeded) {
            log_failure("the entry of the cluster's settings", seeded.map(drop));
            continue;
        }
        swept = sweep(&services, &leading).await;
        if last_tick.elapsed() < TICK_INTERVAL {
            continue;
        }
        last_tick = Instant::now();
        leading.sweep_leases();
        // The applied settings include changes whose callers gave up waiting.
        leading.adopt(&coordinator.read(|applied| applied.state.settings().clone()));
        log_failure("a tick", coordinator.propose(&leading, &Request::tick()).await);
        drop_dead_stores(coordinator, &leading).await;
    }
}

/// Drops stores that have been silent for `store_ttl`, counted at the earliest from when this leader began to listen.
async fn drop_dead_stores(coordinator: &Coordinator, leading: &Leading) {
    let now = leading.elapsed();
    let dead: Vec<_> = coordinator.read(|applied| {
        let ttl = Duration::from_millis(applied.state.settings().store_ttl_ms);
        applied.state.mounted().filter(|(store, _)| leading.liveness.silence(*store, now) >= ttl).collect()
    });
    for (store, epoch) in dead {
        tracing::warn!(%store, "store was silent for store_ttl: its replicas are dropped");
        let dropped = coordinator.propose(leading, &Request::drop_store(store, epoch)).await;
        log_failure("the removal of a silent store", dropped.map(drop));
    }
}

/// Progress of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Swept {
    /// Nothing is left, or an entry has failed and is tried again after a pause.
    All,
    /// A slice was freed, and more is left.
    Slice,
}

/// Frees a slice of what dropped stores or a `remove_all` have left. A slice is one entry, so that no entry takes long to
/// apply, and the other duties have their turn after each: objects may be removed faster than they are freed.
async fn sweep(services: &Services, leading: &Leading) -> Swept {
    let coordinator = &services.coordinator;
    if !coordinator.read(|applied| applied.state.needs_sweep()) {
        return Swept::All;
    }
    match coordinator.propose(leading, &Request::sweep(SWEEP_LIMIT)).await {
        Ok(more) => {
            services.objects.let_in(leading);
            if more { Swept::Slice } else { Swept::All }
        }
        Err(refusal) => {
            log_failure("a sweep of freed objects", Err(refusal));
            Swept::All
        }
    }
}

fn log_failure(what: &str, outcome: Result<(), Refusal>) {
    match outcome {
        // Losing the leadership ends these duties; the next leader does them.
        Ok(()) | Err(Refusal::NotLeader { .. }) => {}
        Err(refusal) => tracing::warn!(%refusal, "{what} was not committed, trying again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn liveness() -> Liveness {
        Liveness::new(MS(800), MS(0))
    }

    #[test]
    fn stores_that_come_and_go_by_the_hundred_make_one_short_line_a_second() {
        let (mut logged, liveness) = (LastLogged::default(), liveness());
        let many: Vec<_> = (0..400).map(StoreId).collect();
        for store in &many {
            liveness.opened(*store, MS(0));
        }
        assert_eq!(logged.of(1, &liveness, |_| true, MS(0)), None, "nothing is suspect, as before");
        for store in &many {
            liveness.closed(*store);
        }
        let mut lines = Vec::new();
        for look in 0..100 {
            liveness.opened(many[399 - look], MS(100 * look as u64));
            for store in &many[400 - look..] {
                liveness.beat(*store, MS(100 * look as u64));
            }
            liveness.refresh(many.iter().copied(), MS(100 * look as u64));
            lines.extend(logged.of(1, &liveness, |_| true, MS(100 * look as u64)));
        }
        assert_eq!(lines.len(), 10, "of a hundred changes in ten seconds");
        assert_eq!(lines[0], StoresLine { suspects: many[..8].to_vec(), more: 391, back: vec![] });
        assert_eq!((lines[1].more, lines[1].back.len()), (381, 8));
        assert!(lines.iter().all(|line| line.suspects.len() <= 8));
        for store in &many {
            liveness.opened(*store, MS(9_950));
        }
        liveness.refresh(many.iter().copied(), MS(9_950));
        assert_eq!(logged.of(1, &liveness, |_| true, MS(9_950)), None);
        let last = logged.of(1, &liveness, |_| true, MS(10_100)).unwrap();
        assert_eq!((last.suspects, last.more), (vec![], 0), "the last state is logged, a little later");
    }

    #[test]
    fn a_store_that_is_unmounted_is_not_back() {
        let (store, other) = (StoreId(7), StoreId(8));
        let (mut logged, liveness) = (LastLogged::default(), liveness());
        for store in [store, other] {
            liveness.opened(store, MS(10));
            liveness.closed(store);
            assert!(liveness.look_at(store, MS(20)));
        }
        // One is unmounted, so no look finds it any more; the other one is back.
        liveness.opened(other, MS(30));
        assert!(liveness.refresh([other].into_iter(), MS(30)));
        let line = logged.of(1, &liveness, |it| it == other, MS(100)).unwrap();
        assert_eq!(line, StoresLine { suspects: vec![], more: 0, back: vec![other] });

        liveness.closed(other);
        assert!(liveness.look_at(other, MS(200)));
        assert!(liveness.refresh([].into_iter(), MS(210)));
        assert_eq!(logged.of(1, &liveness, |_| false, MS(5_000)), None, "its unmount has a line of its own");
    }

    #[test]
    fn a_store_that_reconnects_between_two_looks_is_named() {
        let store = StoreId(7);
        let (mut logged, first) = (LastLogged::default(), liveness());
        let reconnects = |liveness: &Liveness| {
            liveness.opened(store, MS(10));
            liveness.closed(store);
            assert!(liveness.look_at(store, MS(20)));
            liveness.opened(store, MS(30));
            assert!(liveness.look_at(store, MS(30)));
        };
        let line = StoresLine { suspects: vec![], more: 0, back: vec![store] };
        reconnects(&first);
        assert_eq!(logged.of(1, &first, |_| true, MS(100)).as_ref(), Some(&line));
        assert_eq!(logged.of(1, &first, |_| true, MS(5_000)), None, "once");
        let next = liveness();
        reconnects(&next);
        assert_eq!(
            logged.of(2, &next, |_| true, MS(7_000)).as_ref(),
            Some(&line),
            "each term counts its own changes"
        );
    }

    #[test]
    fn the_end_of_a_suspicion_is_said_in_the_next_term() {
        let store = StoreId(7);
        let (mut logged, first) = (LastLogged::default(), liveness());
        first.opened(store, MS(10));
        first.closed(store);
        first.refresh(std::iter::once(store), MS(20));
        assert_eq!(logged.of(1, &first, |_| true, MS(100)).unwrap().suspects, [store]);
        assert_eq!(
            logged.of(2, &liveness(), |_| true, MS(2_000)),
            Some(StoresLine { suspects: vec![], more: 0, back: vec![] })
        );
    }
}
