//! A disk that is filled for real: a small file system in memory. To mount one takes a right that not everybody has.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use mc_client::{Code, Put};
use mc_tests::{Cluster, DiskError, until};

use crate::disks::ends_because;
use crate::row::Row;
use crate::witness::Direct;

const SIZE: &str = "96m";
/// What the masters keep free, and how often the log makes room for itself.
const FLAGS: [&str; 4] = ["--disk-reserve", "16mb", "--snapshot-log-bytes", "4mb"];
/// Bytes that are left of the reserve.
const LEFT: u64 = 8 << 20;
/// Puts that one entry of the log ends: 64 KiB of it.
const ENTRY: usize = 4096;

/// One of them, unmounted when dropped.
pub(crate) struct SmallDisk(PathBuf);

impl SmallDisk {
    /// One for each master of a cluster that has not been started; `None` when none can be mounted.
    pub(crate) fn of_masters(cluster: &Cluster, size: &str) -> Option<Vec<Self>> {
        (0..cluster.masters.len()).map(|master| Self::mount(&cluster.master_dir(master), size)).collect()
    }

    fn mount(at: &Path, size: &str) -> Option<Self> {
        std::fs::create_dir_all(at).expect("a folder");
        let options = format!("size={size},mode=700");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", options.as_str(), "mc-test"]).arg(at).output();
        mounted.is_ok_and(|mounted| mounted.status.success()).then(|| Self(at.to_owned()))
    }

    fn free(&self) -> u64 {
        let stat = rustix::fs::statvfs(&self.0).expect("it is mounted");
        stat.f_bavail * stat.f_frsize
    }

    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }

    /// Fills it, but for so many bytes.
    fn fill(&self, leave: u64) {
        let mut ballast =
            File::options().create(true).append(true).open(self.ballast()).expect("room for a name");
        while let more @ 1.. = self.free().saturating_sub(leave) {
            if ballast.write_all(&vec![0; more.min(1 << 20) as usize]).is_err() {
                // The master has taken the last of it.
                return;
            }
        }
    }

    /// Makes room.
    fn empty(&self) {
        std::fs::remove_file(self.ballast()).expect("it was filled");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process may have files open on it.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).output();
    }
}

/// The masters' disks fill up alike. First no puts are started any more, by a refusal that says why, while the log goes
/// on with what frees something; only where there is no room at all the log cannot be written, which ends that master.
#[tokio::test]
async fn fills_up() {
    Row::new("disk of 96 MiB fills up", "all masters to half of the reserve, then the leader to the brim")
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
            // What is left of pages that the log has begun holds less than that.
            for _ in 0..4 {
                direct.lengthen_the_log(ENTRY).await;
            }
            ends_because(round, leader, DiskError::Full).await;
            round.struck();
            round.service_is_owed();
            round.disks.iter().for_each(SmallDisk::empty);
            round.cluster.masters[leader].start();
        })
        .await;
}
