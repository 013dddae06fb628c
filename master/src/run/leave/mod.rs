//! A master that leaves: it hands the leadership over, and gives up its vote if its disk is disposable.

use std::time::Duration;

use mc_raft::{Departure, LeaderTransferError, MembershipView, RaftNode};
use tokio::time::Instant;

/// Longest wait for another master to take the leadership.
const HAND_OVER: Duration = Duration::from_secs(1);
/// Longest wait for the vote to be taken, where the disk is disposable. The leader looks twice a second, and changes the
/// voters in a few round trips and syncs.
pub(super) const LEAVE: Duration = Duration::from_secs(4);
/// Time between two looks at whether it was.
const LOOK: Duration = Duration::from_millis(20);
/// Time after which the committed membership that a master knows is certainly that of its leader, who sends it with its
/// heartbeats. Until then, a place may seem to be reserved that was taken a moment ago.
const UP_TO_DATE: Duration = Duration::from_millis(500);

/// Hands leadership over if this master has it.
pub(super) async fn hand_over(raft: &RaftNode) {
    match tokio::time::timeout(HAND_OVER, raft.transfer_leader(None)).await {
        Ok(Ok(now)) => tracing::info!(term = now.term, "leadership was handed over"),
        Ok(Err(LeaderTransferError::NotLeader(_) | LeaderTransferError::Alone)) => {}
        Ok(Err(error)) => tracing::warn!("leadership was not handed over: {error}"),
        Err(_) => tracing::warn!("leadership was not handed over within {HAND_OVER:?}"),
    }
}

/// Waits until this master's vote is taken. Returns false if too few voters would remain.
///
/// Only a master that had a vote leaves. The place of one that has come back without it may be reserved still, and the leader
/// may be about to give it the vote.
///
/// A master that asks may become leader meanwhile. It hands over to one that stays, once in each term. Where all others ask,
/// too, or do not take over, it lets others go while enough remain, and stops with its vote. If it handed over to one that
/// asks, leadership would circle between them until all have stopped.
///
/// `tried` is the term in which the caller has handed over, or tried to.
pub(super) async fn leave(raft: &RaftNode, mut tried: Option<u64>) -> bool {
    tracing::info!("this master asks for its vote to be taken before it stops");
    let (mut spared_at, mut voted) = (Instant::now(), false);
    loop {
        if let Some(view) = raft.membership_view()
            && tried != Some(view.term)
            && has_successor(&view)
        {
            tried = Some(view.term);
            hand_over(raft).await;
            spared_at = Instant::now();
        }
        match raft.departure() {
            Departure::Left if voted => return true,
            Departure::Waits => (spared_at, voted) = (Instant::now(), true),
            Departure::Left | Departure::Needed if spared_at.elapsed() >= UP_TO_DATE => return false,
            Departure::Left | Departure::Needed => {}
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Whether another voter is up, has caught up and stays, by its own report. Only a report says that there are descriptors, so
/// a new leader waits for it.
fn has_successor(view: &MembershipView) -> bool {
    let mut others = view.voters.iter().filter(|voter| **voter != view.me && view.is_well(voter));
    others
        .any(|voter| view.members.get(voter).is_some_and(|member| member.has_descriptors && !member.leaving))
}

#[cfg(test)]
mod tests;
