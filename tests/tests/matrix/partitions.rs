//! Links between masters that carry nothing.

use std::time::Duration;

use mc_tests::service::Service;
use mc_tests::{Link, Links, until};
use tokio::time::Instant;

use crate::round::Round;
use crate::row::{FAILOVER, Row, Who};
use crate::witness::{ALL, Witness};

/// An election may be cut off, too.
const FLAPPING: Service = Service::interrupted(Duration::from_secs(3)).unknown(3, "remove under way");
/// How long a partition lasts: several elections.
const PARTITION: Duration = Duration::from_secs(2);

/// The leader is cut off from the other masters while clients still reach it: it must stop acknowledging, and stop
/// answering from its lease before the others elect. The history says whether it did, and so does the witness, which goes
/// on asking it when the clients have turned to its successor.
pub(crate) async fn leader_alone(round: &mut Round<'_>, cut: impl Fn(&Links, usize)) {
    let leader = round.leader().await;
    let witness = Witness::of(round.cluster, leader).await;
    cut(round.cluster.links(), leader);
    round.hit().await;
    let led = round.another_leads(leader).await;
    round.struck_on_links();
    round.spell(PARTITION).await;
    witness.stays_unanswered(&ALL, led).await;
    round.cluster.links().heal();
}

#[tokio::test]
async fn partition_leader_alone() {
    Row::new("partition", "leader alone, packets vanish", FAILOVER)
        .run(async |round| {
            leader_alone(round, |links, leader| {
                links.between(&[leader], &links.other_masters(leader), Link::Silent);
            })
            .await;
        })
        .await;
}

#[tokio::test]
async fn partition_leader_reset() {
    Row::new("partition", "leader alone, connections reset", FAILOVER)
        .run(async |round| {
            leader_alone(round, |links, leader| {
                links.between(&[leader], &links.other_masters(leader), Link::Cut);
            })
            .await;
        })
        .await;
}

#[tokio::test]
async fn partition_leader_with_its_clients_gone() {
    Row::new("partition", "leader alone, clients cut off from it too", FAILOVER)
        .run_at(Who::Leader, async |round, leader| {
            let links = round.cluster.links();
            links.between(&[leader], &links.other_masters(leader), Link::Silent);
            links.between(&[leader], &[links.clients()], Link::Silent);
            round.hit().await;
            round.all_served().await;
            round.struck_on_links();
            round.cluster.links().heal();
        })
        .await;
}

#[tokio::test]
async fn partition_follower_alone() {
    Row::new("partition", "follower alone", Service::unaffected())
        .run_at(Who::Follower, async |round, follower| {
            let links = round.cluster.links();
            links.between(&[follower], &links.other_masters(follower), Link::Silent);
            round.spell(PARTITION).await;
            round.struck_on_links();
            round.cluster.links().heal();
        })
        .await;
}

/// Everything between the leader and the other masters gets through one way only.
async fn one_way(role: &'static str, cut: impl Fn(&Links, usize, usize)) {
    Row::new("one-way partition", role, FAILOVER)
        .run(async |round| {
            leader_alone(round, |links, leader| {
                for other in links.other_masters(leader) {
                    cut(links, leader, other);
                }
            })
            .await;
        })
        .await;
}

#[tokio::test]
async fn partition_leader_hears_nobody() {
    one_way("leader hears no other master", |links, leader, other| {
        links.set(other, leader, Link::Silent);
    })
    .await;
}

#[tokio::test]
async fn partition_nobody_hears_leader() {
    one_way("no other master hears the leader", |links, leader, other| {
        links.set(leader, other, Link::Silent);
    })
    .await;
}

/// Two masters on each side, and one that both sides reach.
#[tokio::test]
async fn partition_bridge() {
    Row::new("partition with a bridge", "five masters, the leader on one side", Service::unaffected())
        .cluster(|cluster| cluster.masters(5))
        .run_at(Who::Leader, async |round, leader| {
            let at = |n: usize| (leader + n) % 5;
            let before = round.terms().await;
            round.cluster.links().between(&[leader, at(1)], &[at(2), at(3)], Link::Silent);
            round.hit().await;
            round.spell(PARTITION).await;
            round.claim(round.leads_on().await, "the leader has a majority with the bridge, and leads on");
            round.struck_on_links();
            round.cluster.links().heal();
            // Those that did not hear it have asked for votes, in vain, and must not depose it when it comes back.
            round.spell(PARTITION).await;
            round.claim(round.terms().await == before, "no term has ended");
        })
        .await;
}

/// The followers have nothing to say to each other as long as both hear the leader: nothing happens.
#[tokio::test]
async fn partition_bridge_leads() {
    Row::new(
        "partition with a bridge",
        "three masters, the leader is the bridge and leads on",
        Service::unaffected(),
    )
    .run_at(Who::Leader, async |round, leader| {
        round.cluster.links().between(&[(leader + 1) % 3], &[(leader + 2) % 3], Link::Silent);
        round.hit().await;
        round.spell(PARTITION).await;
        round.claim(round.leads_on().await, "the leader leads on");
        round.struck();
        round.cluster.links().heal();
    })
    .await;
}

#[tokio::test]
async fn partition_flapping() {
    Row::new("flapping partition", "whoever leads alone, ten times, 50 to 500 ms", FLAPPING)
        .run(async |round| {
            for n in 0..10 {
                // Another one, where a cut was long enough for an election.
                let leader = round.leader().await;
                let links = round.cluster.links();
                let bent = links.bent();
                links.between(&[leader], &links.other_masters(leader), Link::Silent);
                round.hit().await;
                tokio::time::sleep(Duration::from_millis(50 * (n + 1))).await;
                assert!(links.bent() > bent, "nothing met cut {n}");
                links.heal();
                tokio::time::sleep(Duration::from_millis(50 * (10 - n))).await;
            }
            round.struck_on_links();
        })
        .await;
}

/// Twice the longest election timeout of [`SLOW_TIMING`]: who has not heard the leader for so long has asked for votes.
const STANDING: Duration = Duration::from_secs(2);
/// A lease that outlasts the restart of a process, on a slow machine too: three quarters of a second, not 225 ms.
const SLOW_TIMING: [&str; 2] = ["--raft-timing", "wan"];
const SLOW_FAILOVER: Service = Service::interrupted(Duration::from_secs(4)).unknown(1, "remove under way");

/// A voter that restarts forgets what it told the leader; it must not vote, nor stand, while the old leader may still read
/// from the lease that its last answer gave.
///
/// The leader has lost one follower already, and leans on the other alone. The first asks for votes in vain, since the
/// other hears the leader; its own vote it would give to anybody. Now the other loses the leader, too, and restarts. It
/// has heard no leader in this life, so only its restart wait keeps it from standing at once; with the vote of the first it
/// would lead in some tens of milliseconds, beside a leader that still has its lease and is asked all the time. Then the
/// witness has an answer of the old leader to a call that was sent when the new one led already.
///
/// A round counts when the old leader has answered a read that was sent after the other was back: the restart was within
/// the lease.
#[tokio::test]
async fn restart_within_the_lease() {
    let mut within = 0;
    Row::new(
        "restart within the lease",
        "the follower that still hears the leader, then does not",
        SLOW_FAILOVER,
    )
    .cluster(|cluster| cluster.master_args(SLOW_TIMING))
    .run_at(Who::Leader, async |round, leader| {
        let [away, other] = [(leader + 1) % 3, (leader + 2) % 3];
        let witness = Witness::of(round.cluster, leader).await;
        let links = round.cluster.links();
        links.between(&[leader], &[away], Link::Silent);
        tokio::time::sleep(STANDING).await;
        round.hit().await;
        links.between(&[leader], &[other], Link::Silent);
        round.cluster.masters[other].kill9();
        round.cluster.masters[other].start();
        round.service_is_owed();
        until("it is back", async || {
            round.cluster.status(other).await.is_some_and(|status| status.role != "forming")
        })
        .await;
        let back = Instant::now();
        let led = round.another_leads(leader).await;
        round.spell(PARTITION).await;
        witness.stays_unanswered(&ALL, led).await;
        if witness.has_read_since(back) {
            within += 1;
            round.struck_on_links();
        }
        round.cluster.links().heal();
    })
    .await;
    println!("{within} restarts were within the lease");
}
