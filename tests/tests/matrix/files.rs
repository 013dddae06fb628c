//! A log whose end was torn off, or whose middle was changed, while its master was down.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use mc_tests::until;

use crate::membership::replaced_by_itself;
use crate::row::{Round, Row};

/// What is torn off the end that the log's mark covers, with all that comes after it.
const TORN: usize = 16 << 10;

const TORN_TAIL: &str = "torn tail of the log";
const BIT_FLIP: &str = "bit flip in the middle of the log";

/// Damages a file of a log, given what its mark covers, in the round of this number.
type Damage = fn(usize, &Path, &[u8]);

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

/// What the file held of the part of the log that its mark covers: what is younger is lost unnoticed when it is damaged, and
/// Raft with a log that lost what it had acknowledged promises nothing.
async fn marked(log: &Path) -> Vec<u8> {
    let (mut bytes, end) = used(&largest(log));
    bytes.truncate(end);
    // It is raised about once a second; the second time it is by entries that were written after this began.
    for _ in 0..2 {
        let mark = || std::fs::read(log.join("durable")).expect("the log's mark");
        let before = mark();
        until("the mark is raised", async || mark() != before).await;
    }
    bytes
}

/// Either it starts, because nothing that counts was hit, or it refuses in words; what takes its place then is taken in.
/// One that led comes back when another does.
async fn damaged(round: &mut Round<'_>, master: usize, damage: Damage) {
    let before = round.cluster.status(master).await.expect("it answers").node_id;
    let log = round.cluster.master_dir(master).join("log");
    let marked = marked(&log).await;
    round.cluster.masters[master].kill9();
    round.hit().await;
    damage(round.number, &largest(&log), &marked);
    round.struck();
    round.another_leads(master).await;
    round.cluster.masters[master].start();
    let mut refused = false;
    until("it follows, or refuses to", async || {
        refused = !round.cluster.masters[master].is_running();
        refused || round.cluster.status(master).await.is_some_and(|status| status.role == "follower")
    })
    .await;
    let said = round.cluster.masters[master].output();
    assert!(!said.contains("panicked"), "{said}");
    if !refused {
        return;
    }
    let status = round.cluster.masters[master].ended().await;
    let last = said.lines().last().unwrap_or_default();
    assert!(status.code() == Some(2) && last.starts_with("error: "), "{status}: {last}");
    round.cluster.wipe_master(master);
    round.cluster.masters[master].start();
    replaced_by_itself(round.cluster, &before).await;
}

async fn damaged_leader(fault: &'static str, damage: Damage) {
    Row::new(fault, "leader")
        .run(async |round| {
            let leader = round.leader().await;
            damaged(round, leader, damage).await;
        })
        .await;
}

async fn damaged_follower(fault: &'static str, damage: Damage) {
    Row::new(fault, "follower")
        .run(async |round| {
            let follower = round.cluster.follower().await;
            damaged(round, follower, damage).await;
        })
        .await;
}

fn tear(_: usize, path: &Path, marked: &[u8]) {
    let (_, end) = used(path);
    let from = marked.len().saturating_sub(TORN);
    let file = File::options().write(true).open(path).expect("a file of the log");
    file.write_all_at(&vec![0; end - from], from as u64).expect("it can be written");
}

/// Flips a bit somewhere else each time, and where nothing was written since: younger entries lie also in places that
/// older ones have left.
fn flip(number: usize, path: &Path, marked: &[u8]) {
    let (bytes, _) = used(path);
    let from = marked.len() * (number % 7 + 1) / 9;
    let stayed = |at: &usize| marked.get(*at..at + 64).is_some_and(|old| bytes[*at..].starts_with(old));
    let at = (from..marked.len()).find(stayed).expect("some of the log is where it was");
    let file = File::options().write(true).open(path).expect("a file of the log");
    file.write_all_at(&[bytes[at] ^ 0x10], at as u64).expect("it can be written");
}

#[tokio::test]
async fn torn_tail() {
    damaged_follower(TORN_TAIL, tear).await;
}

#[tokio::test]
async fn torn_tail_leader() {
    damaged_leader(TORN_TAIL, tear).await;
}

#[tokio::test]
async fn bit_flip() {
    damaged_follower(BIT_FLIP, flip).await;
}

#[tokio::test]
async fn bit_flip_leader() {
    damaged_leader(BIT_FLIP, flip).await;
}
