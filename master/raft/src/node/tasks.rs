//! Background tasks of a node.

use std::sync::Arc;
use std::time::Duration;

use mc_log::{LogId, Pace, Raft, SyncPace};
use openraft::async_runtime::watch::WatchReceiver;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::task::AbortOnDropHandle;

use super::leadership::Leadership;

use crate::apply::index::SharedIndex;
use crate::apply::state_machine::StateMachine;
use crate::lease::acks::Acks;
use crate::lease::restart_wait::RestartWait;
use crate::timing::RaftTiming;

pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(task))
}

/// Logs once a second how far a starting node has applied its log, up to the position that it had noted as committed.
pub(crate) fn say_what_is_applied(index: SharedIndex, committed: Option<LogId>) -> AbortOnDropHandle<()> {
    const SAY_EVERY: Duration = Duration::from_secs(1);
    spawn(async move {
        let mut ticks = tokio::time::interval_at(Instant::now() + SAY_EVERY, SAY_EVERY);
        loop {
            ticks.tick().await;
            let applied = index.read(|applied| applied.last_applied).map_or(0, |last| last.index);
            let of = committed.map_or(0, |last| last.index);
            tracing::info!(applied, of, "applying the Raft log");
        }
    })
}

/// Sends heartbeats at `pace` while this node leads. openraft's own heartbeats go on beside them, at intervals as long
/// as the time limit of an answer ([`crate::timing::RaftTiming::answer_limit`]). They keep followers from standing for
/// election when these heartbeats wait behind a full queue of proposals.
pub(crate) fn send_heartbeats(raft: Raft<StateMachine>, pace: Duration) -> AbortOnDropHandle<()> {
    spawn(async move {
        let mut ticks = tokio::time::interval(pace);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let metrics = raft.server_metrics();
        loop {
            ticks.tick().await;
            let leads = metrics.borrow_watched().state.is_leader();
            if leads && raft.trigger().heartbeat().await.is_err() {
                return;
            }
        }
    })
}

/// Lets openraft find out again which entries a peer has, when the peer has lost some that it acknowledged.
///
/// The leader has these entries and sends them again in the same term. A step-down would expose them instead: a
/// candidate without them could win. openraft lowers only its record of that peer, not what a quorum has accepted.
pub(crate) fn send_lost_entries_again(raft: Raft<StateMachine>, acks: Arc<Acks>) -> AbortOnDropHandle<()> {
    let mut losses = acks.losses();
    spawn(async move {
        let mut said = None;
        while losses.changed().await.is_ok() {
            let Some(lost) = *losses.borrow_and_update() else { continue };
            if said.replace(lost) != Some(lost) {
                tracing::error!("{lost}; this leader sends them again");
            }
            // The order matters: openraft must not see the peer's next conflict before it allows it.
            match raft.trigger().allow_next_revert(&lost.peer, true).await {
                Ok(Ok(())) => acks.forget(&lost),
                // This node does not lead any more, or the peer is no member: nothing has to be sent. Otherwise the
                // peer's next conflict leads here again.
                Ok(Err(error)) => tracing::info!("cannot resend lost entries to node {}: {error}", lost.peer),
                Err(_) => return,
            }
        }
    })
}

/// Warns, at most once a minute, while there is no leader and this node's log takes longer for a sync than an election
/// allows.
///
/// A vote counts once it is durable. Where that takes a majority's disks too long ([`RaftTiming::longest_sync`]), votes
/// come after the next candidate has begun, and no election may ever have a winner.
pub(crate) fn warn_of_slow_votes(
    leadership: watch::Receiver<Leadership>,
    pace: Arc<SyncPace>,
    timing: RaftTiming,
) -> AbortOnDropHandle<()> {
    const LOOK_EVERY: Duration = Duration::from_secs(1);
    const WARN_EVERY: Duration = Duration::from_secs(60);
    spawn(async move {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut leaderless, mut warned) = (None, None::<Instant>);
        loop {
            let now = ticks.tick().await;
            if leadership.borrow().leader.is_some() {
                leaderless = None;
                continue;
            }
            let since = now - *leaderless.get_or_insert(now);
            let sync = late_votes(pace.now(), timing);
            if let Some(warning) = sync.and_then(|sync| slow_votes(since, sync, timing))
                && warned.is_none_or(|at| now - at >= WARN_EVERY)
            {
                tracing::warn!("{warning}");
                warned = Some(now);
            }
        }
    })
}

/// Returns the median duration of the log's latest syncs, if it is too long for an election.
pub(crate) fn late_votes(pace: Option<Pace>, timing: RaftTiming) -> Option<Duration> {
    pace.map(|pace| pace.median).filter(|sync| *sync > timing.longest_sync())
}

/// Returns the warning for a node that has known no leader for a while, and whose syncs take that long.
fn slow_votes(leaderless: Duration, sync: Duration, timing: RaftTiming) -> Option<String> {
    // An election or two may fail for other reasons.
    (leaderless >= timing.election_max * 6).then(|| {
        format!(
            "no leader has been elected for {} s, and this master's disk takes {} ms for a sync of the log: an election \
             takes two such syncs, and times out after {} to {} ms. Give the masters' logs faster disks, or stop all masters \
             and start them with a slower --raft-timing",
            leaderless.as_secs(),
            sync.as_millis(),
            timing.election_min.as_millis(),
            timing.election_max.as_millis()
        )
    })
}

/// Lets the node stand for election when its wait after the restart is over, then calls `over`.
pub(crate) fn stand_when_over(
    raft: Raft<StateMachine>,
    restart_wait: RestartWait,
    over: impl FnOnce() + Send + 'static,
) -> AbortOnDropHandle<()> {
    spawn(async move {
        restart_wait.over().await;
        over();
        raft.runtime_config().elect(true);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_syncs_are_named_while_elections_fail() {
        let ms = Duration::from_millis;
        let said = |leaderless| slow_votes(ms(leaderless), ms(180), RaftTiming::LAN);
        let warning = said(4_000).unwrap();
        for part in ["for 4 s", "180 ms for a sync", "150 to 300 ms", "--raft-timing"] {
            assert!(warning.contains(part), "{part}: {warning}");
        }
        assert_eq!(said(1_700), None, "elections may still be going on");
    }

    #[test]
    fn votes_are_late_where_two_syncs_take_longer_than_a_mean_election_timeout() {
        let ms = Duration::from_millis;
        let late = |median, timing| {
            late_votes(Some(Pace { median: ms(median), spent: ms(900), latest: ms(900), syncs: 3 }), timing)
        };
        assert_eq!(late(112, RaftTiming::LAN), None, "one long sync is not the pace of the disk");
        assert_eq!(late(113, RaftTiming::LAN), Some(ms(113)));
        assert_eq!(late(375, RaftTiming::WAN), None);
        assert_eq!(late(376, RaftTiming::WAN), Some(ms(376)));
        assert_eq!(late_votes(None, RaftTiming::LAN), None, "nothing was synced");
    }
}
