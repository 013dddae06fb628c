//! Local puts that are published once a leader is back, where [`publish_local`](crate::Builder::publish_local) asks
//! for it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mc_discovery::Backoff;
use mc_types::{Code, PutId};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::cache::LocalCache;
use crate::core::Core;
use crate::masters::Link;
use crate::metrics::Counters;
use crate::put::Fill;
use crate::{Error, Put, PutFrom, PutOptions};

/// At most so many objects are published at once.
const CHUNK: usize = 128;
/// At most so many bytes, but for a single object that is larger: a remove of one of them waits for all.
const CHUNK_BYTES: usize = 16 << 20;
/// Fewer are not looked through for those that the cache has lost.
const PRUNE_FROM: usize = 1024;
/// Between tries while the pool can't take what is published: no space, no store, no answer.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// A put whose value is in the local cache only.
#[derive(Clone, Debug)]
pub(crate) struct LocalPut {
    pub(crate) key: Box<[u8]>,
    /// The cache's; under any other the value is not the one that was put.
    pub(crate) version: PutId,
    pub(crate) options: Arc<PutOptions>,
}

/// Local puts that are to be published. It holds no values: the cache does.
///
/// A put stays here until it is published, definitely refused, lost by the cache (both counted), or overtaken by a later
/// put or remove of this client. A remove bars its keys: nothing of them is published from then on, and what is under way
/// ends before the remove is sent, so that it can't undo it.
#[derive(Debug, Default)]
pub(crate) struct Unpublished {
    queue: Mutex<Queue>,
    /// There may be something to publish.
    added: Notify,
    /// A publish has ended.
    ended: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Queue {
    /// Oldest first. Those that `versions` does not name are skipped.
    puts: VecDeque<LocalPut>,
    /// The put of each key that is not yet settled.
    versions: HashMap<Box<[u8]>, PutId>,
    /// Keys that are being published.
    under_way: HashSet<Box<[u8]>>,
    /// Keys with removes under way, and how many.
    barred: HashMap<Bytes, usize>,
    /// So long it is when it is next freed of what the cache has lost: so it stays below twice what the cache held.
    prune_at: usize,
}

impl Queue {
    fn is_current(&self, put: &LocalPut) -> bool {
        self.versions.get(&put.key) == Some(&put.version)
    }

    /// The value of a put that is still to be published. A put whose value the cache has lost is settled.
    fn value(&mut self, put: &LocalPut, cache: &LocalCache, counters: &Counters) -> Option<Bytes> {
        if !self.is_current(put) {
            return None;
        }
        match cache.any(&put.key) {
            Some(entry) if entry.version == put.version => return Some(entry.value),
            // A get has found the pool's object since.
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
    /// Keeps a value until it is published. Without effect where an earlier local put of the key waits: a put of an absent
    /// key finds that one. What was only cached may have been removed or replaced long ago, and is no reason to drop a
    /// put.
    pub(crate) fn keep(&self, put: LocalPut, value: Bytes, cache: &LocalCache, counters: &Counters) {
        // Under the lock, so that of two puts of a key the queue and the cache have the same one.
        let mut queue = self.queue.lock();
        if queue.versions.get(&put.key).is_some_and(|version| cache.exact(&put.key, *version).is_some()) {
            return;
        }
        if queue.versions.contains_key(&put.key) {
            // The cache has lost it.
            counters.local_puts_evicted.one();
        }
        if queue.puts.len() >= queue.prune_at {
            let mut puts = std::mem::take(&mut queue.puts);
            puts.retain(|put| queue.value(put, cache, counters).is_some());
            queue.prune_at = PRUNE_FROM.max(2 * puts.len());
            queue.puts = puts;
        }
        cache.insert(&put.key, put.version, value);
        queue.versions.insert(put.key.clone(), put.version);
        queue.puts.push_back(put);
        drop(queue);
        self.added.notify_one();
    }

    /// The client goes over to another cluster, and its cache is cleared.
    pub(crate) fn forget(&self, counters: &Counters) {
        let mut queue = self.queue.lock();
        counters.local_puts_evicted.add(queue.versions.len() as u64);
        queue.puts.clear();
        queue.versions.clear();
    }

    /// A later put of this client has decided what the key's object is, or may have.
    pub(crate) fn overtaken<'a>(&self, keys: impl Iterator<Item = &'a [u8]>, cache: &LocalCache) {
        let mut queue = self.queue.lock();
        if !queue.versions.is_empty() {
            keys.for_each(|key| queue.drop_put(key, cache));
        }
    }

    /// Bars keys until the guard is dropped.
    pub(crate) fn bar<'a>(&'a self, keys: Vec<Bytes>, cache: &'a LocalCache) -> Bar<'a> {
        let mut queue = self.queue.lock();
        for key in &keys {
            *queue.barred.entry(key.clone()).or_default() += 1;
        }
        drop(queue);
        Bar { unpublished: self, cache, removed: vec![false; keys.len()], keys }
    }

    /// Waits until something is to be published. It has one caller.
    ///
    /// No wakeup is lost: the queue is looked at before every wait, and a put that is added or a bar that is lifted
    /// between the look and the wait leaves a permit behind, with which the wait returns at once.
    async fn some(&self) {
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

    /// The oldest, as many as have the same options and are no more than a chunk, with their values. They are under way
    /// until [`Self::ended`].
    fn take(&self, cache: &LocalCache, counters: &Counters) -> Vec<(LocalPut, Bytes)> {
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

    /// Ends a publish; answers whether it is to be tried again.
    fn ended(
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
            // What is stored has replaced the cache's entry by one of the pool's version.
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
            // The leader is gone again, or something that passes.
            Ok(Put::LocalOnly) | Err(_) => {
                queue.puts.push_back(put);
                true
            }
        }
    }
}

/// Refused however often it is tried.
fn is_refusal(code: Code) -> bool {
    matches!(code, Code::ObjectTooLarge | Code::InvalidKey | Code::InvalidParams)
}

/// Keys that a remove is about. Dropping it lifts the bar; local puts that were removed, or may have been, are dropped
/// with it, also when the call itself is dropped half-way.
pub(crate) struct Bar<'a> {
    unpublished: &'a Unpublished,
    cache: &'a LocalCache,
    keys: Vec<Bytes>,
    /// Of each key, whether its remove was sent and has not definitely failed.
    removed: Vec<bool>,
}

impl Bar<'_> {
    /// Waits until none of the keys is being published, until `deadline` at most.
    ///
    /// None begins to be, and no end is missed: the receiver exists before the queue is looked at.
    ///
    /// # Errors
    /// One of them is still being published: a remove could come before its end.
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

    /// The remove is sent from now on.
    pub(crate) fn sent(&mut self) {
        self.removed.fill(true);
    }

    /// The remove of the key at this place has definitely failed.
    pub(crate) fn failed(&mut self, at: usize) {
        self.removed[at] = false;
    }
}

impl Drop for Bar<'_> {
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
        let mut pace = Backoff::new(RETRY.0, RETRY.1);
        loop {
            unpublished.some().await;
            if beacon.wait_for(|beacon| matches!(beacon.link, Link::Leader(_))).await.is_err() {
                return;
            }
            if self.publish_some(unpublished).await {
                pace.reset();
            } else {
                sleep(pace.wait()).await;
            }
        }
    }

    /// Whether everything that was tried is settled.
    async fn publish_some(&self, unpublished: &Unpublished) -> bool {
        let (cache, counters) = (&self.masters.cache, &self.masters.counters);
        let taken = unpublished.take(cache, counters);
        let Some(options) = taken.first().map(|(put, _)| Arc::clone(&put.options)) else { return true };
        let slices: Vec<[&[u8]; 1]> = taken.iter().map(|(_, value)| [&value[..]]).collect();
        let items: Vec<PutFrom<'_>> =
            taken.iter().zip(&slices).map(|((put, _), slices)| PutFrom { key: &put.key, slices }).collect();
        let results = self.put_all(&items, &options, Fill::Publish).await;
        let failures: Vec<String> =
            results.iter().filter_map(|result| result.as_ref().err()).map(ToString::to_string).collect();
        if let Some(first) = failures.first() {
            tracing::debug!(count = failures.len(), "local puts were not published: {first}");
        }
        let mut settled = true;
        for ((put, _), result) in taken.into_iter().zip(&results) {
            settled &= !unpublished.ended(put, result, cache, counters);
        }
        settled
    }
}

#[cfg(test)]
mod tests {
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
            self.unpublished.keep(put, value, &self.cache, &self.counters);
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

        fn bar(&self, key: u128) -> Bar<'_> {
            self.unpublished.bar(vec![key_of(key)], &self.cache)
        }

        /// Published, evicted, refused.
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
        let two = Arc::new(PutOptions { replicas: 2, ..PutOptions::default() });
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
    fn a_put_of_a_key_that_was_only_cached_is_kept_and_one_of_a_local_put_finds_it() {
        let kept = Kept::new(1 << 20);
        kept.cache.insert(&key_of(1), PutId(7), Bytes::from_static(b"old"));
        kept.put(1, 1, &Arc::default());
        kept.put(1, 2, &Arc::default());
        assert_eq!(kept.cache.any(&key_of(1)).map(|entry| entry.version), Some(PutId(1)));
        assert_eq!(kept.versions(), [1]);
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
