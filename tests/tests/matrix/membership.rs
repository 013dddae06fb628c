//! Members that come and go under load.

use std::time::Duration;

use mc_tests::service::Service;
use mc_tests::{Cluster, mcctl, until, until_within};

use crate::round::Round;
use crate::row::{FAILOVER, HANDOVER, Row, Who};

/// A leader swaps once a minute at most.
const SWAPPED: Duration = Duration::from_secs(150);

/// Waits until three vote and `before` is not among them: what started in its place was taken in without a command.
pub(crate) async fn replaced_by_itself(cluster: &Cluster, before: &[u8]) {
    until_within(SWAPPED, "the new node votes", async || {
        let leader = cluster.leader().await;
        let Some(status) = cluster.status(leader).await else { return false };
        let voters: Vec<_> = status.masters.iter().filter(|member| member.voter).collect();
        voters.len() == 3 && voters.iter().all(|voter| voter.node_id != *before)
    })
    .await;
}

/// Removes a master, and starts it again without its disk. A busy machine may make the masters miss each other for a
/// moment: then a change is refused, or its outcome unknown, and asked for again. Returns its Raft address.
pub(crate) async fn removed(round: &mut Round<'_>, master: usize) -> String {
    let address = round.cluster.master_raft(master).to_owned();
    until("it is removed", async || {
        mcctl(round.cluster, &["members", "remove", &address]).await;
        let leader = round.cluster.leader().await;
        let status = round.cluster.status(leader).await;
        status.is_some_and(|status| status.masters.iter().all(|member| member.raft_address != address))
    })
    .await;
    round.cluster.masters[master].kill9();
    round.cluster.wipe_master(master);
    round.cluster.masters[master].start();
    until("it answers", async || round.cluster.status(master).await.is_some()).await;
    address
}

/// Takes the master at a Raft address in, and waits until it has its vote.
pub(crate) async fn added(cluster: &Cluster, address: &str) {
    until("it is added", async || mcctl(cluster, &["members", "add", address]).await.0 == 0).await;
}

async fn replaced(role: &'static str, who: Who) {
    Row::new("members remove, then members add", role, HANDOVER)
        .run_at(who, async |round, master| {
            // It leads when it is asked to go.
            round.hit().await;
            let address = removed(round, master).await;
            added(round.cluster, &address).await;
            round.struck();
        })
        .await;
}

rows! {
    replace_leader => replaced("leader, which removes itself", Who::Leader);
    replace_follower => replaced("follower", Who::Follower);
}

#[tokio::test]
async fn transfer_leader() {
    Row::new("members transfer-leader", "leader", HANDOVER)
        .run(async |round| {
            let leader = round.cluster.leader().await;
            until("another master leads", async || {
                mcctl(round.cluster, &["members", "transfer-leader"]).await;
                round.cluster.find_leader().await.is_some_and(|now| now != leader)
            })
            .await;
            round.struck();
        })
        .await;
}

/// Nobody is asked: what starts at the address of a dead master, without its disk, takes its place.
async fn lost_its_disk(round: &mut Round<'_>, master: usize) {
    let before = round.cluster.status(master).await.expect("it answers").node_id;
    round.cluster.masters[master].kill9();
    round.hit().await;
    round.cluster.wipe_master(master);
    round.cluster.masters[master].start();
    replaced_by_itself(round.cluster, &before).await;
    round.struck();
}

#[tokio::test]
async fn disk_lost() {
    Row::new(
        "data directory deleted",
        "follower, swapped for what starts in its place",
        Service::unaffected(),
    )
    .run_at(Who::Follower, lost_its_disk)
    .await;
}

#[tokio::test]
async fn disk_lost_leader() {
    Row::new("data directory deleted", "leader, swapped for what starts in its place", FAILOVER)
        .run_at(Who::Leader, lost_its_disk)
        .await;
}
