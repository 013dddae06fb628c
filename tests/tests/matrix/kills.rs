//! kill -9.

use std::time::Duration;

use mc_tests::service::Service;
use tokio::time::Instant;

use crate::evictions::{self, Full};
use crate::round::Round;
use crate::row::{FAILOVER, FORMED, FORMED_AGAIN, Row, Who};
use crate::witness::{Call, Witness};

/// The longest election timeout: a lease is shorter.
const LEASE: Duration = Duration::from_millis(300);

pub(crate) async fn leader_killed(round: &mut Round<'_>, leader: usize) {
    round.cluster.masters[leader].kill9();
    round.hit().await;
    round.struck();
    round.all_served().await;
    round.cluster.masters[leader].start();
}

rows! {
    kill_leader => Row::new("kill -9", "leader", FAILOVER).run_at(Who::Leader, leader_killed);
    kill_leader_of_an_evicting_pool =>
        Row::new("kill -9", "leader, the pool evicts", FAILOVER).evicting(Full::Pool).run(evicting_leader_killed);
}

/// The next leader knows nothing of the leases that the killed one gave, nor of the order of use since it was noted last.
/// It evicts all the same, and only by entries of the log.
pub(crate) async fn evicting_leader_killed(round: &mut Round<'_>) {
    evictions::go_on(round.cluster).await;
    let leader = round.leader().await;
    round.cluster.masters[leader].kill9();
    round.hit().await;
    round.struck();
    round.another_leads(leader).await;
    round.all_served().await;
    evictions::go_on(round.cluster).await;
    round.cluster.masters[leader].start();
}

#[tokio::test]
async fn kill_follower() {
    Row::new("kill -9", "follower", Service::unaffected())
        .run_at(Who::Follower, async |round, follower| {
            round.cluster.masters[follower].kill9();
            round.struck();
            round.spell(Duration::ZERO).await;
            round.running.acknowledged(50).await;
            round.cluster.masters[follower].start();
        })
        .await;
}

/// Without a majority nothing is acknowledged that was begun after it was gone, and nothing is read once the lease is
/// over that the last heartbeats gave: they were sent before the followers died.
#[tokio::test]
async fn kill_two_followers() {
    Row::new("kill -9", "two followers of three", FORMED_AGAIN)
        .run(async |round| {
            let leader = round.cluster.leader().await;
            let [one, other] = [(leader + 1) % 3, (leader + 2) % 3];
            let witness = Witness::of(round.cluster, leader).await;
            round.cluster.masters[one].kill9();
            round.cluster.masters[other].kill9();
            let (dead, dead_at) = (Instant::now(), round.running.recorder().now());
            round.struck();
            round.running.operations(20).await;
            witness.stays_unanswered(&[Call::Put], dead).await;
            witness.stays_unanswered(&[Call::Read], dead + LEASE).await;
            assert_eq!(round.stored_since(dead_at), 0, "puts were acknowledged without a majority");
            round.service_is_owed();
            round.cluster.masters[one].start();
            round.all_served().await;
            round.cluster.masters[other].start();
        })
        .await;
}

#[tokio::test]
async fn kill_all() {
    Row::new("kill -9", "all masters", FORMED)
        .run(async |round| {
            for master in &mut round.cluster.masters {
                master.kill9();
            }
            round.struck();
            round.service_is_owed();
            round.cluster.masters.iter_mut().for_each(mc_tests::Process::start);
        })
        .await;
}
