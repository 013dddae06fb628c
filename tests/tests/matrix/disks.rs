//! Disks that are slow, stuck, broken or full.

use std::time::Duration;

use mc_tests::service::Service;
use mc_tests::{Cluster, DiskError, Faulty, eventually, http_get, until};

use crate::round::Round;
use crate::row::{HANDOVER, Row, Who};

/// How long a slow disk is slow that nobody leaves.
const SPELL: Duration = Duration::from_secs(4);
/// Extra time of a sync. A batch of the log waits for two of them, and a leader leaves when half of its batches
/// have waited for more than 200 ms: here they do not, below they do.
const A_BIT_SLOW: Duration = Duration::from_millis(50);
/// Too long for elections with the default timing, too.
const RATHER_SLOW: Duration = Duration::from_millis(150);
const SLOW: Duration = Duration::from_millis(300);
/// A single one says it, without the median of two seconds.
const VERY_SLOW: Duration = Duration::from_secs(2);

const IS_A_BIT_SLOW: &str = "slow disk, syncs 50 ms longer";
const IS_RATHER_SLOW: &str = "slow disk, syncs 150 ms longer";
const IS_SLOW: &str = "slow disk, syncs 300 ms longer";
const IS_VERY_SLOW: &str = "slow disk, syncs 2 s longer";

async fn slow(round: &Round<'_>, master: usize, by: Duration) {
    let before = round.cluster.faulty(master).struck();
    round.cluster.faulty(master).slow_syncs(by);
    until("a sync is slow", async || round.cluster.faulty(master).struck() > before).await;
}

/// How often a master has led, found its disk slow and left the lead for that.
async fn handovers(cluster: &Cluster, master: usize) -> u64 {
    const NAME: &str = "mc_raft_slow_disk_handovers_total ";
    eventually("it tells its figures", async || {
        let (_, figures) = http_get(cluster.master_http(master), "/metrics").await.ok()?;
        figures.lines().find_map(|line| line.strip_prefix(NAME)?.parse().ok())
    })
    .await
}

/// A leader whose disk is slow hands over because of it. That another leads does not say so.
async fn slow_leader(fault: &'static str, by: Duration) {
    Row::new(fault, "leader", HANDOVER)
        .run_at(Who::Leader, async |round, leader| {
            let before = handovers(round.cluster, leader).await;
            slow(round, leader, by).await;
            round.hit().await;
            round.another_leads(leader).await;
            let handed_over = handovers(round.cluster, leader).await > before;
            round.claim(handed_over, "the leader hands over because of its disk");
            round.struck();
            round.all_served().await;
            round.cluster.faulty(leader).slow_syncs(Duration::ZERO);
        })
        .await;
}

rows! {
    slow_disk_leader_150ms => slow_leader(IS_RATHER_SLOW, RATHER_SLOW);
    slow_disk_leader_300ms => slow_leader(IS_SLOW, SLOW);
    slow_disk_leader_2s => slow_leader(IS_VERY_SLOW, VERY_SLOW);
}

#[tokio::test]
async fn slow_disk_follower() {
    Row::new(IS_VERY_SLOW, "follower", Service::unaffected())
        .run_at(Who::Follower, async |round, follower| {
            slow(round, follower, VERY_SLOW).await;
            round.struck();
            round.spell(SPELL).await;
            round.cluster.faulty(follower).slow_syncs(Duration::ZERO);
        })
        .await;
}

async fn all_handovers(cluster: &Cluster) -> u64 {
    let mut all = 0;
    for master in 0..cluster.masters.len() {
        all += handovers(cluster, master).await;
    }
    all
}

/// Nobody hands over, the leader leads on, and puts go on.
async fn nobody_leaves(
    fault: &'static str,
    role: &'static str,
    by: Duration,
    service: Service,
    whose: impl Fn(usize) -> Vec<usize>,
) {
    Row::new(fault, role, service)
        .run_at(Who::Leader, async |round, leader| {
            let before = all_handovers(round.cluster).await;
            for master in whose(leader) {
                slow(round, master, by).await;
            }
            round.hit().await;
            round.spell(SPELL).await;
            // Two commits of several syncs each: seconds, where all disks are slow.
            round.running.acknowledged(1).await;
            round.claim(all_handovers(round.cluster).await == before, "nobody hands over");
            round.claim(round.leads_on().await, "the leader leads on");
            round.struck();
            for master in whose(leader) {
                round.cluster.faulty(master).slow_syncs(Duration::ZERO);
            }
        })
        .await;
}

/// Where no disk is better nobody hands over, and puts are acknowledged as fast as the disks are. A leader that loses
/// its term has no successor before they are well.
#[tokio::test]
async fn slow_disk_all() {
    // A put may wait for more syncs than its deadline of 10 s has room for.
    let service = Service::interrupted(Duration::from_secs(12))
        .unknown(1, "put beyond its deadline")
        .failed(1, "put late");
    nobody_leaves(IS_SLOW, "all masters alike, the leader leads on", SLOW, service, |_| vec![0, 1, 2]).await;
}

/// Not so slow that the leader leaves: the others commit without its disk.
#[tokio::test]
async fn slow_disk_leader_50ms() {
    let service = Service::unaffected();
    nobody_leaves(IS_A_BIT_SLOW, "leader, which leads on", A_BIT_SLOW, service, |leader| vec![leader]).await;
}

/// An election is on two disks before it is won: where those of all masters are slow, timeouts must be longer than the
/// default ones, and docs/operations/disks.md says which.
#[tokio::test]
async fn slow_disk_all_leader_killed() {
    let service = Service::interrupted(Duration::from_secs(8))
        .failed(1_000, "no leader for more than 1 s")
        .local_only(1_000, "no leader for more than 1 s")
        .false_misses(1_000, "no leader for more than 1 s")
        .unknown(2, "under way");
    Row::new("kill -9, syncs 150 ms longer", "leader, all disks alike, --raft-timing wan", service)
        .cluster(|cluster| cluster.master_args(["--raft-timing", "wan"]))
        .run_at(Who::Leader, async |round, leader| {
            for master in 0..round.cluster.masters.len() {
                slow(round, master, RATHER_SLOW).await;
            }
            round.cluster.masters[leader].kill9();
            round.hit().await;
            round.struck();
            round.another_leads(leader).await;
            round.spell(Duration::ZERO).await;
            for master in 0..round.cluster.masters.len() {
                round.cluster.faulty(master).slow_syncs(Duration::ZERO);
            }
            round.cluster.masters[leader].start();
        })
        .await;
}

async fn stuck(round: &mut Round<'_>, master: usize) {
    let before = round.cluster.faulty(master).struck();
    round.cluster.faulty(master).stick_syncs(true);
    until("a sync is stuck", async || round.cluster.faulty(master).struck() > before).await;
    round.hit().await;
    round.struck();
    round.another_leads(master).await;
    round.all_served().await;
    round.running.acknowledged(100).await;
    round.cluster.faulty(master).stick_syncs(false);
}

rows! {
    stuck_disk_leader => Row::new("stuck disk", "leader", HANDOVER).run_at(Who::Leader, stuck);
    stuck_disk_follower => Row::new("stuck disk", "follower", Service::unaffected()).run_at(Who::Follower, stuck);
}

/// Waits until it has ended by itself, its last line saying why.
pub(crate) async fn ends_because(round: &mut Round<'_>, master: usize, error: DiskError) {
    let status = round.cluster.masters[master].ended().await;
    assert_eq!(status.code(), Some(1), "it ends by itself, and says why");
    let said = round.cluster.masters[master].output();
    let last = said.lines().last().unwrap_or_default();
    let reason = if error == DiskError::Full { "No space left on device" } else { "Input/output error" };
    assert!(last.starts_with("error: ") && last.contains(reason), "its last line says why: {last}");
    assert!(!said.contains("panicked"), "{said}");
}

/// Ends with the reason, the others go on, and it starts again once its disk is well.
async fn broken(
    round: &mut Round<'_>,
    master: usize,
    error: DiskError,
    of: impl Fn(&Faulty, Option<DiskError>),
) {
    of(round.cluster.faulty(master), Some(error));
    round.hit().await;
    ends_because(round, master, error).await;
    round.struck();
    round.all_served().await;
    of(round.cluster.faulty(master), None);
    round.cluster.masters[master].start();
}

async fn breaks(fault: &'static str, who: Who, error: DiskError, of: impl Fn(&Faulty, Option<DiskError>)) {
    Row::new(fault, who.role(), who.lost())
        .run_at(who, async |round, master| broken(round, master, error, &of).await)
        .await;
}

rows! {
    failing_sync_leader => breaks("EIO on sync", Who::Leader, DiskError::Io, Faulty::fail_syncs);
    failing_sync_follower => breaks("EIO on sync", Who::Follower, DiskError::Io, Faulty::fail_syncs);
    failing_write_leader => breaks("EIO on write", Who::Leader, DiskError::Io, Faulty::fail_writes);
    failing_write_follower => breaks("EIO on write", Who::Follower, DiskError::Io, Faulty::fail_writes);
    full_disk_leader => breaks("ENOSPC on write", Who::Leader, DiskError::Full, Faulty::fail_writes);
    full_disk_follower => breaks("ENOSPC on write", Who::Follower, DiskError::Full, Faulty::fail_writes);
}
