use std::time::Duration;

use mc_raft::Leadership;

use super::tasks::Tasks;
use crate::leader::Services;

/// Time without a leader after which this master logs a warning: no election takes that long.
const LEADERLESS: Duration = Duration::from_secs(3);

impl Tasks {
    /// Logs each new leader, and warns when there is none for [`LEADERLESS`].
    pub(super) async fn report_leaders(&self, services: &Services) {
        let mut leadership = services.raft.leadership();
        let mut said = None;
        let mut warned = false;
        loop {
            let Leadership { term, leader, .. } = leadership.borrow_and_update().clone();
            match leader {
                // The same leader at another address, or heard again, is no change of leader.
                Some((leader, master)) if warned || said != Some((term, leader)) => {
                    self.metrics.leader_changed();
                    tracing::info!(term, %leader, address = master.client, "leader");
                    (said, warned) = (Some((term, leader)), false);
                }
                Some(_) => {}
                None if warned => {}
                None => match tokio::time::timeout(LEADERLESS, leadership.changed()).await {
                    Ok(_) => continue,
                    Err(_) => {
                        tracing::warn!(
                            term,
                            "waiting: {}",
                            services.coordinator.status_view(None, |view| view.waiting_for)
                        );
                        warned = true;
                    }
                },
            }
            if leadership.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}
