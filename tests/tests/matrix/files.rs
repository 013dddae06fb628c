//! A log that was torn off at an entry, or in which an entry was changed, while its master was down. Its mark covers that one.

use std::path::{Path, PathBuf};

use mc_tests::until;
use mc_types::PutId;

use crate::membership::replaced_by_itself;
use crate::round::Round;
use crate::row::{Row, Who};

const TORN_TAIL: &str = "log torn off at a known entry";
const BIT_FLIP: &str = "bit flip in a known entry of the log";

/// Damages the bytes of a file, given where the copies of an entry lie.
type Damage = fn(&mut [u8], &[usize]);

/// The file with most of the log.
fn largest(dir: &Path) -> PathBuf {
    let entries = std::fs::read_dir(dir).expect("the log's directory").flatten();
    let files = entries.filter(|entry| entry.path().is_file());
    let size = |path: &PathBuf| path.metadata().map_or(0, |meta| meta.len());
    files.map(|entry| entry.path()).max_by_key(size).expect("a log has files")
}

/// Puts an object with a key that nothing else has, and waits until the log's mark covers its entry: what is younger is lost
/// unnoticed when it is damaged, and Raft with a log that lost what it had acknowledged promises nothing.
async fn known_entry(round: &Round<'_>, log: &Path) -> String {
    let key = format!("known entry {}", PutId::random());
    let client = round.cluster.client().await;
    until("it is stored", async || client.put(&key, b"value").await.is_ok()).await;
    // It is raised about once a second; the second time it is by entries that were written after this began.
    for _ in 0..2 {
        let mark = || std::fs::read(log.join("durable")).expect("the log's mark");
        let before = mark();
        until("the mark is raised", async || mark() != before).await;
    }
    key
}

/// Where `wanted` begins in `bytes`: the database leaves copies that are dead.
fn copies(bytes: &[u8], wanted: &[u8]) -> Vec<usize> {
    bytes.windows(wanted.len()).enumerate().filter(|(_, at)| *at == wanted).map(|(at, _)| at).collect()
}

/// It refuses to start, in words; what takes its place then is taken in. Another leads by then where it led.
async fn damaged(round: &mut Round<'_>, master: usize, damage: Damage) {
    let before = round.cluster.status(master).await.expect("it answers").node_id;
    let log = round.cluster.master_dir(master).join("log");
    let key = known_entry(round, &log).await;
    round.cluster.masters[master].kill9();
    round.hit().await;
    let path = largest(&log);
    let mut bytes = std::fs::read(&path).expect("a file of the log");
    let at = copies(&bytes, key.as_bytes());
    assert!(!at.is_empty(), "the log has the entry in its largest file");
    damage(&mut bytes, &at);
    std::fs::write(&path, &bytes).expect("it can be written");
    round.struck();
    round.another_leads(master).await;
    round.cluster.masters[master].start();
    let status = round.cluster.masters[master].ended().await;
    let said = round.cluster.masters[master].output();
    let last = said.lines().last().unwrap_or_default();
    assert!(status.code() == Some(2) && last.starts_with("error: "), "{status}: {last}");
    assert!(!said.contains("panicked"), "{said}");
    round.cluster.wipe_master(master);
    round.cluster.masters[master].start();
    replaced_by_itself(round.cluster, &before).await;
}

async fn row(fault: &'static str, who: Who, damage: Damage) {
    Row::new(fault, who.role(), who.lost())
        .run_at(who, async |round, master| damaged(round, master, damage).await)
        .await;
}

fn tear(bytes: &mut [u8], at: &[usize]) {
    bytes[at[0]..].fill(0);
}

fn flip(bytes: &mut [u8], at: &[usize]) {
    at.iter().for_each(|at| bytes[*at] ^= 0x10);
}

rows! {
    torn_tail => row(TORN_TAIL, Who::Follower, tear);
    torn_tail_leader => row(TORN_TAIL, Who::Leader, tear);
    bit_flip => row(BIT_FLIP, Who::Follower, flip);
    bit_flip_leader => row(BIT_FLIP, Who::Leader, flip);
}
