//! Links between masters, and between clients and masters, that carry nothing.

use std::time::Duration;

use mc_tests::{Link, Links, until};

use crate::row::{Round, Row};

/// How long a partition lasts: several elections.
const PARTITION: Duration = Duration::from_secs(2);

/// Waits until another master than `old` leads, as the masters that clients reach say.
async fn another_leads(round: &Round<'_>, old: usize) {
    until("another master leads", async || round.cluster.find_leader().await.is_some_and(|now| now != old))
        .await;
}

/// The leader is cut off from the other masters while clients still reach it: it must stop acknowledging, and stop
/// answering from its lease before the others elect; the history says whether it did.
async fn leader_alone(round: &mut Round<'_>, link: Link) {
    let leader = round.cluster.leader().await;
    let links = round.cluster.links();
    links.between(&[leader], &links.other_masters(leader), link);
    another_leads(round, leader).await;
    round.struck_on_links();
    tokio::time::sleep(PARTITION).await;
    round.cluster.links().heal();
}

#[tokio::test]
async fn partition_leader_alone() {
    Row::new("partition", "leader alone, packets vanish")
        .run(async |round| leader_alone(round, Link::Silent).await)
        .await;
}

#[tokio::test]
async fn partition_leader_reset() {
    Row::new("partition", "leader alone, connections reset")
        .run(async |round| leader_alone(round, Link::Cut).await)
        .await;
}

#[tokio::test]
async fn partition_leader_with_its_clients_gone() {
    Row::new("partition", "leader alone, clients cut off from it too")
        .run(async |round| {
            let leader = round.cluster.leader().await;
            let links = round.cluster.links();
            links.between(&[leader], &links.other_masters(leader), Link::Silent);
            links.between(&[leader], &[links.clients()], Link::Silent);
            round.running.acknowledged(20).await;
            round.struck_on_links();
            round.cluster.links().heal();
        })
        .await;
}

#[tokio::test]
async fn partition_follower_alone() {
    Row::new("partition", "follower alone")
        .run(async |round| {
            let follower = round.cluster.follower().await;
            let links = round.cluster.links();
            links.between(&[follower], &links.other_masters(follower), Link::Silent);
            tokio::time::sleep(PARTITION).await;
            round.struck_on_links();
            round.cluster.links().heal();
        })
        .await;
}

/// Everything between the leader and the other masters gets through one way only.
async fn one_way(role: &'static str, cut: impl Fn(&Links, usize, usize)) {
    Row::new("one-way partition", role)
        .run(async |round| {
            let leader = round.cluster.leader().await;
            let links = round.cluster.links();
            for other in links.other_masters(leader) {
                cut(links, leader, other);
            }
            another_leads(round, leader).await;
            round.struck_on_links();
            tokio::time::sleep(PARTITION).await;
            round.cluster.links().heal();
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
    Row::new("partition with a bridge", "five masters, the leader on one side")
        .cluster(|cluster| cluster.masters(5))
        .run(async |round| {
            let leader = round.cluster.leader().await;
            let at = |n: usize| (leader + n) % 5;
            round.cluster.links().between(&[leader, at(1)], &[at(2), at(3)], Link::Silent);
            tokio::time::sleep(PARTITION).await;
            round.struck_on_links();
            round.cluster.links().heal();
        })
        .await;
}

#[tokio::test]
async fn partition_flapping() {
    Row::new("flapping partition", "leader alone ten times, 50 to 500 ms")
        .run(async |round| {
            let leader = round.cluster.leader().await;
            let links = round.cluster.links();
            for n in 0..10 {
                links.between(&[leader], &links.other_masters(leader), Link::Silent);
                tokio::time::sleep(Duration::from_millis(50 * (n + 1))).await;
                links.heal();
                tokio::time::sleep(Duration::from_millis(50 * (10 - n))).await;
            }
            round.struck_on_links();
        })
        .await;
}

#[tokio::test]
async fn partition_clients_from_leader() {
    Row::new("partition", "clients from the leader, masters whole")
        .run(async |round| {
            let leader = round.cluster.leader().await;
            let links = round.cluster.links();
            links.between(&[leader], &[links.clients()], Link::Silent);
            // The masters have no reason to elect another: calls end within their deadlines, and say so.
            tokio::time::sleep(PARTITION).await;
            round.struck_on_links();
            round.service_is_owed();
            round.cluster.links().heal();
        })
        .await;
}

/// A voter that restarts forgets what it told the leader; it must not vote while the old leader may still read from
/// the lease that its answers gave.
#[tokio::test]
async fn restart_within_the_lease() {
    Row::new("restart within the lease", "both followers, the leader cut off")
        .run(async |round| {
            let leader = round.cluster.leader().await;
            let [one, other] = [(leader + 1) % 3, (leader + 2) % 3];
            let links = round.cluster.links();
            links.between(&[leader], &[one, other], Link::Silent);
            for master in [one, other] {
                round.cluster.masters[master].kill9();
            }
            for master in [one, other] {
                round.cluster.masters[master].start();
            }
            round.service_is_owed();
            another_leads(round, leader).await;
            round.struck_on_links();
            tokio::time::sleep(PARTITION).await;
            round.cluster.links().heal();
        })
        .await;
}
