//! Puts and gets side by side, in a pool that is full or has room.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use mc_client::{Client, Put, PutOptions};
use mc_testbed::{Block, Keyspace};
use mc_types::ALLOCATION_ALIGN;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;

use crate::latencies::Latencies;

/// Number of objects that are read. They are leased all the time, and must stay few beside the others.
const READ: u64 = 16;

/// Kind of puts that a pool is measured with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// Bytes of an object.
    pub(super) size: u64,
    /// Objects of a call.
    pub(super) batch: u64,
    /// Objects for which the pool has memory.
    pub(super) room: u64,
}

impl Kind {
    pub(super) const ALL: [Self; 2] =
        [Self { size: 256, batch: 128, room: 100_000 }, Self { size: 1 << 20, batch: 1, room: 512 }];

    /// Bytes of the pool.
    pub(super) fn bytes(self) -> u64 {
        self.room * self.size.next_multiple_of(ALLOCATION_ALIGN)
    }
}

/// Callers of one kind.
pub(super) struct Load {
    pub(super) client: Client,
    pub(super) kind: Kind,
    threads: u32,
    space: Keyspace,
    /// Values of the objects of a call, shared by all calls: making values is not measured.
    values: Vec<Bytes>,
    /// Next block that has not been put. Blocks below [`READ`] are those that are read.
    next: AtomicU64,
}

/// Counts of one stretch of time.
#[derive(Debug)]
pub(super) struct Counts {
    /// Number of objects that were put.
    pub(super) puts: u64,
    /// Puts that failed, for lack of space or otherwise.
    pub(super) failed: u64,
    pub(super) gets: Latencies,
    /// Gets that failed or found nothing.
    pub(super) missed: u64,
    pub(super) took: Duration,
}

impl Counts {
    pub(super) fn new() -> Self {
        Self { puts: 0, failed: 0, gets: Latencies::new(), missed: 0, took: Duration::ZERO }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.puts += other.puts;
        self.failed += other.failed;
        self.gets.add(&other.gets);
        self.missed += other.missed;
        self.took += other.took;
    }
}

/// When a stretch of load ends: after a time, or once so many objects are put.
#[derive(Clone, Copy, Debug)]
pub(super) struct Until {
    pub(super) time: Duration,
    pub(super) objects: u64,
}

impl Load {
    pub(super) fn new(client: Client, kind: Kind, threads: u32) -> Self {
        let run = format!("full/{:016x}", rand::random::<u64>());
        let space = Keyspace::uniform(run, kind.size as usize);
        let values = (0..kind.batch.max(READ)).map(|block| space.object(block).1).collect();
        Self { client, kind, threads, space, values, next: AtomicU64::new(READ) }
    }

    /// Puts from all callers beside one caller that reads.
    pub(super) async fn run(self: &Arc<Self>, until: Until) -> Result<Counts> {
        self.put_what_is_read().await?;
        let over = Arc::new(AtomicBool::new(false));
        let reader = tokio::spawn(self.clone().read(over.clone()));
        let first = self.next.load(Ordering::Relaxed);
        let begun = Instant::now();
        let writers: JoinSet<Counts> =
            (0..self.threads).map(|_| self.clone().write(first, begun, until)).collect();
        let mut counts = Counts::new();
        for part in writers.join_all().await {
            counts.add(&part);
        }
        counts.took = begun.elapsed();
        over.store(true, Ordering::Relaxed);
        counts.add(&reader.await.context("the reading task panicked")?);
        Ok(counts)
    }

    async fn put_what_is_read(&self) -> Result<()> {
        let objects: Vec<_> =
            (0..READ).zip(&self.values).map(|(block, value)| (self.space.key(block), value)).collect();
        for result in self.client.batch_put(&objects, &PutOptions::default()).await {
            result.context("cannot put the objects that are to be read")?;
        }
        Ok(())
    }

    async fn write(self: Arc<Self>, first: Block, begun: Instant, until: Until) -> Counts {
        let mut counts = Counts::new();
        while begun.elapsed() < until.time {
            let from = self.next.fetch_add(self.kind.batch, Ordering::Relaxed);
            if from - first >= until.objects {
                break;
            }
            let blocks = from..from + self.kind.batch;
            let objects: Vec<_> =
                blocks.zip(&self.values).map(|(block, value)| (self.space.key(block), value)).collect();
            for result in self.client.batch_put(&objects, &PutOptions::default()).await {
                match result {
                    Ok(Put::Stored) => counts.puts += 1,
                    Ok(Put::AlreadyExists | Put::LocalOnly) | Err(_) => counts.failed += 1,
                }
            }
        }
        counts
    }

    async fn read(self: Arc<Self>, over: Arc<AtomicBool>) -> Counts {
        let mut counts = Counts::new();
        let mut rng = SmallRng::seed_from_u64(1);
        while !over.load(Ordering::Relaxed) {
            let key = self.space.key(rng.random_range(0..READ));
            let begun = Instant::now();
            let got = self.client.get(key).await;
            let took = begun.elapsed();
            // The client has compared the checksum.
            match got {
                Ok(Some(_)) => counts.gets.record(took),
                Ok(None) | Err(_) => counts.missed += 1,
            }
        }
        counts
    }
}
