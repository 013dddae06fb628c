//! Whether a leader can write, by openraft's rule.
//!
//! openraft refuses proposals once no majority has answered a heartbeat within a maximum election timeout. It counts
//! only answers that arrive in time ([`RaftTiming::answer_limit`]). Followers that hear a leader elect no other one,
//! however late it hears their answers. Such a leader stays leader although it can't write, so it has to report that.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mc_log::TypeConfig;
use mc_types::NodeId;
use openraft::alias::{InstantOf, WatchReceiverOf};
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::{Instant as _, RaftMetrics, ServerState};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use super::acks::Acks;
use crate::timing::RaftTiming;

/// Whether openraft takes proposals from this node at `now`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writing {
    /// It does not lead.
    NotLeader,
    /// It leads and a majority follows.
    Open,
    /// It leads, and every proposal is refused.
    Refused,
}

/// openraft's own type for moments, which others can only take and compare.
pub(crate) type RaftInstant = InstantOf<TypeConfig>;

/// Returns whether openraft takes proposals, by its own rule and metrics; its lease is `lease` long.
pub(crate) fn writing(
    metrics: &RaftMetrics<TypeConfig>,
    me: NodeId,
    now: RaftInstant,
    lease: Duration,
) -> Writing {
    let vote = &metrics.vote;
    if metrics.state != ServerState::Leader || !vote.committed || vote.leader_id.voted_for != me {
        return Writing::NotLeader;
    }
    let mut voters = metrics.membership_config.membership().voter_ids();
    if voters.next() == Some(me) && voters.next().is_none() {
        return Writing::Open;
    }
    let answered = metrics.last_quorum_acked.as_ref().map(|at| **at);
    if answered.is_some_and(|at| now < at + lease) { Writing::Open } else { Writing::Refused }
}

/// Reason why a leader can't write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The last measured round trip to each other voter; `None` if no answer came lately.
    round_trips: Vec<(NodeId, Option<Duration>)>,
    /// Time limit of answers; later ones do not count.
    limit: Duration,
    /// The longest round trip that the Raft timing supports.
    supported: Duration,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "this leader can't write: no majority answers its heartbeats within {} ms (round trip",
            self.limit.as_millis()
        )?;
        for (at, (node, round_trip)) in self.round_trips.iter().enumerate() {
            write!(f, "{} node {node}: ", if at == 0 { "" } else { "," })?;
            match round_trip {
                Some(round_trip) => write!(f, "{} ms", round_trip.as_millis())?,
                None => f.write_str("no answer")?,
            }
        }
        write!(
            f,
            "); the --raft-timing in force supports up to {} ms. Repair the network between the masters, or stop all masters \
             and start them with a slower timing",
            self.supported.as_millis()
        )
    }
}

/// Time within which a leader that can't write again does not warn again.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Publishes the reason why this leader can't write, while it can't, until Raft ends. A new leader has no answer yet,
/// and a single late one means nothing, so the state must last for a lease.
pub(crate) async fn watch(
    metrics: WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>,
    me: NodeId,
    acks: Arc<Acks>,
    timing: RaftTiming,
    out: watch::Sender<Option<Blocked>>,
) {
    let lease = timing.election_max;
    let mut ticks = tokio::time::interval(lease / 6);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut refused_since, mut warned_at, mut warned) = (None, None::<Instant>, false);
    loop {
        let now = ticks.tick().await;
        let seen = {
            let metrics = metrics.borrow_watched();
            if metrics.running_state.is_err() {
                return;
            }
            (writing(&metrics, me, RaftInstant::now(), lease) == Writing::Refused)
                .then(|| metrics.membership_config.membership().voter_ids().collect::<Vec<_>>())
        };
        let Some(voters) = seen else {
            refused_since = None;
            if out.send_replace(None).is_some() && std::mem::take(&mut warned) {
                tracing::info!("this leader can write again, or leads no more");
            }
            continue;
        };
        if now.duration_since(*refused_since.get_or_insert(now)) < lease {
            continue;
        }
        let others = voters.into_iter().filter(|voter| *voter != me);
        let blocked = Blocked {
            round_trips: others.map(|voter| (voter, acks.round_trip(voter))).collect(),
            limit: timing.answer_limit(),
            supported: timing.supported_round_trip(),
        };
        let due = warned_at.is_none_or(|at| now.duration_since(at) >= WARN_EVERY);
        if !warned && due {
            tracing::warn!("{blocked}");
            (warned_at, warned) = (Some(now), true);
        }
        out.send_replace(Some(blocked));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use openraft::metrics::SerdeInstant;

    use super::*;
    use mc_log::{Membership, StoredMembership, Vote};

    const ME: NodeId = NodeId(1);
    const LEASE: Duration = Duration::from_millis(300);

    #[test]
    fn a_leader_writes_while_a_majority_answered_within_the_lease() {
        let now = RaftInstant::now();
        let leading = |voters: &[u64], answered: Option<RaftInstant>| {
            let voters: BTreeSet<_> = voters.iter().copied().map(NodeId).collect();
            let membership = Membership::new_with_defaults(vec![voters], []);
            RaftMetrics {
                state: ServerState::Leader,
                vote: Vote::new_committed(7, ME),
                membership_config: Arc::new(StoredMembership::new(None, membership)),
                last_quorum_acked: answered.map(SerdeInstant::new),
                ..RaftMetrics::new_initial(ME)
            }
        };
        let at = |metrics: &RaftMetrics<TypeConfig>, ms| {
            writing(metrics, ME, now + Duration::from_millis(ms), LEASE)
        };
        let led = leading(&[1, 2, 3], Some(now));
        assert_eq!((at(&led, 299), at(&led, 300)), (Writing::Open, Writing::Refused));
        assert_eq!(at(&leading(&[1, 2, 3], None), 0), Writing::Refused, "nobody has answered yet");
        assert_eq!(at(&leading(&[1], None), 9_000), Writing::Open, "a single voter follows itself");
        let follows = RaftMetrics { state: ServerState::Follower, ..led.clone() };
        assert_eq!(at(&follows, 400), Writing::NotLeader);
        let stands = RaftMetrics { vote: Vote::new(8, ME), ..led };
        assert_eq!(at(&stands, 400), Writing::NotLeader);
    }

    #[test]
    fn the_warning_has_the_round_trips_and_what_is_supported() {
        let blocked = Blocked {
            round_trips: vec![(NodeId(2), Some(Duration::from_millis(180))), (NodeId(3), None)],
            limit: Duration::from_millis(112),
            supported: Duration::from_millis(75),
        };
        let text = blocked.to_string();
        for part in ["within 112 ms", "180 ms", "no answer", "up to 75 ms"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
