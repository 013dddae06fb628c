//! Rolls of all masters by readiness alone, with their disks and without them.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;
use mc_tests::checker::Outcome;
use mc_tests::{Cluster, Faults, Process, RollDisk, RollOrder, Running, Workload, eventually, until};

const GIVEN_UP: &str = "this master has given up its vote";

async fn load(cluster: &Cluster, seed: u64) -> Running {
    Workload::growing(seed).pace(Duration::from_millis(2)).start(&cluster.client_builder()).await
}

/// The members: their ids, and whether they vote.
async fn members(cluster: &Cluster) -> Vec<(Vec<u8>, bool)> {
    let status = eventually("the leader's status", async || {
        let leader = cluster.find_leader().await?;
        cluster.status(leader).await
    })
    .await;
    status.masters.into_iter().map(|member| (member.node_id.to_vec(), member.voter)).collect()
}

async fn node_id(cluster: &Cluster, master: usize) -> Vec<u8> {
    eventually("it answers", async || cluster.status(master).await).await.node_id.to_vec()
}

/// Rolls all masters under load: nothing is lost, and no call fails.
async fn rolls(order: RollOrder, disk: RollDisk, flags: &[&str], seed: u64) -> Cluster {
    let mut builder = Cluster::builder();
    for flag in flags {
        builder = builder.master_args([*flag]);
    }
    let mut cluster = builder.start().await;
    let before: BTreeSet<_> = members(&cluster).await.into_iter().collect();
    let mut faults = Faults::new();
    let rolled = faults.plan_times("a master was rolled", 3);
    let running = load(&cluster, seed).await;
    running.acknowledged(100).await;
    cluster.roll(order, disk, |_| rolled.happened()).await;
    running.acknowledged(100).await;
    let errors = running.errors();
    let history = running.stop().await;
    history.assert_nothing_lost(&cluster);
    println!("{order:?}, {disk:?}: the slowest call took {:?}", history.slowest());
    assert_eq!(
        (history.outcomes(Outcome::Failed), history.outcomes(Outcome::Unknown)),
        (0, 0),
        "{errors:#?}"
    );
    let after: BTreeSet<_> = members(&cluster).await.into_iter().collect();
    assert_eq!((after.len(), after.iter().filter(|(_, voter)| *voter).count()), (3, 3));
    // A disposable disk is emptied where it was kept, too.
    match disk == RollDisk::Kept && flags.is_empty() {
        true => assert_eq!(before, after),
        false => assert!(before.is_disjoint(&after), "every master came back as a new one"),
    }
    cluster
}

#[tokio::test]
async fn disposable_disks_are_rolled_within_seconds() {
    let cluster = rolls(RollOrder::LeaderFirst, RollDisk::Wiped, &["--ephemeral"], 41).await;
    for master in &cluster.masters {
        let said = master.output();
        assert!(said.contains(GIVEN_UP), "{}: {said}", master.name());
    }
}

/// The data directory survives, as that of a container that restarts: the mark empties it.
#[tokio::test]
async fn a_master_that_gave_up_its_vote_begins_empty_also_where_its_disk_was_kept() {
    let mut cluster = Cluster::builder().stores(0).master_args(["--ephemeral"]).start().await;
    let follower = cluster.follower().await;
    let old = node_id(&cluster, follower).await;
    cluster.masters[follower].ask_to_stop();
    // It may end by itself before it is killed: the mark is the same.
    until("it has left", async || cluster.masters[follower].output().contains(GIVEN_UP)).await;
    cluster.masters[follower].killed().await;
    cluster.masters[follower].start();
    cluster.master_ready(follower).await;
    assert_ne!(node_id(&cluster, follower).await, old);
    let said = cluster.masters[follower].output();
    assert!(said.contains("its data directory is emptied"), "{said}");
    until("its old id is no member", async || members(&cluster).await.len() == 3).await;
}

#[tokio::test]
async fn a_master_that_could_not_mark_its_directory_gets_its_vote_back_with_its_data() {
    let mut cluster = Cluster::builder().stores(0).master_args(["--ephemeral"]).start().await;
    let follower = cluster.follower().await;
    let old = node_id(&cluster, follower).await;
    // As if it had died between the loss of its vote and the mark.
    std::fs::create_dir(cluster.master_dir(follower).join("left.partial")).unwrap();
    assert_eq!(cluster.masters[follower].terminate().await.code(), Some(0));
    let said = cluster.masters[follower].output();
    assert!(said.contains("its next start goes on with its data"), "{said}");
    let voters = members(&cluster).await.into_iter().filter(|(_, voter)| *voter).count();
    assert_eq!(voters, 2, "it has left");
    cluster.masters[follower].start();
    cluster.master_ready(follower).await;
    assert_eq!(node_id(&cluster, follower).await, old);
}

#[tokio::test]
async fn a_master_that_the_others_can_not_spare_stops_with_its_vote_and_its_data() {
    let mut cluster = Cluster::builder().stores(0).master_args(["--ephemeral"]).start().await;
    let before: BTreeSet<_> = members(&cluster).await.into_iter().collect();
    let leader = cluster.leader().await;
    let (down, asks) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.masters[down].kill9();
    until("the leader misses it", async || {
        let (code, said) = mc_tests::mcctl(&cluster, &["members", "list"]).await;
        code == 1 && !said.is_empty()
    })
    .await;
    // It is killed while it waits, or stops when it has waited long enough: the disk is the same.
    cluster.masters[asks].ask_to_stop();
    until("it asks", async || cluster.masters[asks].output().contains("asks for its vote")).await;
    cluster.masters[asks].killed().await;
    cluster.masters[down].start();
    cluster.masters[asks].start();
    cluster.ready().await;
    assert_eq!(members(&cluster).await.into_iter().collect::<BTreeSet<_>>(), before);
}

#[tokio::test]
async fn masters_with_disposable_disks_that_stop_at_once_lose_nothing_while_the_disks_are_there() {
    let mut cluster = Cluster::builder().master_args(["--ephemeral"]).start().await;
    let running = load(&cluster, 42).await;
    running.acknowledged(100).await;
    for status in join_all(cluster.masters.iter_mut().map(Process::terminate)).await {
        assert_eq!(status.code(), Some(0));
    }
    let left = cluster.masters.iter().filter(|master| master.output().contains(GIVEN_UP)).count();
    assert!(left <= 1, "{left} of three have given up their votes");
    let kept = cluster.masters.iter().filter(|master| master.output().contains("stops as it is")).count();
    assert_eq!(left + kept, 3);
    cluster.masters.iter_mut().for_each(Process::start);
    cluster.ready().await;
    running.acknowledged(100).await;
    running.stop().await.assert_nothing_lost(&cluster);
    until("three vote, and nobody else is a member", async || {
        let members = members(&cluster).await;
        members.len() == 3 && members.iter().all(|(_, voter)| *voter)
    })
    .await;
}

macro_rules! rolls {
    ($($name:ident: $order:ident, $disk:ident, $flags:expr;)*) => {
        $(
            #[tokio::test]
            #[ignore = "minutes of waiting for votes: run by tests/soak"]
            async fn $name() {
                rolls(RollOrder::$order, RollDisk::$disk, &$flags, 43).await;
            }
        )*
    };
}

rolls! {
    kept_leader_first: LeaderFirst, Kept, [];
    kept_leader_last: LeaderLast, Kept, [];
    kept_highest_first: HighestFirst, Kept, [];
    wiped_leader_first: LeaderFirst, Wiped, [];
    wiped_leader_last: LeaderLast, Wiped, [];
    wiped_highest_first: HighestFirst, Wiped, [];
    ephemeral_wiped_leader_last: LeaderLast, Wiped, ["--ephemeral"];
    ephemeral_wiped_highest_first: HighestFirst, Wiped, ["--ephemeral"];
    ephemeral_kept_leader_first: LeaderFirst, Kept, ["--ephemeral"];
}
