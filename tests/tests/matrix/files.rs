//! A log whose end was torn off, or whose middle was changed, while its master was down.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use mc_tests::until;

use crate::membership::replaced_by_itself;
use crate::row::{Round, Row};

/// What a crash may tear off.
const TORN: u64 = 64 << 10;

/// The file with most of the log.
fn largest(dir: &Path) -> PathBuf {
    let entries = std::fs::read_dir(dir).expect("the log's directory").flatten();
    let files = entries.filter(|entry| entry.path().is_file());
    let size = |path: &PathBuf| path.metadata().map_or(0, |meta| meta.len());
    files.map(|entry| entry.path()).max_by_key(size).expect("a log has files")
}

/// The file's bytes, and where the last of them lies that is not zero.
fn used(path: &Path) -> (Vec<u8>, usize) {
    let bytes = std::fs::read(path).expect("a file of the log");
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    (bytes, end)
}

/// Either it starts, because nothing that counts was hit, or it refuses in words; what takes its place then is taken in.
async fn damaged(round: &mut Round<'_>, damage: impl Fn(usize, &Path)) {
    let follower = round.cluster.follower().await;
    let before = round.cluster.status(follower).await.expect("it answers").node_id;
    round.cluster.masters[follower].kill9();
    damage(round.number, &largest(&round.cluster.master_dir(follower).join("log")));
    round.struck();
    round.cluster.masters[follower].start();
    let mut refused = false;
    until("it follows, or refuses to", async || {
        refused = !round.cluster.masters[follower].is_running();
        refused || round.cluster.status(follower).await.is_some_and(|status| status.role == "follower")
    })
    .await;
    let said = round.cluster.masters[follower].output();
    assert!(!said.contains("panicked"), "{said}");
    if !refused {
        return;
    }
    let status = round.cluster.masters[follower].ended().await;
    let last = said.lines().last().unwrap_or_default();
    assert!(status.code() == Some(2) && last.starts_with("error: "), "{status}: {last}");
    round.cluster.wipe_master(follower);
    round.cluster.masters[follower].start();
    replaced_by_itself(round.cluster, &before).await;
}

#[tokio::test]
async fn torn_tail() {
    Row::new("torn tail of the log", "follower")
        .run(async |round| {
            damaged(round, |_, path| {
                let (_, end) = used(path);
                let torn = TORN.min(end as u64);
                let file = File::options().write(true).open(path).expect("a file of the log");
                file.write_all_at(&vec![0; torn as usize], end as u64 - torn).expect("it can be written");
            })
            .await;
        })
        .await;
}

#[tokio::test]
async fn bit_flip() {
    Row::new("bit flip in the middle of the log", "follower")
        .run(async |round| {
            damaged(round, |number, path| {
                let (bytes, end) = used(path);
                // Somewhere else each time.
                let at = end * (number % 7 + 1) / 9;
                let file = File::options().write(true).open(path).expect("a file of the log");
                file.write_all_at(&[bytes[at] ^ 0x10], at as u64).expect("it can be written");
            })
            .await;
        })
        .await;
}
