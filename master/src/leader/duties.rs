//! A leader's duties that no call asks for: keep the time, watch the stores, clean up.

use std::sync::Arc;
use std::time::Duration;

use mc_index::Request;
use mc_types::StoreId;
use tokio::time::Instant;

use super::liveness::LOOK_INTERVAL;
use super::{Coordinator, Leading, Refusal, Services};

/// Interval at which an idle leader logs the time, so that deadlines pass and a successor starts from a recent stamp.
const TICK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of objects that one entry frees after a store was dropped, or after a `remove_all`.
const SWEEP_LIMIT: u32 = 1024;

/// Watches the stores until this master stops; does nothing while it does not lead. Runs apart from the duties that
/// commit entries, so that waiting for a commit does not hide a store's silence.
pub(crate) async fn watch_stores(services: Arc<Services>) {
    let coordinator = &services.coordinator;
    let mut said = Said::default();
    while pause(coordinator, LOOK_INTERVAL).await {
        match coordinator.on_duty() {
            Some(leading) => {
                services.stores.refresh_suspects(&leading);
                if let Some((suspects, more)) = said.of(&leading.liveness.suspects(), leading.elapsed()) {
                    tracing::info!(?suspects, more, "stores changed");
                }
            }
            // Being unsure for a moment is not the end of a term.
            None if coordinator.raft.view().role != "leader" => coordinator.step_down(),
            None => {}
        }
    }
}

/// Suspects as last logged. Many stores that come and go at once make few log lines, and short ones.
#[derive(Debug, Default)]
struct Said {
    suspects: Vec<StoreId>,
    at: Option<Duration>,
}

impl Said {
    /// Least time between two lines.
    const EACH: Duration = Duration::from_secs(1);
    /// Most ids in a line; the others are counted.
    const IDS: usize = 8;

    /// Returns the line to log now, if any: the first suspects, and how many more there are.
    fn of(&mut self, suspects: &[StoreId], now: Duration) -> Option<(Vec<StoreId>, usize)> {
        if self.suspects == suspects || self.at.is_some_and(|at| now.saturating_sub(at) < Self::EACH) {
            return None;
        }
        self.at = Some(now);
        self.suspects = suspects.to_vec();
        let named: Vec<_> = suspects.iter().copied().take(Self::IDS).collect();
        let more = suspects.len() - named.len();
        Some((named, more))
    }
}

/// Proposes the entries of a leader's duties until this master stops; does nothing while it does not lead.
pub(crate) async fn keep_the_log_going(services: Arc<Services>) {
    let coordinator = &services.coordinator;
    let mut last_tick = Instant::now();
    while pause(coordinator, LOOK_INTERVAL).await {
        let Some(leading) = coordinator.on_duty() else { continue };
        let seeded = services.configuration.seed(&leading).await;
        if !seeded.as_ref().is_ok_and(|seeded| *seeded) {
            log_failure("the entry of the cluster's settings", seeded.map(drop));
            continue;
        }
        sweep(coordinator, &leading).await;
        if last_tick.elapsed() < TICK_INTERVAL {
            continue;
        }
        last_tick = Instant::now();
        leading.sweep_leases();
        // The applied settings include changes whose callers gave up waiting.
        leading.adopt(&coordinator.index.read(|applied| applied.state.settings().clone()));
        log_failure("a tick", coordinator.propose(&leading, Request::tick()).await);
        drop_dead_stores(coordinator, &leading).await;
    }
}

/// Sleeps for `span`; returns false if this master stops meanwhile.
pub(super) async fn pause(coordinator: &Coordinator, span: Duration) -> bool {
    tokio::select! {
        () = coordinator.stop.cancelled() => false,
        () = tokio::time::sleep(span) => true,
    }
}

/// Drops stores that have been silent for `store_ttl`, counted at the earliest from when this leader began to listen.
async fn drop_dead_stores(coordinator: &Coordinator, leading: &Leading) {
    let now = leading.elapsed();
    let dead: Vec<_> = coordinator.index.read(|applied| {
        let ttl = Duration::from_millis(applied.state.settings().store_ttl_ms);
        applied.state.mounted().filter(|(store, _)| leading.liveness.silence(*store, now) >= ttl).collect()
    });
    for (store, epoch) in dead {
        tracing::warn!(%store, "store was silent for store_ttl: its replicas are dropped");
        let dropped = coordinator.propose(leading, Request::drop_store(store, epoch)).await;
        log_failure("the removal of a silent store", dropped.map(drop));
    }
}

/// Frees what dropped stores held, one slice per entry, so that no entry takes long to apply.
async fn sweep(coordinator: &Coordinator, leading: &Leading) {
    while coordinator.index.read(|applied| applied.state.needs_sweep()) {
        match coordinator.propose(leading, Request::sweep(SWEEP_LIMIT)).await {
            Ok(more) => {
                coordinator.room.swept();
                if !more {
                    return;
                }
            }
            Err(refusal) => return log_failure("a sweep of freed objects", Err(refusal)),
        }
    }
}

fn log_failure(what: &str, outcome: Result<(), Refusal>) {
    match outcome {
        // Losing the leadership ends these duties; the next leader does them.
        Ok(()) | Err(Refusal::NotLeader { .. }) => {}
        Err(refusal) => tracing::warn!(%refusal, "{what} was not committed; trying again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_that_come_and_go_by_the_hundred_make_one_short_line_a_second() {
        let ms = Duration::from_millis;
        let mut said = Said::default();
        let many: Vec<_> = (0..400).map(StoreId).collect();
        assert_eq!(said.of(&[], ms(0)), None, "nothing is suspect, as before");
        let mut lines = Vec::new();
        for look in 0..100 {
            let suspects = &many[..400 - look];
            lines.extend(said.of(suspects, ms(100 * look as u64)));
        }
        assert_eq!(lines.len(), 10, "of a hundred changes in ten seconds");
        assert_eq!(lines[0], (many[..8].to_vec(), 392));
        assert!(lines.iter().all(|(named, _)| named.len() <= 8));
        assert_eq!(said.of(&[], ms(9_950)), None);
        assert_eq!(said.of(&[], ms(10_100)), Some((vec![], 0)), "the last state is said, a little later");
    }
}
