//! Whether calls can reach a leader. This is the only place that switches into local-only mode and out of it.

use std::sync::Arc;
use std::time::Duration;

use mc_discovery::Leader;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::masters::{MastersState, Refusal};
use crate::metrics::Counters;

/// Whether a client can work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// A leader is known, or the leader timeout has not passed yet without one.
    Healthy,
    /// No leader is in reach: see [`Mode::LocalOnly`].
    NoLeader,
    /// The client was closed, or the runtime that it was [given](crate::Builder::runtime) has ended.
    Closed,
}

/// Whether the client reaches a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A leader is known, or the leader timeout has not passed yet without one.
    Connected,
    /// No leader has answered for the leader timeout. Gets read the local cache and an embedded store's memory, and
    /// puts stay in the cache.
    LocalOnly,
}

/// The leader to call, or why there is none.
#[derive(Clone, Debug)]
pub(crate) enum ClientMode {
    /// No leader is known, and the leader timeout has not passed.
    Searching,
    /// This master leads.
    Leader(Arc<Leader>),
    /// No leader has answered for the leader timeout.
    LocalOnly,
    /// Every master that has answered so far is unusable: another protocol version or another cluster.
    Refused(Arc<Refusal>),
    /// The client was closed.
    Closed,
}

impl ClientMode {
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Leader(a), Self::Leader(b)) => a == b,
            (Self::Refused(a), Self::Refused(b)) => a == b,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

/// Derives the mode from what is known of the masters, and from the time without a leader.
#[derive(Debug)]
pub(crate) struct ModeSwitch {
    leader_timeout: Duration,
    counters: Arc<Counters>,
    inputs: Mutex<Inputs>,
    mode: watch::Sender<ClientMode>,
    /// Time at which local-only mode begins if no leader is found before.
    deadline: watch::Sender<Option<Instant>>,
}

/// All that decides about the mode.
#[derive(Debug, Default)]
struct Inputs {
    leader: Option<Arc<Leader>>,
    refusal: Option<Arc<Refusal>>,
    leaderless_since: Option<Instant>,
    local_only: bool,
    closed: bool,
}

impl Inputs {
    fn mode(&self) -> ClientMode {
        match (&self.leader, &self.refusal) {
            _ if self.closed => ClientMode::Closed,
            (Some(leader), _) => ClientMode::Leader(Arc::clone(leader)),
            (None, Some(refusal)) => ClientMode::Refused(Arc::clone(refusal)),
            (None, None) if self.local_only => ClientMode::LocalOnly,
            (None, None) => ClientMode::Searching,
        }
    }
}

impl ModeSwitch {
    pub(crate) fn new(leader_timeout: Duration, counters: Arc<Counters>) -> Self {
        let now = Instant::now();
        let inputs = Inputs { leaderless_since: Some(now), ..Inputs::default() };
        Self {
            leader_timeout,
            counters,
            inputs: Mutex::new(inputs),
            mode: watch::Sender::new(ClientMode::Searching),
            deadline: watch::Sender::new(Some(now + leader_timeout)),
        }
    }

    pub(crate) fn get(&self) -> ClientMode {
        self.mode.borrow().clone()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<ClientMode> {
        self.mode.subscribe()
    }

    /// Takes over what is known of the masters now.
    pub(crate) fn follow(&self, masters: &MastersState) {
        self.change(|inputs| {
            inputs.leader.clone_from(&masters.leader);
            inputs.refusal.clone_from(&masters.refusal);
            inputs.leaderless_since = masters.leaderless_since;
            inputs.local_only &= masters.leader.is_none();
        });
    }

    /// Enters local-only mode each time that the leader timeout has passed.
    pub(crate) async fn run(&self) {
        let mut deadline = self.deadline.subscribe();
        loop {
            let until = *deadline.borrow_and_update();
            tokio::select! {
                // The sender is borrowed, so it cannot be gone.
                _ = deadline.changed() => {}
                () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {
                    let now = Instant::now();
                    self.change(|inputs| {
                        inputs.local_only |=
                            inputs.leaderless_since.is_some_and(|since| now >= since + self.leader_timeout);
                    });
                }
            }
        }
    }

    pub(crate) fn close(&self) {
        self.change(|inputs| inputs.closed = true);
    }

    /// Applies a change and publishes the new mode to the calls, the counters and the log.
    fn change(&self, change: impl FnOnce(&mut Inputs)) {
        let mut inputs = self.inputs.lock();
        let was_local_only = inputs.local_only;
        change(&mut inputs);
        let mode = inputs.mode();
        self.mode.send_if_modified(|before| {
            let changed = !before.is_same(&mode);
            *before = mode;
            changed
        });
        let deadline =
            inputs.leaderless_since.filter(|_| !inputs.local_only).map(|since| since + self.leader_timeout);
        self.deadline.send_if_modified(|before| std::mem::replace(before, deadline) != deadline);
        if inputs.local_only == was_local_only || inputs.closed {
            return;
        }
        if inputs.local_only {
            self.counters.local_only_entries.one();
            tracing::warn!(
                timeout_ms = u64::try_from(self.leader_timeout.as_millis()).unwrap_or(u64::MAX),
                "no leader answers, entering local-only mode: gets are served from the local cache and this \
                 process's own store, puts stay in the local cache"
            );
        } else if let Some(leader) = &inputs.leader {
            tracing::info!(
                address = leader.address,
                term = leader.term,
                "leader found: left local-only mode"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use mc_types::NodeId;

    use super::*;

    fn state(leader: Option<Leader>) -> MastersState {
        let leaderless_since = leader.is_none().then(Instant::now);
        MastersState {
            leader: leader.map(Arc::new),
            refusal: None,
            leaderless_since,
            doubted: false,
            targets: Arc::new(BTreeSet::new()),
            all_tried: true,
        }
    }

    #[tokio::test]
    async fn local_only_mode_begins_when_the_timeout_has_passed_and_ends_with_a_leader() {
        let counters = Arc::new(Counters::new());
        let switch = ModeSwitch::new(Duration::from_millis(1), counters.clone());
        let mut mode = switch.subscribe();
        let entered = async {
            assert!(mode.wait_for(|mode| matches!(mode, ClientMode::LocalOnly)).await.is_ok());
        };
        tokio::select! {
            () = entered => {}
            () = switch.run() => unreachable!("it never ends"),
        }
        assert_eq!(counters.stats(0).local_only_entries, 1);
        let leader = Leader { node: NodeId(1), address: "m:1".to_owned(), term: 1 };
        switch.follow(&state(Some(leader)));
        assert!(matches!(switch.get(), ClientMode::Leader(_)));
        switch.follow(&state(None));
        assert!(matches!(switch.get(), ClientMode::Searching), "the time counts from the loss of the leader");
        switch.close();
        assert!(matches!(switch.get(), ClientMode::Closed));
    }
}
