use std::fmt;

use bytes::Bytes;
use mc_types::{ByteSize, PutId};
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

/// Bytes that an entry takes in addition to its key and value.
const ENTRY_OVERHEAD: u64 = 96;
/// Minimum bytes of a shard, so that objects of some megabytes fit.
const SHARD_BYTES: u64 = 64 << 20;
const MAX_SHARDS: u64 = 16;
/// Object size for which the tables are laid out. With smaller objects there are more entries, and the tables grow.
const TYPICAL_OBJECT: u64 = 128 << 10;

/// Cache of objects recently read or written by one client, and so of one tenant and one cluster.
///
/// With a leader in reach, an entry is used only if it has the version that the leader names. Without one it is used as
/// it is, and its object may have been removed or replaced since.
#[derive(Debug)]
pub(crate) struct LocalCache {
    entries: Option<Cache<Box<[u8]>, Entry, Weight>>,
    capacity: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) version: PutId,
    pub(crate) value: Bytes,
}

#[derive(Clone, Debug)]
struct Weight;

impl Weighter<Box<[u8]>, Entry> for Weight {
    fn weight(&self, key: &Box<[u8]>, entry: &Entry) -> u64 {
        key.len() as u64 + entry.value.len() as u64 + ENTRY_OVERHEAD
    }
}

impl LocalCache {
    pub(crate) fn new(size: ByteSize) -> Self {
        let capacity = size.0;
        let shards = (capacity / SHARD_BYTES).clamp(1, MAX_SHARDS);
        let options = OptionsBuilder::new()
            .estimated_items_capacity(
                usize::try_from(capacity / TYPICAL_OBJECT).unwrap_or(usize::MAX).max(64),
            )
            .weight_capacity(capacity)
            .shards(usize::try_from(shards).unwrap_or(1))
            .build();
        // The options fail to build only when a capacity is missing, and both are given.
        let entries = options.ok().filter(|_| capacity > 0).map(|options| {
            Cache::with_options(options, Weight, DefaultHashBuilder::default(), DefaultLifecycle::default())
        });
        Self { entries, capacity }
    }

    /// Returns whether an object of this size can be kept.
    pub(crate) fn holds(&self, size: u64) -> bool {
        self.entries
            .as_ref()
            .is_some_and(|entries| size.saturating_add(ENTRY_OVERHEAD + 4096) <= entries.shard_capacity())
    }

    /// Keeps an object in place of any other version.
    pub(crate) fn insert(&self, key: &[u8], version: PutId, value: Bytes) {
        if let Some(entries) = &self.entries {
            entries.insert(key.into(), Entry { version, value });
        }
    }

    /// Returns the object in any version.
    pub(crate) fn any(&self, key: &[u8]) -> Option<Entry> {
        self.entries.as_ref()?.get(key)
    }

    /// Returns the object if it has this version.
    pub(crate) fn exact(&self, key: &[u8], version: PutId) -> Option<Bytes> {
        self.any(key).filter(|entry| entry.version == version).map(|entry| entry.value)
    }

    pub(crate) fn remove(&self, key: &[u8]) {
        if let Some(entries) = &self.entries {
            entries.remove(key);
        }
    }

    pub(crate) fn clear(&self) {
        if let Some(entries) = &self.entries {
            entries.clear();
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.entries.as_ref().map_or(0, |entries| entries.weight().min(self.capacity))
    }
}

impl fmt::Display for LocalCache {
    /// Writes the line that a client logs when it connects: the cache's size, and the setting for it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.entries {
            Some(_) => {
                let size = ByteSize(self.capacity);
                write!(f, "local cache: up to {size} (set by Builder::local_cache, 0 is off)")
            }
            None => f.write_str(
                "local cache: off (set by Builder::local_cache); without a leader gets miss and puts fail",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use parking_lot::Mutex;
    use tracing::field::Field;
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    use super::*;
    use crate::Client;

    const ONE: PutId = PutId(1);
    const TWO: PutId = PutId(2);

    #[test]
    fn an_entry_answers_for_its_version_only_unless_any_will_do() {
        let cache = LocalCache::new(ByteSize(1 << 20));
        cache.insert(b"k", ONE, Bytes::from_static(b"v"));
        assert_eq!(cache.exact(b"k", ONE).as_deref(), Some(&b"v"[..]));
        assert_eq!(cache.exact(b"k", TWO), None);
        assert_eq!(cache.any(b"k").map(|entry| entry.version), Some(ONE));
        cache.insert(b"k", TWO, Bytes::from_static(b"w"));
        assert_eq!(cache.exact(b"k", ONE), None, "a key has one entry");
        cache.remove(b"k");
        assert!(cache.any(b"k").is_none());
    }

    #[test]
    fn it_stays_within_its_bytes_and_takes_no_object_larger_than_a_shard() {
        let cache = LocalCache::new(ByteSize(256 << 20));
        assert!(cache.holds(32 << 20) && !cache.holds(256 << 20));
        let small = LocalCache::new(ByteSize(1 << 20));
        for i in 0..100_u128 {
            small.insert(&i.to_be_bytes(), PutId(i + 1), Bytes::from(vec![0; 64 << 10]));
            assert!(small.bytes() <= 1 << 20);
        }
        assert!(small.bytes() > 512 << 10, "most of it is in use");
    }

    #[test]
    fn a_size_of_zero_keeps_nothing() {
        let cache = LocalCache::new(ByteSize(0));
        cache.insert(b"k", ONE, Bytes::from_static(b"v"));
        assert!(cache.any(b"k").is_none() && !cache.holds(1));
    }

    /// Subscriber that keeps this library's log lines of level INFO.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<String>>>);

    impl Subscriber for Lines {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == Level::INFO && metadata.target().starts_with("mc_client")
        }

        fn event(&self, event: &Event<'_>) {
            event.record(&mut |field: &Field, value: &dyn fmt::Debug| {
                if field.name() == "message" {
                    self.0.lock().push(format!("{value:?}"));
                }
            });
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[tokio::test]
    async fn a_client_says_once_how_large_its_cache_is_and_what_sets_that() {
        let nowhere = Client::builder().masters("127.0.0.1:1").leader_timeout(Duration::from_millis(1));
        let lines = Lines::default();
        let _logging = tracing::subscriber::set_default(lines.clone());
        nowhere.clone().connect().await.unwrap();
        nowhere.local_cache(ByteSize(0)).connect().await.unwrap();
        assert_eq!(
            *lines.0.lock(),
            [
                "local cache: up to 256MiB (set by Builder::local_cache, 0 is off)",
                "local cache: off (set by Builder::local_cache); without a leader gets miss and puts fail",
            ]
        );
    }
}
