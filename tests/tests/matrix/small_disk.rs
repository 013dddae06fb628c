//! A disk that is filled for real.

use mc_client::{Code, Put};
use mc_tests::{DiskError, SmallDisk, until};

use crate::disks::ends_because;
use crate::row::{FORMED, Row};
use crate::witness::Direct;

const SIZE: &str = "96m";
/// The masters' reserve, and how often the log makes room for itself.
const FLAGS: [&str; 4] = ["--disk-reserve", "16mb", "--snapshot-log-bytes", "4mb"];
/// Bytes that are left of the reserve.
const LEFT: u64 = 8 << 20;
/// Puts that one entry of the log ends: 64 KiB of it.
const ENTRY: usize = 4096;

/// The masters' disks fill up alike. First no puts are started any more, by a refusal that says why, while the log goes
/// on with what frees something; only where there is no room at all the log cannot be written, which ends that master. The
/// next leader refuses puts until it looks at its disk again.
#[tokio::test]
async fn fills_up() {
    Row::new(
        "disk of 96 MiB fills up",
        "all masters to half of the reserve, then the leader to the brim",
        FORMED.failed(500, "room not seen yet"),
    )
    .cluster(|cluster| cluster.master_args(FLAGS))
    .small_disks(SIZE)
    .run(async |round| {
        let client = round.cluster.client().await;
        until("a key is put", async || {
            matches!(client.put("to be removed", b"value").await, Ok(Put::Stored | Put::AlreadyExists))
        })
        .await;
        for disk in round.disks {
            disk.fill(LEFT);
        }
        until("puts are refused", async || {
            let put = client.put("never put", b"value").await;
            put.is_err_and(|error| error.code == Code::DiskNearlyFull)
        })
        .await;
        until("the log goes on", async || client.remove("to be removed", true).await.is_ok()).await;
        for master in &mut round.cluster.masters {
            master.assert_not_ended();
        }

        let leader = round.leader().await;
        let direct = Direct::to(round.cluster, leader);
        round.disks[leader].fill(0);
        round.hit().await;
        // The log may find room in its file, where entries were that a snapshot has replaced.
        until("it finds no more", async || {
            direct.lengthen_the_log(ENTRY).await;
            !round.cluster.masters[leader].is_running()
        })
        .await;
        ends_because(round, leader, DiskError::Full).await;
        round.struck();
        round.service_is_owed();
        round.disks.iter().for_each(SmallDisk::empty);
        round.cluster.masters[leader].start();
    })
    .await;
}
