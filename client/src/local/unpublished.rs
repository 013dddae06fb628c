//! The queue of local puts to publish once a leader is back, if [`publish_local`](crate::Builder::publish_local) is on.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use mc_types::{Code, PutId};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

use super::LocalCache;
use crate::metrics::Counters;
use crate::{Error, Put, PutOptions};

/// Maximum number of objects that are published at once.
const CHUNK: usize = 128;
/// Maximum bytes that are published at once, except for a single larger object. A remove of one of them waits for all.
const CHUNK_BYTES: usize = 16 << 20;
/// Minimum queue length from which it is searched for puts whose values the cache has lost.
const PRUNE_FROM: usize = 1024;

/// A put whose value is in the local cache only.
#[derive(Clone, Debug)]
pub(crate) struct LocalPut {
    pub(crate) key: Box<[u8]>,
    /// Version of its entry in the cache. An entry with another version holds another value.
    pub(crate) version: PutId,
    pub(crate) options: Arc<PutOptions>,
}

/// Queue of local puts that are to be published. The values are in the cache only.
///
/// A put stays here until it is published, refused for good or lost by the cache (all three are counted), or until a
/// later put or remove of this client overtakes it.
///
/// A remove bars its keys: no publish of them begins, and the remove is sent only after those under way have ended.
/// Otherwise a publish could undo it.
#[derive(Debug, Default)]
pub(crate) struct Unpublished {
    queue: Mutex<Queue>,
    /// Wakes the publisher when there may be something to publish.
    added: Notify,
    /// Signals that a publish has ended.
    ended: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Queue {
    /// Puts, oldest first. Those that `versions` does not name are skipped.
    puts: VecDeque<LocalPut>,
    /// Version of each key's put that is not settled yet.
    versions: HashMap<Box<[u8]>, PutId>,
    /// Keys that are being published.
    under_way: HashSet<Box<[u8]>>,
    /// Keys with removes under way, with their number.
    barred: HashMap<Bytes, usize>,
    /// Queue length at which puts lost by the cache are next dropped. It keeps the queue below twice what the cache
    /// held.
    prune_at: usize,
}

impl Queue {
    fn is_current(&self, put: &LocalPut) -> bool {
        self.versions.get(&put.key) == Some(&put.version)
    }

    /// Returns the value of a put that is still to be published. If the cache has lost it, settles the put instead.
    fn value(&mut self, put: &LocalPut, cache: &LocalCache, counters: &Counters) -> Option<Bytes> {
        if !self.is_current(put) {
            return None;
        }
        match cache.any(&put.key) {
            Some(entry) if entry.version == put.version => return Some(entry.value),
            // A get has found the pool's object in the meantime.
            Some(_) => counters.puts_published.one(),
            None => counters.local_puts_evicted.one(),
        }
        self.versions.remove(&put.key);
        None
    }

    fn drop_put(&mut self, key: &[u8], cache: &LocalCache) {
        if let Some(version) = self.versions.remove(key)
            && cache.exact(key, version).is_some()
        {
            cache.remove(key);
        }
    }
}

impl Unpublished {
    /// Keeps a value until it is published, unless this client has one of the key.
    pub(crate) fn keep(
        &self,
        put: LocalPut,
        value: impl FnOnce() -> Bytes,
        cache: &LocalCache,
        counters: &Counters,
    ) {
        // Both change under the lock, so that queue and cache agree which of two puts of a key is kept.
        let mut queue = self.queue.lock();
        if cache.any(&put.key).is_some() {
            return;
        }
        if queue.versions.contains_key(&put.key) {
            // The cache has lost the earlier put's value.
            counters.local_puts_evicted.one();
        }
        if queue.puts.len() >= queue.prune_at {
            let mut puts = std::mem::take(&mut queue.puts);
            puts.retain(|put| queue.value(put, cache, counters).is_some());
            queue.prune_at = PRUNE_FROM.max(2 * puts.len());
            queue.puts = puts;
        }
        cache.insert(&put.key, put.version, value());
        queue.versions.insert(put.key.clone(), put.version);
        queue.puts.push_back(put);
        drop(queue);
        self.added.notify_one();
    }

    /// Drops all puts, because the client changes to another cluster and clears its cache.
    pub(crate) fn forget(&self, counters: &Counters) {
        let mut queue = self.queue.lock();
        counters.local_puts_evicted.add(queue.versions.len() as u64);
        queue.puts.clear();
        queue.versions.clear();
    }

    /// Drops the puts of keys whose object a later put of this client has decided, or may have.
    pub(crate) fn overtaken<'a>(&self, keys: impl Iterator<Item = &'a [u8]>, cache: &LocalCache) {
        let mut queue = self.queue.lock();
        if !queue.versions.is_empty() {
            keys.for_each(|key| queue.drop_put(key, cache));
        }
    }

    /// Bars keys from being published until the guard is dropped.
    pub(crate) fn bar<'a>(&'a self, keys: Vec<Bytes>, cache: &'a LocalCache) -> PublishBarrier<'a> {
        let mut queue = self.queue.lock();
        for key in &keys {
            *queue.barred.entry(key.clone()).or_default() += 1;
        }
        drop(queue);
        PublishBarrier { unpublished: self, cache, removed: vec![false; keys.len()], keys }
    }

    /// Waits until there is something to publish. Only one task may wait.
    ///
    /// No wakeup is lost. The queue is checked before every wait. A put that is added or a bar that is lifted in
    /// between leaves a permit, with which the wait returns at once.
    pub(crate) async fn some(&self) {
        loop {
            let free = {
                let queue = self.queue.lock();
                queue.puts.iter().any(|put| !queue.barred.contains_key(&put.key[..]))
            };
            if free {
                return;
            }
            self.added.notified().await;
        }
    }

    /// Takes the oldest puts with equal options, up to a chunk, with their values. They are under way until
    /// [`Self::ended`].
    pub(crate) fn take(&self, cache: &LocalCache, counters: &Counters) -> Vec<(LocalPut, Bytes)> {
        let mut queue = self.queue.lock();
        let mut taken: Vec<(LocalPut, Bytes)> = Vec::new();
        let mut bytes = 0;
        let mut barred = Vec::new();
        while taken.len() < CHUNK {
            let Some(put) = queue.puts.pop_front() else { break };
            if taken.first().is_some_and(|(first, _)| first.options != put.options) {
                queue.puts.push_front(put);
                break;
            }
            if queue.barred.contains_key(&put.key[..]) {
                barred.push(put);
            } else if let Some(value) = queue.value(&put, cache, counters) {
                bytes += value.len();
                if !taken.is_empty() && bytes > CHUNK_BYTES {
                    queue.puts.push_front(put);
                    break;
                }
                queue.under_way.insert(put.key.clone());
                taken.push((put, value));
            }
        }
        for put in barred.into_iter().rev() {
            queue.puts.push_front(put);
        }
        taken
    }

    /// Ends a publish; returns whether it is to be retried.
    pub(crate) fn ended(
        &self,
        put: LocalPut,
        result: &Result<Put, Error>,
        cache: &LocalCache,
        counters: &Counters,
    ) -> bool {
        let mut queue = self.queue.lock();
        queue.under_way.remove(&put.key);
        self.ended.send_replace(());
        if !queue.is_current(&put) {
            return false;
        }
        match result {
            // A put that stored has replaced the cache's entry by one with the pool's version.
            Ok(Put::Stored | Put::AlreadyExists) => {
                counters.puts_published.one();
                queue.drop_put(&put.key, cache);
                false
            }
            Err(error) if is_refusal(error.code) => {
                counters.local_puts_refused.one();
                queue.drop_put(&put.key, cache);
                false
            }
            // There is no leader again, or the error is temporary.
            Ok(Put::LocalOnly) | Err(_) => {
                queue.puts.push_back(put);
                true
            }
        }
    }
}

/// Returns whether the pool will refuse the put however often it is tried.
fn is_refusal(code: Code) -> bool {
    matches!(code, Code::ObjectTooLarge | Code::InvalidKey | Code::InvalidParams)
}

/// PublishBarrier on the keys of a remove, lifted when dropped.
///
/// Dropping it also drops the local puts that were removed or may have been, even if the remove is abandoned half-way.
pub(crate) struct PublishBarrier<'a> {
    unpublished: &'a Unpublished,
    cache: &'a LocalCache,
    keys: Vec<Bytes>,
    /// For each key, whether its remove was sent and has not definitely failed.
    removed: Vec<bool>,
}

impl PublishBarrier<'_> {
    /// Waits until none of the keys is being published, or until `deadline`.
    ///
    /// No publish of them can begin, and no end is missed because the receiver exists before the queue is checked.
    ///
    /// # Errors
    /// One of them is still being published at the deadline, so a remove could take effect before that publish.
    pub(crate) async fn quiet(&self, deadline: Instant) -> Result<(), Error> {
        let mut ended = self.unpublished.ended.subscribe();
        let quiet = async { while self.is_under_way() && ended.changed().await.is_ok() {} };
        timeout_at(deadline, quiet).await.map_err(|_| {
            let why = "a local put of one of the keys is still being published";
            Error::definite("remove", Code::RpcTimeout, "this client", why)
        })
    }

    fn is_under_way(&self) -> bool {
        let queue = self.unpublished.queue.lock();
        self.keys.iter().any(|key| queue.under_way.contains(&key[..]))
    }

    /// Notes that the remove is being sent.
    pub(crate) fn sent(&mut self) {
        self.removed.fill(true);
    }

    /// Notes that the remove of the key at index `at` has definitely failed.
    pub(crate) fn failed(&mut self, at: usize) {
        self.removed[at] = false;
    }
}

impl Drop for PublishBarrier<'_> {
    fn drop(&mut self) {
        let mut queue = self.unpublished.queue.lock();
        for (key, removed) in self.keys.iter().zip(&self.removed) {
            if *removed {
                queue.drop_put(key, self.cache);
            }
            if let Some(removes) = queue.barred.get_mut(key) {
                *removes -= 1;
                if *removes == 0 {
                    queue.barred.remove(key);
                }
            }
        }
        drop(queue);
        self.unpublished.added.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mc_types::ByteSize;

    use super::*;

    /// A queue and the cache that it refers to.
    struct Kept {
        unpublished: Unpublished,
        cache: LocalCache,
        counters: Counters,
    }

    impl Kept {
        fn new(cache: u64) -> Self {
            let cache = LocalCache::new(ByteSize(cache));
            Self { unpublished: Unpublished::default(), cache, counters: Counters::new() }
        }

        fn put(&self, key: u128, version: u128, options: &Arc<PutOptions>) {
            self.put_value(key, version, options, Bytes::from_static(b"v"));
        }

        fn put_value(&self, key: u128, version: u128, options: &Arc<PutOptions>, value: Bytes) {
            let key = Box::from(key.to_be_bytes());
            let put = LocalPut { key, version: PutId(version), options: Arc::clone(options) };
            self.unpublished.keep(put, || value, &self.cache, &self.counters);
        }

        fn put_keys(&self, keys: std::ops::RangeInclusive<u128>) {
            keys.for_each(|key| self.put(key, key, &Arc::default()));
        }

        fn take(&self) -> Vec<LocalPut> {
            let taken = self.unpublished.take(&self.cache, &self.counters);
            taken.into_iter().map(|(put, _)| put).collect()
        }

        fn versions(&self) -> Vec<u128> {
            self.take().iter().map(|put| put.version.0).collect()
        }

        fn ended(&self, put: LocalPut, result: Result<Put, Error>) -> bool {
            self.unpublished.ended(put, &result, &self.cache, &self.counters)
        }

        fn bar(&self, key: u128) -> PublishBarrier<'_> {
            self.unpublished.bar(vec![key_of(key)], &self.cache)
        }

        /// Returns how many puts were published, evicted and refused.
        fn counted(&self) -> [u64; 3] {
            let stats = self.counters.stats(0);
            [stats.puts_published, stats.local_puts_evicted, stats.local_puts_refused]
        }
    }

    fn key_of(key: u128) -> Bytes {
        Bytes::copy_from_slice(&key.to_be_bytes())
    }

    fn error(code: Code) -> Result<Put, Error> {
        Err(Error::definite("put", code, "the leader", "for a test"))
    }

    #[test]
    fn what_the_cache_has_lost_or_a_get_has_found_is_counted_and_not_taken() {
        let kept = Kept::new(1 << 20);
        kept.put_keys(1..=3);
        kept.cache.remove(&key_of(1));
        kept.cache.insert(&key_of(2), PutId(9), Bytes::from_static(b"w"));
        assert_eq!((kept.versions(), kept.counted()), (vec![3], [1, 1, 0]));
        kept.put_keys(4..=5);
        kept.unpublished.forget(&kept.counters);
        assert_eq!((kept.versions(), kept.counted()), (vec![], [1, 4, 0]));
    }

    #[test]
    fn a_chunk_is_of_one_kind_of_put_and_no_longer_than_allowed() {
        let kept = Kept::new(1 << 20);
        let two = Arc::new(PutOptions::default().with_replicas(2));
        kept.put_keys(1..=150);
        (151..=200).for_each(|key| kept.put(key, key, &two));
        let chunks: Vec<usize> = (0..4).map(|_| kept.versions().len()).collect();
        assert_eq!(chunks, [CHUNK, 150 - CHUNK, 50, 0]);
    }

    #[test]
    fn a_chunk_is_of_so_many_bytes_or_a_single_object() {
        let kept = Kept::new(1 << 30);
        for (key, len) in [CHUNK_BYTES + 1, CHUNK_BYTES / 2, CHUNK_BYTES / 2, 1].into_iter().enumerate() {
            kept.put_value(key as u128, key as u128, &Arc::default(), vec![0; len].into());
        }
        let chunks: Vec<usize> = (0..3).map(|_| kept.versions().len()).collect();
        assert_eq!(chunks, [1, 2, 1]);
    }

    #[test]
    fn it_grows_no_further_than_the_cache() {
        let kept = Kept::new(16 << 10);
        kept.put_keys(1..=20_000);
        let queue = kept.unpublished.queue.lock();
        assert!(queue.puts.len() <= PRUNE_FROM && queue.versions.len() <= PRUNE_FROM);
    }

    #[test]
    fn an_error_that_passes_leaves_the_put_queued_and_a_refusal_drops_and_counts_it() {
        let kept = Kept::new(1 << 20);
        kept.put_keys(1..=1);
        for code in [Code::NoAvailableHandle, Code::NoLeader, Code::RpcFail] {
            let [put] = kept.take().try_into().expect("it is queued");
            assert!(kept.ended(put, error(code)), "{code:?}");
        }
        let [put] = kept.take().try_into().expect("it is queued");
        assert!(kept.ended(put, Ok(Put::LocalOnly)));
        let [put] = kept.take().try_into().expect("it is queued");
        assert!(!kept.ended(put, error(Code::ObjectTooLarge)));
        assert_eq!((kept.versions(), kept.counted()), (vec![], [0, 0, 1]));
        assert!(kept.cache.any(&key_of(1)).is_none());
    }

    #[test]
    fn the_first_value_of_a_key_is_kept_and_one_of_the_pool_is_not_put_again() {
        let kept = Kept::new(1 << 20);
        kept.cache.insert(&key_of(7), PutId(7), Bytes::from_static(b"old"));
        for (key, version) in [(7, 1), (1, 2), (1, 3)] {
            kept.put(key, version, &Arc::default());
        }
        assert_eq!(kept.cache.any(&key_of(7)).map(|entry| entry.version), Some(PutId(7)));
        assert_eq!(kept.versions(), [2]);
    }

    #[test]
    fn a_later_put_overtakes_what_waits_and_what_is_under_way() {
        let kept = Kept::new(1 << 20);
        kept.put_keys(1..=2);
        let [first, second] = kept.take().try_into().expect("both");
        kept.unpublished.overtaken([&key_of(1)[..]].into_iter(), &kept.cache);
        assert!(!kept.ended(first, error(Code::NoAvailableHandle)), "its key has another put");
        assert!(kept.ended(second, error(Code::NoAvailableHandle)));
        kept.unpublished.overtaken([&key_of(2)[..]].into_iter(), &kept.cache);
        assert_eq!((kept.versions(), kept.counted()), (vec![], [0; 3]));
        assert!(kept.cache.any(&key_of(1)).is_none() && kept.cache.any(&key_of(2)).is_none());
    }

    #[tokio::test]
    async fn a_remove_waits_for_a_publish_under_way_and_nothing_is_published_after_it() {
        let kept = Kept::new(1 << 20);
        kept.put_keys(1..=1);
        let [put] = kept.take().try_into().expect("it is queued");
        let mut bar = kept.bar(1);
        let refused = bar.quiet(Instant::now()).await.expect_err("there is no time to wait");
        assert!(refused.why.contains("still being published") && !refused.is_unknown(), "{refused}");
        let later = Instant::now() + Duration::from_secs(60);
        {
            let mut quiet = std::pin::pin!(bar.quiet(later));
            assert!(futures::poll!(&mut quiet).is_pending(), "the publish is under way");
            assert!(kept.ended(put, error(Code::RpcFail)));
            quiet.await.expect("it has ended");
        }
        assert_eq!(kept.versions(), [0; 0], "it is barred");
        bar.sent();
        drop(bar);
        assert_eq!((kept.versions(), kept.counted()), (vec![], [0; 3]), "the remove has overtaken it");
    }

    #[tokio::test]
    async fn a_remove_that_failed_or_was_dropped_before_it_was_sent_leaves_the_put_and_no_bar() {
        let kept = Kept::new(1 << 20);
        kept.put_keys(1..=1);
        let mut failed = kept.bar(1);
        let unsent = kept.bar(1);
        failed.sent();
        failed.failed(0);
        drop(failed);
        assert_eq!(kept.versions(), [0; 0], "another remove bars it");
        drop(unsent);
        tokio::time::timeout(Duration::from_secs(20), kept.unpublished.some()).await.expect("it is free");
        assert_eq!(kept.versions(), [1]);
    }
}
