//! A master whose disk is nearly full: what it refuses, what it goes on with, and what it says.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mc_durable::FreeSpace;
use mc_testkit::{eventually, until};
use mc_types::Code;

use crate::master_support::Single;

/// A disk with as much room as a test says.
#[derive(Debug)]
struct Room(AtomicU64);

impl FreeSpace for Room {
    fn free_bytes(&self, _: &Path) -> io::Result<u64> {
        Ok(self.0.load(Ordering::SeqCst))
    }
}

const GIB: u64 = 1 << 30;

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_disk_is_nearly_full_starts_no_puts_and_goes_on_with_everything_else() {
    let room = Arc::new(Room(AtomicU64::new(100 * GIB)));
    let master = Single::start(&[], room.clone()).await;
    let mut client = master.client().await;
    assert_eq!(client.put_start(1, "stored").await, Ok(Code::Ok));
    assert_eq!(client.put_end(1, "stored").await, Code::Ok);
    assert_eq!(client.put_start(2, "under way").await, Ok(Code::Ok));
    assert_eq!(client.put_start(3, "given up").await, Ok(Code::Ok));

    room.0.store(7 << 20, Ordering::SeqCst);
    let (code, why) =
        eventually("a put that is refused", async || client.put_start(4, "refused").await.err()).await;
    assert_eq!(code, Code::DiskNearlyFull);
    let dir = master.data_dir().display().to_string();
    let node = master.node().await;
    for part in [&*node, &dir, "7 MiB are free and 1024 MiB are needed (--disk-reserve)", "make room"] {
        assert!(why.contains(part), "`{part}` is not in: {why}");
    }

    assert_eq!(client.put_end(2, "under way").await, Code::Ok);
    assert_eq!(client.put_revoke(3).await, Code::Ok);
    assert_eq!(client.get("stored").await, Code::Ok);
    assert_eq!(client.exist("under way").await, Code::Ok);
    assert_eq!(client.remove("stored").await, Code::Ok);
    assert_eq!(client.exist("stored").await, Code::ObjectNotFound);
    assert_eq!(master.http("/readyz").await, (200, "ok\n".to_owned()), "it serves reads as before");
    let metrics = master.http("/metrics").await.1;
    assert!(metrics.contains(&format!("mc_data_dir_free_bytes {}\n", 7 << 20)), "{metrics}");
    assert!(metrics.contains(&format!("mc_data_dir_needed_bytes {GIB}\n")), "{metrics}");
    assert!(!metrics.contains("mc_master_puts_refused_total{short_of=\"disk\"} 0"), "{metrics}");

    // Enough, but not enough to begin again.
    room.0.store(GIB, Ordering::SeqCst);
    until("the master sees it", async || {
        let metrics = master.http("/metrics").await.1;
        metrics.contains(&format!("mc_data_dir_free_bytes {GIB}\n"))
    })
    .await;
    assert_eq!(client.put_start(5, "refused").await.unwrap_err().0, Code::DiskNearlyFull);

    room.0.store(2 * GIB, Ordering::SeqCst);
    eventually("a put that is taken", async || client.put_start(6, "taken").await.ok()).await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reserve_is_a_flag() {
    let room = Arc::new(Room(AtomicU64::new(7 << 20)));
    let master = Single::start(&["--disk-reserve", "1mb"], room).await;
    let mut client = master.client().await;
    until("the master looks at the disk", async || {
        let metrics = master.http("/metrics").await.1;
        metrics.contains(&format!("mc_data_dir_free_bytes {}\n", 7 << 20))
    })
    .await;
    assert_eq!(client.put_start(1, "k").await, Ok(Code::Ok));
    master.stop().await;
}
