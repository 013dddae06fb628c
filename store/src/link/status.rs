use std::time::Duration;

use mc_types::{Clock, ClusterId, ClusterTime, SegmentEpoch};
use parking_lot::Mutex;

use super::leaders::Leader;

/// State of the link to the masters; written by its thread, read by health, metrics and the finder.
#[derive(Debug)]
pub(crate) struct LinkStatus {
    clock: Clock,
    state: Mutex<LinkState>,
}

/// One reading of the link.
#[derive(Clone, Debug)]
pub(crate) struct LinkState {
    /// The cluster that this store belongs to, once met.
    pub(crate) cluster: Option<ClusterId>,
    /// The latest time that its masters named.
    pub(crate) cluster_time: ClusterTime,
    /// Whom the heartbeats go to, or last went to.
    pub(crate) leader: Option<Leader>,
    /// The current allocation of the memory.
    pub(crate) epoch: SegmentEpoch,
    /// When a leader last said that this epoch is mounted; `None` before the first time, after the epoch changed and
    /// while the leader says that it is not.
    pub(crate) mounted_at: Option<Duration>,
    /// The term of the leader that said so.
    pub(crate) mounted_term: u64,
    /// The interval that the cluster asks for.
    pub(crate) heartbeat: Duration,
    /// Over how long the stores go over to another leader.
    pub(crate) spread: Duration,
    /// Mounts that were answered.
    pub(crate) mounts: u64,
    /// Epochs that a leader declared dead.
    pub(crate) dead_epochs: u64,
    /// The reason why the store waits; empty while all is well.
    pub(crate) waiting_for: String,
}

impl LinkStatus {
    pub(crate) fn new(clock: Clock, cluster: Option<ClusterId>, epoch: SegmentEpoch) -> Self {
        let state = LinkState {
            cluster,
            cluster_time: ClusterTime(0),
            leader: None,
            epoch,
            mounted_at: None,
            mounted_term: 0,
            heartbeat: Duration::from_millis(200),
            spread: Duration::ZERO,
            mounts: 0,
            dead_epochs: 0,
            waiting_for: String::new(),
        };
        Self { clock, state: Mutex::new(state) }
    }

    pub(crate) fn get(&self) -> LinkState {
        self.state.lock().clone()
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut LinkState)) {
        change(&mut self.state.lock());
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// The leader of `term` said just now that this epoch is mounted.
    pub(crate) fn beat(&self, term: u64) {
        let now = self.clock.now();
        self.update(|state| {
            state.mounted_at = Some(now);
            state.mounted_term = term;
            state.waiting_for.clear();
        });
    }

    /// The term of the leader that last said that this store is mounted.
    pub(crate) fn mounted_in_term(&self) -> Option<u64> {
        let state = self.state.lock();
        state.mounted_at.map(|_| state.mounted_term)
    }

    /// Time since a leader last said that this store is mounted.
    pub(crate) fn age(&self) -> Option<Duration> {
        let mounted_at = self.state.lock().mounted_at?;
        Some(self.clock.now().saturating_sub(mounted_at))
    }

    /// Mounted at a leader within the last second: what `/readyz` says.
    pub(crate) fn ready(&self) -> bool {
        self.age().is_some_and(|age| age < Duration::from_secs(1))
    }

    /// No leader has answered for two heartbeats: time to look for another. `Err` is how long that is off.
    pub(crate) fn quiet(&self) -> Result<(), Duration> {
        let (mounted_at, limit) = {
            let state = self.state.lock();
            (state.mounted_at, state.heartbeat * 2)
        };
        let Some(mounted_at) = mounted_at else { return Ok(()) };
        match (mounted_at + limit).checked_sub(self.clock.now()) {
            Some(off) if !off.is_zero() => Err(off),
            _ => Ok(()),
        }
    }
}
