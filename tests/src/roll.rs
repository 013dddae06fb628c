use std::time::Duration;

use crate::{Cluster, is_ready, until_within};

/// Longest wait for a master that was rolled. Without `--ephemeral` a leader gives one vote a minute to what starts with an
/// empty disk.
const READY: Duration = Duration::from_secs(150);

/// Order in which a roll stops and starts the masters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RollOrder {
    /// The leader, as long as the roll has not come to it.
    LeaderFirst,
    /// The leader goes last.
    LeaderLast,
    /// By number from the highest, as a Kubernetes StatefulSet does.
    HighestFirst,
}

/// Fate of a master's disk in a roll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RollDisk {
    /// It starts with its data.
    Kept,
    /// It starts with an empty data directory.
    Wiped,
}

impl Cluster {
    /// Restarts every master once, one after the other, as somebody does who looks at nothing but `/readyz`: SIGTERM, start,
    /// and on to the next one as soon as the restarted one says 200. Calls `rolled` after each.
    pub async fn roll(&mut self, order: RollOrder, disk: RollDisk, mut rolled: impl FnMut(usize)) {
        let mut left: Vec<usize> = (0..self.masters.len()).collect();
        while let Some(highest) = left.last().copied() {
            let next = match order {
                RollOrder::HighestFirst => highest,
                RollOrder::LeaderFirst | RollOrder::LeaderLast => {
                    let leader = self.leader().await;
                    let first = order == RollOrder::LeaderFirst;
                    left.iter().copied().find(|master| (*master == leader) == first).unwrap_or(highest)
                }
            };
            left.retain(|master| *master != next);
            let status = self.masters[next].terminate().await;
            assert_eq!(
                status.code(),
                Some(0),
                "{} that is asked to stop stops well",
                self.masters[next].name()
            );
            if disk == RollDisk::Wiped {
                self.wipe_master(next);
            }
            self.masters[next].start();
            self.master_ready(next).await;
            rolled(next);
        }
    }

    /// Waits until one master says at `/readyz` that it is ready.
    pub async fn master_ready(&self, master: usize) {
        until_within(READY, format!("{} is ready", self.masters[master].name()), async || {
            is_ready(self.master_http(master)).await
        })
        .await;
    }
}
