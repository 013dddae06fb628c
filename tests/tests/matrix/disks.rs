//! Disks that are slow, stuck, broken or full.

use std::time::Duration;

use mc_tests::{DiskError, until};

use crate::row::{Round, Row};

/// How long a slow disk is slow.
const SPELL: Duration = Duration::from_secs(4);
/// What a sync takes longer, round by round.
const DELAYS: [Duration; 3] = [Duration::from_millis(300), Duration::from_secs(2), Duration::from_millis(50)];

/// A leader whose disk is slow hands over; a follower's does not matter.
async fn slow(round: &mut Round<'_>, master: usize) {
    let delay = DELAYS[round.number % DELAYS.len()];
    let faulty = round.cluster.faulty(master);
    let before = faulty.struck();
    faulty.slow_syncs(delay);
    let started = tokio::time::Instant::now();
    until("syncs are slow", async || round.cluster.faulty(master).struck() > before).await;
    round.struck();
    if delay >= DELAYS[0] {
        leads_not(round, master).await;
    }
    tokio::time::sleep_until(started + SPELL).await;
    round.cluster.faulty(master).slow_syncs(Duration::ZERO);
}

async fn leads_not(round: &Round<'_>, master: usize) {
    until("a master with a good disk leads", async || {
        round.cluster.find_leader().await.is_some_and(|leader| leader != master)
    })
    .await;
}

#[tokio::test]
async fn slow_disk_leader() {
    Row::new("slow disk, syncs 50 ms to 2 s", "leader")
        .run(async |round| {
            let leader = round.cluster.leader().await;
            slow(round, leader).await;
        })
        .await;
}

#[tokio::test]
async fn slow_disk_follower() {
    Row::new("slow disk, syncs 50 ms to 2 s", "follower")
        .run(async |round| {
            let follower = round.cluster.follower().await;
            slow(round, follower).await;
        })
        .await;
}

async fn stuck(round: &mut Round<'_>, master: usize) {
    let before = round.cluster.faulty(master).struck();
    round.cluster.faulty(master).stick_syncs(true);
    until("a sync is stuck", async || round.cluster.faulty(master).struck() > before).await;
    round.struck();
    leads_not(round, master).await;
    round.running.acknowledged(100).await;
    round.cluster.faulty(master).stick_syncs(false);
}

#[tokio::test]
async fn stuck_disk_leader() {
    Row::new("stuck disk", "leader")
        .run(async |round| {
            let leader = round.cluster.leader().await;
            stuck(round, leader).await;
        })
        .await;
}

#[tokio::test]
async fn stuck_disk_follower() {
    Row::new("stuck disk", "follower")
        .run(async |round| {
            let follower = round.cluster.follower().await;
            stuck(round, follower).await;
        })
        .await;
}

/// Ends with the reason, the others go on, and it starts again once its disk is well.
async fn broken(
    round: &mut Round<'_>,
    master: usize,
    error: DiskError,
    of: impl Fn(&mc_tests::Faulty, Option<DiskError>),
) {
    of(round.cluster.faulty(master), Some(error));
    let status = round.cluster.masters[master].ended().await;
    assert_eq!(status.code(), Some(1), "it ends by itself, and says why");
    round.struck();
    let said = round.cluster.masters[master].output();
    let last = said.lines().last().unwrap_or_default();
    let reason = if error == DiskError::Full { "No space left on device" } else { "Input/output error" };
    assert!(last.starts_with("error: ") && last.contains(reason), "its last line says why: {last}");
    assert!(!said.contains("panicked"), "{said}");
    round.running.acknowledged(50).await;
    of(round.cluster.faulty(master), None);
    round.cluster.masters[master].start();
}

#[tokio::test]
async fn failing_sync_leader() {
    Row::new("EIO on sync", "leader")
        .run(async |round| {
            let leader = round.cluster.leader().await;
            broken(round, leader, DiskError::Io, mc_tests::Faulty::fail_syncs).await;
        })
        .await;
}

#[tokio::test]
async fn failing_sync_follower() {
    Row::new("EIO on sync", "follower")
        .run(async |round| {
            let follower = round.cluster.follower().await;
            broken(round, follower, DiskError::Io, mc_tests::Faulty::fail_syncs).await;
        })
        .await;
}

#[tokio::test]
async fn failing_write_leader() {
    Row::new("EIO on write", "leader")
        .run(async |round| {
            let leader = round.cluster.leader().await;
            broken(round, leader, DiskError::Io, mc_tests::Faulty::fail_writes).await;
        })
        .await;
}

#[tokio::test]
async fn full_disk_leader() {
    Row::new("ENOSPC on write", "leader")
        .run(async |round| {
            let leader = round.cluster.leader().await;
            broken(round, leader, DiskError::Full, mc_tests::Faulty::fail_writes).await;
        })
        .await;
}

#[tokio::test]
async fn full_disk_follower() {
    Row::new("ENOSPC on write", "follower")
        .run(async |round| {
            let follower = round.cluster.follower().await;
            broken(round, follower, DiskError::Full, mc_tests::Faulty::fail_writes).await;
        })
        .await;
}
