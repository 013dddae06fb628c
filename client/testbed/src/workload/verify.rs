//! Check of every acknowledged block: reads it back and compares it byte for byte.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mc_client::Client;
use mc_console::note;
use parking_lot::Mutex;

use super::{Block, Ledger};

/// Number of concurrent calls.
const WORKERS: usize = 4;
/// Time after which an unreadable block is lost. It outlasts a failover that is still under way. It is spent only once,
/// because a pool that has lost a block for good is not failing over.
const PATIENCE: Duration = Duration::from_secs(5);

/// Meaning of an acknowledged block that the masters do not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// The block was lost: the pool may not evict it, or had room for all blocks.
    Loss,
    /// The block was evicted, which the pool may do.
    Eviction,
}

/// Result of reading blocks back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Number of blocks that came back with the right bytes.
    pub right: u64,
    /// Number of these that were acknowledged before the leader was killed.
    pub old_right: u64,
    /// Number of blocks that did not come back and were not evicted.
    pub lost: u64,
    /// Number of blocks that were evicted.
    pub evicted: u64,
    /// Number of blocks that came back with other bytes.
    pub wrong: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Time that the check took.
    pub took: Duration,
}

/// Reads all blocks of `ledger` with `client`; calls `progress` with the number of blocks done.
pub async fn verify(client: &Client, ledger: &Ledger, miss: Miss, progress: impl Fn(u64)) -> Verdict {
    let start = Instant::now();
    let (old, new) = ledger.all();
    let batches = |blocks: &[Block], is_old| {
        ledger.keys.batches(blocks).into_iter().map(|batch| (batch, is_old)).collect::<Vec<_>>()
    };
    let work = Mutex::new([batches(&old, true), batches(&new, false)].concat().into_iter());
    let done = AtomicU64::new(0);
    let given_up = AtomicBool::new(false);
    let worker = || async {
        let mut verdict = Verdict::default();
        loop {
            let Some((batch, is_old)) = work.lock().next() else { return verdict };
            let mut read = read_back(client, ledger, &batch, miss, &given_up).await;
            read.old_right = if is_old { read.right } else { 0 };
            verdict.add(&read);
            progress(done.fetch_add(batch.len() as u64, Ordering::Relaxed) + batch.len() as u64);
        }
    };
    let mut verdict = Verdict::default();
    for part in futures::future::join_all((0..WORKERS).map(|_| worker())).await {
        verdict.add(&part);
    }
    verdict.took = start.elapsed();
    verdict
}

async fn read_back(
    client: &Client,
    ledger: &Ledger,
    batch: &[Block],
    miss: Miss,
    given_up: &AtomicBool,
) -> Verdict {
    let start = Instant::now();
    let mut verdict = Verdict::default();
    let mut left = batch.to_vec();
    loop {
        let keys: Vec<_> = left.iter().map(|block| ledger.keys.key(*block)).collect();
        let mut again = Vec::new();
        let mut failure = None;
        for (block, got) in left.iter().zip(client.batch_get(&keys).await) {
            match got {
                Ok(Some(bytes)) => {
                    verdict.bytes += bytes.len() as u64;
                    match ledger.keys.is_right(*block, &bytes) {
                        true => verdict.right += 1,
                        false => verdict.wrong += 1,
                    }
                }
                Ok(None) => again.push(*block),
                Err(error) => {
                    failure = Some(error);
                    again.push(*block);
                }
            }
        }
        if miss == Miss::Eviction {
            let unread = again.len();
            again = known(client, ledger, again).await;
            verdict.evicted += (unread - again.len()) as u64;
        }
        if again.is_empty() {
            return verdict;
        }
        if given_up.load(Ordering::Relaxed) || start.elapsed() > PATIENCE {
            if !given_up.swap(true, Ordering::Relaxed) {
                let why = failure.map_or_else(|| "a miss".to_owned(), |error| error.to_string());
                note(&format!("acknowledged blocks can't be read back; the first {}: {why}", again.len()));
            }
            verdict.lost += again.len() as u64;
            return verdict;
        }
        left = again;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Returns the blocks without those of which the masters say that there is no object.
async fn known(client: &Client, ledger: &Ledger, mut blocks: Vec<Block>) -> Vec<Block> {
    let keys: Vec<_> = blocks.iter().map(|block| ledger.keys.key(*block)).collect();
    let mut found = client.batch_peek(&keys).await.into_iter();
    blocks.retain(|_| !matches!(found.next(), Some(Ok(presence)) if !presence.is_there()));
    blocks
}

impl Verdict {
    /// Adds the counts of another verdict.
    pub fn add(&mut self, other: &Self) {
        self.right += other.right;
        self.old_right += other.old_right;
        self.lost += other.lost;
        self.evicted += other.evicted;
        self.wrong += other.wrong;
        self.bytes += other.bytes;
    }
}
