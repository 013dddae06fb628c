use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use mc_discovery::Leader;
use mc_types::{Clock, ClusterId, ClusterTime, SegmentEpoch};
use parking_lot::Mutex;
use tokio::sync::watch;

/// State of the link to the masters; written by its thread, read by health, metrics and the finder.
#[derive(Debug)]
pub(crate) struct LinkStatus {
    clock: Clock,
    state: Mutex<LinkState>,
    /// Bytes of each segment that the masters should mount, by number; 0 for one that they should unmount.
    wanted: watch::Sender<Vec<u64>>,
    /// The list that a leader of the present cluster has mounted last.
    mounted: watch::Sender<Vec<u64>>,
}

/// State of the link at one moment.
#[derive(Clone, Debug)]
pub(crate) struct LinkState {
    /// The cluster that this store belongs to, once known.
    pub(crate) cluster: Option<ClusterId>,
    /// Latest cluster time that its masters reported.
    pub(crate) cluster_time: ClusterTime,
    /// Client addresses of the masters that the store knows.
    pub(crate) masters: Arc<BTreeSet<String>>,
    /// Leader that the heartbeats go to, or last went to.
    pub(crate) leader: Option<Leader>,
    /// The current allocation of the memory.
    pub(crate) epoch: SegmentEpoch,
    /// Time at which a leader last confirmed the mount of this epoch. `None` before the first time, after the epoch
    /// changed, and while the leader denies the mount.
    pub(crate) mounted_at: Option<Duration>,
    /// Term of the leader that last confirmed the mount.
    pub(crate) mounted_term: u64,
    /// Heartbeat interval that the cluster asks for.
    pub(crate) heartbeat: Duration,
    /// Time over which the stores of the cluster move to another leader.
    pub(crate) spread: Duration,
    /// Mounts that a leader accepted.
    pub(crate) mounts: u64,
    /// Changes of the grant key that a leader has mounted.
    pub(crate) key_changes: u64,
    /// Epochs that were given up with what the memory held.
    pub(crate) dead_epochs: u64,
    /// Reason why the store waits; empty while all is well.
    pub(crate) waiting_for: String,
}

impl LinkStatus {
    pub(crate) fn new(
        clock: Clock,
        cluster: Option<ClusterId>,
        epoch: SegmentEpoch,
        segments: Vec<u64>,
    ) -> Self {
        let state = LinkState {
            cluster,
            cluster_time: ClusterTime(0),
            masters: Arc::default(),
            leader: None,
            epoch,
            mounted_at: None,
            mounted_term: 0,
            heartbeat: Duration::from_millis(200),
            spread: Duration::ZERO,
            mounts: 0,
            key_changes: 0,
            dead_epochs: 0,
            waiting_for: String::new(),
        };
        let (wanted, mounted) = (watch::Sender::new(segments), watch::Sender::default());
        Self { clock, state: Mutex::new(state), wanted, mounted }
    }

    /// Adds a segment that the masters should mount.
    pub(crate) fn want_mounted(&self, bytes: u64) {
        self.wanted.send_modify(|segments| segments.push(bytes));
    }

    /// Lets the masters unmount a segment, if `may` permits it for the list as it is now.
    pub(crate) fn want_unmounted<E>(
        &self,
        place: usize,
        may: impl FnOnce(&[u64]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut permitted = Ok(());
        self.wanted.send_if_modified(|segments| {
            permitted = may(segments);
            let changes = permitted.is_ok() && segments.get(place).is_some_and(|bytes| *bytes > 0);
            if changes {
                segments[place] = 0;
            }
            changes
        });
        permitted
    }

    pub(crate) fn wanted(&self) -> watch::Receiver<Vec<u64>> {
        self.wanted.subscribe()
    }

    /// Whether the masters have mounted what they should.
    pub(crate) fn all_mounted(&self) -> bool {
        *self.mounted.borrow() == *self.wanted.borrow()
    }

    /// Records that a leader has mounted this list.
    pub(crate) fn note_mounted(&self, segments: Vec<u64>) {
        self.mounted.send_replace(segments);
    }

    /// Records that nothing is known of what the masters have mounted: they are those of another cluster.
    pub(crate) fn forget_mounted(&self) {
        self.mounted.send_replace(Vec::new());
    }

    /// Waits until a leader has mounted segment `number` with so many bytes.
    pub(crate) async fn until_mounted(&self, number: usize, bytes: u64) {
        // The sender lives as long as this status.
        let _ = self.mounted.subscribe().wait_for(|segments| segments.get(number) == Some(&bytes)).await;
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

    /// Records that the leader of `term` has just confirmed the mount of this epoch.
    pub(crate) fn beat(&self, term: u64) {
        let now = self.clock.now();
        self.update(|state| {
            state.mounted_at = Some(now);
            state.mounted_term = term;
            state.waiting_for.clear();
        });
    }

    /// Returns the term of the leader that last confirmed the mount; `None` if this epoch was never confirmed, or the
    /// leader denies the mount.
    pub(crate) fn mounted_in_term(&self) -> Option<u64> {
        let state = self.state.lock();
        state.mounted_at.map(|_| state.mounted_term)
    }

    /// Returns the time since a leader last confirmed the mount; `None` if this epoch was never confirmed, or the
    /// leader denies the mount.
    pub(crate) fn age(&self) -> Option<Duration> {
        let mounted_at = self.state.lock().mounted_at?;
        Some(self.clock.now().saturating_sub(mounted_at))
    }

    /// Returns whether a leader confirmed the mount within the last second; `/readyz` reports this.
    pub(crate) fn ready(&self) -> bool {
        self.age().is_some_and(|age| age < Duration::from_secs(1))
    }

    /// Checks that no leader has confirmed the mount for two heartbeats: time to look for another leader.
    ///
    /// # Errors
    /// The time left until then.
    pub(crate) fn check_silence(&self) -> Result<(), Duration> {
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
