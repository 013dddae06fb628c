//! Local puts that are published once a leader is back, where [`publish_local`](crate::Builder::publish_local) asks
//! for it.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use mc_base::PutId;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::cache::LocalCache;
use crate::core::Core;
use crate::masters::Link;
use crate::put::Fill;
use crate::{Put, PutFrom, PutOptions};

/// At most so many objects are published at once.
const CHUNK: usize = 128;
/// Fewer are not looked through for those that the cache has lost.
const PRUNE_FROM: usize = 1024;

/// A put whose value is in the local cache only.
#[derive(Clone, Debug)]
pub(crate) struct LocalPut {
    pub(crate) key: Box<[u8]>,
    /// The cache's; under any other the value is not the one that was put.
    pub(crate) version: PutId,
    pub(crate) options: Arc<PutOptions>,
}

/// Local puts that are to be published. It holds no values: what the cache has evicted or replaced is skipped.
#[derive(Debug, Default)]
pub(crate) struct Unpublished {
    queue: Mutex<Queue>,
    added: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    puts: VecDeque<LocalPut>,
    /// So long it is when it is next freed of what the cache has lost: so it stays below twice what the cache held.
    prune_at: usize,
}

impl Unpublished {
    /// To be called once the cache has the value.
    pub(crate) fn remember(&self, put: LocalPut, cache: &LocalCache) {
        let mut queue = self.queue.lock();
        if queue.puts.len() >= queue.prune_at {
            queue.puts.retain(|put| cache.exact(&put.key, put.version).is_some());
            queue.prune_at = PRUNE_FROM.max(2 * queue.puts.len());
        }
        queue.puts.push_back(put);
        drop(queue);
        self.added.notify_one();
    }

    pub(crate) fn forget(&self) {
        *self.queue.lock() = Queue::default();
    }

    fn is_empty(&self) -> bool {
        self.queue.lock().puts.is_empty()
    }

    /// Waits until something is to be published. It has one caller.
    ///
    /// No wakeup is lost: the queue is looked at before every wait, and a put that is added between the look and the
    /// wait leaves a permit behind, with which the wait returns at once.
    async fn some(&self) {
        while self.is_empty() {
            self.added.notified().await;
        }
    }

    /// The oldest, as many as have the same options, with their values.
    fn take(&self, cache: &LocalCache) -> Vec<(LocalPut, Bytes)> {
        let mut queue = self.queue.lock();
        let mut taken: Vec<(LocalPut, Bytes)> = Vec::new();
        while taken.len() < CHUNK {
            let Some(put) = queue.puts.pop_front() else { break };
            if taken.first().is_some_and(|(first, _)| first.options != put.options) {
                queue.puts.push_front(put);
                break;
            }
            if let Some(value) = cache.exact(&put.key, put.version) {
                taken.push((put, value));
            }
        }
        taken
    }
}

/// Publishes local puts until `closed`. It shares with the client what is called `core`, and so keeps no client alive.
pub(crate) async fn run(core: Core, closed: CancellationToken) {
    closed.run_until_cancelled_owned(core.publish()).await;
}

impl Core {
    /// Whether there is a leader is asked after every put that was added, and `wait_for` looks before it waits: a put
    /// that went local just before a leader was found is not left for the next one.
    async fn publish(&self) {
        let Some(unpublished) = &self.masters.unpublished else { return };
        let mut beacon = self.masters.beacon.subscribe();
        loop {
            unpublished.some().await;
            if beacon.wait_for(|beacon| matches!(beacon.link, Link::Leader(_))).await.is_err() {
                return;
            }
            self.publish_some(unpublished).await;
        }
    }

    async fn publish_some(&self, unpublished: &Unpublished) {
        let taken = unpublished.take(&self.masters.cache);
        let Some(options) = taken.first().map(|(put, _)| Arc::clone(&put.options)) else { return };
        let slices: Vec<[&[u8]; 1]> = taken.iter().map(|(_, value)| [&value[..]]).collect();
        let items: Vec<PutFrom<'_>> =
            taken.iter().zip(&slices).map(|((put, _), slices)| PutFrom { key: &put.key, slices }).collect();
        // What is stored replaces the cache's entry by one of the pool's version.
        let results = self.put_all(&items, &options, Fill::Cache).await;
        let mut failures = Vec::new();
        for ((put, _), result) in taken.iter().zip(results) {
            match result {
                Ok(Put::Stored | Put::AlreadyExists) => self.masters.counters.puts_published.one(),
                // The leader is gone again. If the cache has lost the value since, so will this be.
                Ok(Put::LocalOnly) => unpublished.remember(put.clone(), &self.masters.cache),
                Err(error) => failures.push(error),
            }
        }
        if let Some(error) = failures.first() {
            tracing::debug!(count = failures.len(), "local puts were not published: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use mc_base::ByteSize;

    use super::*;

    fn local_put(at: u128) -> LocalPut {
        LocalPut { key: Box::from(at.to_be_bytes()), version: PutId(at), options: Arc::default() }
    }

    fn keep(at: u128, cache: &LocalCache) {
        cache.insert(&at.to_be_bytes(), PutId(at), Bytes::from_static(b"v"));
    }

    #[test]
    fn what_the_cache_has_replaced_or_cleared_is_not_taken() {
        let (cache, unpublished) = (LocalCache::new(ByteSize(1 << 20)), Unpublished::default());
        for at in 1..=3 {
            keep(at, &cache);
            unpublished.remember(local_put(at), &cache);
        }
        cache.remove(&1_u128.to_be_bytes());
        cache.insert(&2_u128.to_be_bytes(), PutId(9), Bytes::from_static(b"w"));
        let taken: Vec<PutId> = unpublished.take(&cache).iter().map(|(put, _)| put.version).collect();
        assert_eq!(taken, [PutId(3)]);
        assert!(unpublished.is_empty());
    }

    #[test]
    fn a_chunk_is_of_one_kind_of_put_and_no_longer_than_allowed() {
        let (cache, unpublished) = (LocalCache::new(ByteSize(1 << 20)), Unpublished::default());
        let two = Arc::new(PutOptions { replicas: 2, ..PutOptions::default() });
        for at in 1..=200 {
            keep(at, &cache);
            let one = local_put(at);
            let put = if at <= 150 { one } else { LocalPut { options: Arc::clone(&two), ..one } };
            unpublished.remember(put, &cache);
        }
        let chunks: Vec<usize> = (0..4).map(|_| unpublished.take(&cache).len()).collect();
        assert_eq!(chunks, [CHUNK, 150 - CHUNK, 50, 0]);
    }

    #[test]
    fn it_grows_no_further_than_the_cache() {
        let (cache, unpublished) = (LocalCache::new(ByteSize(16 << 10)), Unpublished::default());
        for at in 1..=20_000 {
            keep(at, &cache);
            unpublished.remember(local_put(at), &cache);
        }
        assert!(unpublished.queue.lock().puts.len() <= PRUNE_FROM);
    }
}
