//! Serves requests as an inference fleet would: looks the prefix up, reads the blocks that exist, and puts the rest.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use mc_client::{Client, Error, Put};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Block, Keyspace, Ledger};

/// Time after which a batch of puts that still fails ends the run. It is far longer than any failover.
const PATIENCE: Duration = Duration::from_secs(15);
/// Pause before failed puts are tried again.
const AGAIN: Duration = Duration::from_millis(20);

/// Source of requests.
pub type Requests = Box<dyn Iterator<Item = Vec<Block>> + Send>;

/// Runs requests against a pool until enough blocks are acknowledged. Clones share everything.
///
/// Each acknowledged block gets a record under a key of its own, which is put afterwards. Where the pool may evict
/// blocks and not records, a record tells a lost put from an evicted one: the masters apply puts in one order, so the
/// loss of a put by a failover takes the later records along.
#[derive(Clone)]
pub struct Driver {
    client: Client,
    blocks: Ledger,
    records: Ledger,
    /// Acknowledged blocks to reach.
    target: u64,
    requests: Arc<Mutex<Requests>>,
    counted: Arc<Mutex<Counted>>,
    /// Blocks of the requests under way, without their first.
    busy: Arc<Mutex<HashSet<Block>>>,
    /// A request has ended.
    ended: Arc<Notify>,
}

/// Counts of a run, beside its acknowledged puts.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// Requests in the order in which they were served.
    pub requests: Vec<Vec<Block>>,
    /// Blocks that were found and read back right, with all earlier blocks of their request.
    pub hits: u64,
    /// Blocks that were found and had other bytes.
    pub wrong: u64,
    /// Puts that failed and were retried, and blocks that were found and could not be read.
    pub failed: u64,
}

impl Driver {
    /// Serves `requests` until `target` of `blocks` are acknowledged, each with a record in `records`.
    pub fn new(client: Client, blocks: Ledger, records: Ledger, target: u64, requests: Requests) -> Self {
        let requests = Arc::new(Mutex::new(requests));
        let (busy, ended) = Default::default();
        Self { client, blocks, records, target, requests, counted: Arc::default(), busy, ended }
    }

    /// Returns the counts so far.
    pub fn counted(&self) -> Counted {
        self.counted.lock().clone()
    }

    /// Serves requests with `workers` at a time until the target is reached or the requests end.
    ///
    /// # Errors
    /// When a put fails for 15 s: the pool is then down, or full of what it may not evict.
    pub async fn run(&self, workers: usize) -> Result<()> {
        let worker = || async {
            while self.blocks.acknowledged() < self.target {
                let Some(request) = self.requests.lock().next() else { break };
                self.start(&request).await;
                self.serve(&request).await?;
                self.end(&request);
            }
            Ok::<_, anyhow::Error>(())
        };
        // All workers run on one task, so that dropping the run drops every pending call.
        futures::future::try_join_all((0..workers).map(|_| worker())).await.map(|_| ())
    }

    /// Waits until no request under way has a block of this one: a turn of a conversation begins after the turn before
    /// it has ended. The first block does not count, because all conversations share it.
    async fn start(&self, request: &[Block]) {
        loop {
            let ended = self.ended.notified();
            {
                let mut busy = self.busy.lock();
                if !request.iter().skip(1).any(|block| busy.contains(block)) {
                    busy.extend(request.iter().skip(1));
                    break;
                }
            }
            ended.await;
        }
        self.counted.lock().requests.push(request.to_vec());
    }

    fn end(&self, request: &[Block]) {
        let mut busy = self.busy.lock();
        for block in request.iter().skip(1) {
            busy.remove(block);
        }
        self.ended.notify_waiters();
    }

    async fn serve(&self, request: &[Block]) -> Result<()> {
        let keys: Vec<_> = request.iter().map(|block| self.blocks.keys.key(*block)).collect();
        let found = self.client.batch_exist(&keys).await;
        let found = found.iter().take_while(|found| matches!(found, Ok(true))).count();
        let mut hits = 0;
        for batch in self.blocks.keys.batches(&request[..found]) {
            let read = self.read(&batch).await;
            hits += read;
            if read < batch.len() {
                break;
            }
        }
        self.counted.lock().hits += hits as u64;
        for batch in self.blocks.keys.batches(&request[hits..]) {
            self.put(&self.blocks, batch.clone()).await?;
            let without_record = self.records.missing(&batch);
            if !without_record.is_empty() {
                self.put(&self.records, without_record).await?;
            }
        }
        Ok(())
    }

    /// Reads blocks and compares them; returns how many are right before the first that is not.
    async fn read(&self, blocks: &[Block]) -> usize {
        let keys: Vec<_> = blocks.iter().map(|block| self.blocks.keys.key(*block)).collect();
        let got = self.client.batch_get(&keys).await;
        let right: Vec<_> = blocks
            .iter()
            .zip(got)
            .map(|(block, got)| Some(self.blocks.keys.is_right(*block, &got.ok()??)))
            .collect();
        let mut counted = self.counted.lock();
        counted.wrong += right.iter().filter(|right| **right == Some(false)).count() as u64;
        counted.failed += right.iter().filter(|right| right.is_none()).count() as u64;
        right.iter().take_while(|right| **right == Some(true)).count()
    }

    /// Puts what `ledger` keeps of `blocks`, and repeats the puts that fail, until each is acknowledged.
    async fn put(&self, ledger: &Ledger, blocks: Vec<Block>) -> Result<()> {
        put_until_decided(&self.client, &ledger.keys, blocks, |attempt| {
            let mut left = Vec::new();
            for (object, result) in attempt.objects.iter().zip(attempt.results) {
                match result {
                    Ok(Put::Stored | Put::AlreadyExists) => ledger.acknowledge(object.block),
                    // No leader has seen a local put, so it is not acknowledged.
                    Ok(Put::LocalOnly) | Err(_) => left.push(object.block),
                }
            }
            self.counted.lock().failed += left.len() as u64;
            left
        })
        .await
    }
}

/// A block with its key and value.
pub struct Object {
    /// The block.
    pub block: Block,
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: Bytes,
}

/// One call of [`put_until_decided`], and its results.
pub struct Attempt<'a> {
    /// Objects of the call.
    pub objects: &'a [Object],
    /// Result of each object.
    pub results: &'a [Result<Put, Error>],
    /// Duration of the call.
    pub took: Duration,
}

/// Puts blocks, and repeats those that `attempt` returns. A put with an unknown outcome can simply be repeated: the key
/// is absent, or has the same bytes.
///
/// # Errors
/// When a put still fails after 15 s.
pub async fn put_until_decided(
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
        let results = client.batch_put(&items, &keys.put_options()).await;
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
