//! Serves requests as an inference fleet would: looks the prefix up, reads the blocks that exist, and puts the rest.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use mc_client::{Client, Error, Put, PutOptions};
use parking_lot::Mutex;

use super::{Block, Keyspace, Ledger};

/// Time after which a batch of puts that still fails ends the run. It is far longer than any failover.
const PATIENCE: Duration = Duration::from_secs(15);
/// Pause before failed puts are tried again.
const AGAIN: Duration = Duration::from_millis(20);

/// Source of requests.
pub(crate) type Requests = Box<dyn Iterator<Item = Vec<Block>> + Send>;

/// Runs requests against a pool until enough puts are acknowledged. Clones share everything.
#[derive(Clone)]
pub(crate) struct Driver {
    client: Client,
    ledger: Ledger,
    /// Acknowledged puts to reach.
    target: u64,
    requests: Arc<Mutex<Requests>>,
    counted: Arc<Counted>,
}

/// Counts of a run, beside its acknowledged puts.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    /// Requests served.
    pub(crate) requests: AtomicU64,
    /// Blocks that were found and read back right.
    pub(crate) reused: AtomicU64,
    /// Blocks that were found and had other bytes.
    pub(crate) wrong: AtomicU64,
    /// Puts that failed and were retried, and failed reads of a prefix, which are left to the final check.
    pub(crate) failed: AtomicU64,
}

impl Driver {
    pub(crate) fn new(client: Client, ledger: Ledger, target: u64, requests: Requests) -> Self {
        Self { client, ledger, target, requests: Arc::new(Mutex::new(requests)), counted: Arc::default() }
    }

    pub(crate) fn counted(&self) -> &Counted {
        &self.counted
    }

    /// Serves requests with `workers` at a time until the target is reached or the requests end.
    ///
    /// # Errors
    /// When a put fails for 15 s: the pool is then down or full rather than failing over.
    pub(crate) async fn run(&self, workers: usize) -> Result<()> {
        let worker = || async {
            while self.ledger.acknowledged() < self.target {
                let Some(request) = self.requests.lock().next() else { break };
                self.serve(&request).await?;
            }
            Ok::<_, anyhow::Error>(())
        };
        // All workers run on one task, so that dropping the run drops every pending call.
        futures::future::try_join_all((0..workers).map(|_| worker())).await.map(|_| ())
    }

    async fn serve(&self, request: &[Block]) -> Result<()> {
        let keys: Vec<_> = request.iter().map(|block| self.ledger.keys.key(*block)).collect();
        let found = self.client.batch_exist(&keys).await;
        let prefix = found.iter().take_while(|found| matches!(found, Ok(true))).count();
        let (reused, missing) = request.split_at(prefix);
        for batch in self.ledger.keys.batches(reused) {
            self.read(&batch).await;
        }
        for batch in self.ledger.keys.batches(missing) {
            if self.ledger.acknowledged() >= self.target {
                break;
            }
            self.put(batch).await?;
        }
        self.counted.requests.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Reads blocks and compares them. It ignores a read that fails: the final check finds every lost block.
    async fn read(&self, blocks: &[Block]) {
        let keys: Vec<_> = blocks.iter().map(|block| self.ledger.keys.key(*block)).collect();
        for (block, got) in blocks.iter().zip(self.client.batch_get(&keys).await) {
            let counter = match got {
                Ok(Some(bytes)) if self.ledger.keys.is_right(*block, &bytes) => &self.counted.reused,
                Ok(Some(_)) => &self.counted.wrong,
                Ok(None) | Err(_) => &self.counted.failed,
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Puts blocks, and repeats those that fail, until each is acknowledged.
    async fn put(&self, blocks: Vec<Block>) -> Result<()> {
        put_until_decided(&self.client, &self.ledger.keys, blocks, |attempt| {
            let mut left = Vec::new();
            for (object, result) in attempt.objects.iter().zip(attempt.results) {
                match result {
                    Ok(Put::Stored | Put::AlreadyExists) => self.ledger.acknowledge(object.block),
                    // No leader has seen a local put, so it is not acknowledged.
                    Ok(Put::LocalOnly) | Err(_) => left.push(object.block),
                }
            }
            self.counted.failed.fetch_add(left.len() as u64, Ordering::Relaxed);
            left
        })
        .await
    }
}

/// A block with its key and value.
pub(crate) struct Object {
    pub(crate) block: Block,
    pub(crate) key: String,
    pub(crate) value: Bytes,
}

/// One call of [`put_until_decided`], and its results.
pub(crate) struct Attempt<'a> {
    pub(crate) objects: &'a [Object],
    pub(crate) results: &'a [Result<Put, Error>],
    pub(crate) took: Duration,
}

/// Puts blocks, and repeats those that `attempt` returns. A put with an unknown outcome can simply be repeated: the key
/// is absent, or has the same bytes.
///
/// # Errors
/// When a put still fails after 15 s.
pub(crate) async fn put_until_decided(
    client: &Client,
    keys: &Keyspace,
    mut blocks: Vec<Block>,
    mut attempt: impl FnMut(Attempt<'_>) -> Vec<Block>,
) -> Result<()> {
    let begun = Instant::now();
    loop {
        let object = |block: &Block| {
            let (key, value) = keys.object(*block);
            Object { block: *block, key, value }
        };
        let objects: Vec<_> = blocks.iter().map(object).collect();
        let items: Vec<_> = objects.iter().map(|object| (&object.key, &object.value)).collect();
        let start = Instant::now();
        let results = client.batch_put(&items, &PutOptions::default()).await;
        blocks = attempt(Attempt { objects: &objects, results: &results, took: start.elapsed() });
        if blocks.is_empty() {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            let message = format!("puts were not acknowledged for {PATIENCE:?}");
            return match results.into_iter().find_map(Result::err) {
                Some(error) => Err(error).context(message),
                None => Err(anyhow::anyhow!("{message}: no leader in reach")),
            };
        }
        tokio::time::sleep(AGAIN).await;
    }
}
