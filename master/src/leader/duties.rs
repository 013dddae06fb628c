//! Duties of a leader that it does unasked: keep the time, watch the stores, clean up.

use std::sync::Arc;
use std::time::Duration;

use mc_index::{Op, Response};
use mc_types::StoreId;
use tokio::time::Instant;

use super::liveness::LOOK_INTERVAL;
use super::{Coordinator, Leading};
use crate::api::Refusal;

/// An idle leader logs the time so often, so that deadlines pass and a successor starts from a recent stamp.
const TICK_INTERVAL: Duration = Duration::from_secs(1);
/// Objects freed in one entry after a store was dropped.
const SWEEP_LIMIT: u32 = 1024;

/// Watches the stores until this master stops; does nothing while it does not lead. Apart from what has to be committed,
/// so that no wait for a commit makes a store's silence go unnoticed.
pub(crate) async fn watch_stores(coordinator: Arc<Coordinator>) {
    let mut said = Said::default();
    while pause(&coordinator, LOOK_INTERVAL).await {
        match coordinator.on_duty() {
            Some(leading) => {
                coordinator.refresh_suspects(&leading);
                if let Some((suspects, more)) = said.of(&leading.liveness.suspects(), leading.elapsed()) {
                    tracing::info!(?suspects, more, "stores changed");
                }
            }
            // Not sure to lead for a moment is not the end of a term.
            None if coordinator.raft.view().role != "leader" => coordinator.step_down(),
            None => {}
        }
    }
}

/// Suspects as the log names them. Many stores that come and go at once make few lines, and short ones.
#[derive(Debug, Default)]
struct Said {
    suspects: Vec<StoreId>,
    at: Option<Duration>,
}

impl Said {
    /// At most one line in this time.
    const EACH: Duration = Duration::from_secs(1);
    /// Ids in a line; the others are counted.
    const IDS: usize = 8;

    /// The line to log now, if any: the first suspects, and how many more there are.
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

/// Logs what has to be logged until this master stops; does nothing while it does not lead.
pub(crate) async fn keep_the_log_going(coordinator: Arc<Coordinator>) {
    let mut last_tick = Instant::now();
    while pause(&coordinator, LOOK_INTERVAL).await {
        let Some(leading) = coordinator.on_duty() else { continue };
        if !seed_settings(&coordinator, &leading).await || last_tick.elapsed() < TICK_INTERVAL {
            continue;
        }
        last_tick = Instant::now();
        leading.sweep_leases();
        // Also those whose change nobody waited for to the end.
        leading.adopt(&coordinator.index.read(|applied| applied.state.settings().clone()));
        log_failure("tick", coordinator.propose(&leading, Op::Tick).await.map(drop));
        drop_dead_stores(&coordinator, &leading).await;
        sweep(&coordinator, &leading).await;
    }
}

/// False when this master stops.
pub(super) async fn pause(coordinator: &Coordinator, span: Duration) -> bool {
    tokio::select! {
        () = coordinator.stop.cancelled() => false,
        () = tokio::time::sleep(span) => true,
    }
}

/// A cluster begins with version 0 and built-in settings. Its first leader logs what its flags ask for, and the version;
/// false while that is to be done.
async fn seed_settings(coordinator: &Coordinator, leading: &Leading) -> bool {
    if coordinator.index.read(|applied| applied.state.cluster_version()) > 0 {
        return true;
    }
    let version = coordinator.first_version().await;
    // Somebody may have finished the upgrade meanwhile, and set something since.
    let _one_at_a_time = coordinator.configuring.lock().await;
    if coordinator.index.read(|applied| applied.state.cluster_version()) > 0 {
        return false;
    }
    for op in [Op::SetSettings(coordinator.seed.clone()), Op::SetClusterVersion(version)] {
        if let Err(refusal) = coordinator.propose(leading, op).await {
            log_failure("the cluster's settings", Err(refusal));
            return false;
        }
    }
    // What this term holds was made with the built-in settings.
    coordinator.step_down();
    false
}

/// Drops stores that were silent for the whole of `store_ttl`, counted from when this leader began to listen.
async fn drop_dead_stores(coordinator: &Coordinator, leading: &Leading) {
    let now = leading.elapsed();
    let dead: Vec<_> = coordinator.index.read(|applied| {
        let ttl = Duration::from_millis(applied.state.settings().store_ttl_ms);
        applied.state.mounted().filter(|(store, _)| leading.liveness.silence(*store, now) >= ttl).collect()
    });
    for (store, epoch) in dead {
        tracing::warn!(%store, "store was silent for store_ttl: its replicas are dropped");
        log_failure(
            "drop store",
            coordinator.propose(leading, Op::DropStore { store, epoch }).await.map(drop),
        );
    }
}

/// Frees what dropped stores held, a slice an entry, so that no entry takes long to apply.
async fn sweep(coordinator: &Coordinator, leading: &Leading) {
    while coordinator.index.read(|applied| applied.state.needs_sweep()) {
        match coordinator.propose(leading, Op::Sweep { limit: SWEEP_LIMIT }).await {
            Ok(Response::Swept { more: true }) => {}
            Ok(_) => return,
            Err(refusal) => return log_failure("sweep", Err(refusal)),
        }
    }
}

fn log_failure(what: &str, outcome: Result<(), Refusal>) {
    match outcome {
        // Losing the leadership ends these duties; the next leader does them.
        Ok(()) | Err(Refusal::NotLeader { .. }) => {}
        Err(refusal) => tracing::warn!(%refusal, "{what} was not committed; it is tried again"),
    }
}

impl Coordinator {
    /// Brings the list of suspects up to date and tells the watchers when it changed; not while this master is unsure
    /// whether it leads: it then ends the streams of stores by itself, and that time is not counted as their silence. Calls
    /// that a quorum vouches for are answered by the list of before until the next look.
    pub(crate) fn refresh_suspects(&self, leading: &Leading) {
        if !self.is_on_duty(leading) {
            return;
        }
        let stores =
            self.index.read(|applied| applied.state.mounted().map(|(store, _)| store).collect::<Vec<_>>());
        if leading.liveness.refresh(stores.into_iter(), leading.elapsed()) {
            self.store_changes.send_modify(|changes| *changes += 1);
        }
    }

    /// The same about one store whose stream has begun or ended: a thousand of them that do so cost a thousand times
    /// this, and not the square of that.
    pub(crate) fn refresh_suspect(&self, leading: &Leading, store: StoreId) {
        // A store that is no longer mounted is not suspected either.
        let mounted = || self.index.read(|applied| applied.state.mounted_epoch(store).is_some());
        if self.is_on_duty(leading) && mounted() && leading.liveness.look_at(store, leading.elapsed()) {
            self.store_changes.send_modify(|changes| *changes += 1);
        }
    }

    /// Not by the soft state of a term that is over, whose streams end after it.
    fn is_on_duty(&self, leading: &Leading) -> bool {
        self.on_duty().is_some_and(|current| std::ptr::eq(&*current, leading))
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
