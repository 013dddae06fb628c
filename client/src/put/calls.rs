use bytes::Bytes;
use mc_transfer::WriteBuffer;

use super::{CacheUse, PutBatch, PutItem};
use crate::core::nonsense;
use crate::{Client, Error, Put, PutOptions};

/// One object to write from the caller's memory.
#[derive(Clone)]
#[non_exhaustive]
pub struct PutFrom<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Slices that make up its value, in order; read in place.
    pub slices: &'a [&'a [u8]],
    /// Name of the group that it joins, at most 256 bytes; empty for that of the options.
    ///
    /// The members of a group are evicted together or not at all, and a use of one renews all. A group has 1,024 members
    /// at most. A put that has started protects its group from eviction until it ends or its deadline is over.
    pub group: &'a [u8],
}

impl<'a> PutFrom<'a> {
    /// An object of this key and value, in the group that the options name.
    #[must_use]
    pub fn new<K: AsRef<[u8]> + ?Sized>(key: &'a K, slices: &'a [&'a [u8]]) -> Self {
        Self { key: key.as_ref(), slices, group: &[] }
    }

    /// Sets the [group](Self::group).
    #[must_use]
    pub fn with_group<G: AsRef<[u8]> + ?Sized>(mut self, group: &'a G) -> Self {
        self.group = group.as_ref();
        self
    }
}

impl Client {
    /// Puts one object if its key is absent: [`put_with`](Self::put_with) with the default options.
    ///
    /// # Errors
    /// See [`put_with`](Self::put_with).
    pub async fn put(&self, key: impl AsRef<[u8]>, value: &[u8]) -> Result<Put, Error> {
        self.put_with(key, value, &PutOptions::default()).await
    }

    /// Puts one object of 1 byte up to the largest segment, under a key of 1 to 4,096 bytes.
    ///
    /// # Errors
    /// [`Error`], which says whether the outcome is definite or unknown.
    pub async fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: &[u8],
        options: &PutOptions,
    ) -> Result<Put, Error> {
        let key = key.as_ref();
        let items = PutItem::of_values([(key, value)].into_iter());
        let mut results =
            self.run("put", 1, PutBatch::new(self.core(), options, CacheUse::Insert).put(&items)).await;
        results.pop().unwrap_or_else(|| Err(nonsense("put")))
    }

    /// Puts objects; returns one result per item, in order.
    ///
    /// If several items have the same key, only one of them is sent: the last one in an upsert, else the first. The
    /// others get a result that follows from its result.
    pub async fn batch_put<K, V>(&self, items: &[(K, V)], options: &PutOptions) -> Vec<Result<Put, Error>>
    where
        K: AsRef<[u8]> + Sync,
        V: AsRef<[u8]> + Sync,
    {
        let items = PutItem::of_values(items.iter().map(|(key, value)| (key.as_ref(), value.as_ref())));
        self.run("put", items.len(), PutBatch::new(self.core(), options, CacheUse::Insert).put(&items)).await
    }

    /// Puts objects from scattered memory without copying them.
    ///
    /// The local cache is therefore not filled, except in local-only mode, where it is the only place for the value.
    pub async fn batch_put_from(
        &self,
        items: &[PutFrom<'_>],
        options: &PutOptions,
    ) -> Vec<Result<Put, Error>> {
        let buffers = |slices: &[_]| slices.iter().copied().map(WriteBuffer::from).collect();
        let items = items.iter().map(|item| (item.key, buffers(item.slices), item.group));
        let items = PutItem::all(items);
        self.run("put", items.len(), PutBatch::new(self.core(), options, CacheUse::Skip).put(&items)).await
    }

    /// Puts an object whose bytes the caller gives away: the local cache keeps them and copies nothing. A value that is part
    /// of a larger buffer keeps all of that buffer in memory.
    ///
    /// # Errors
    /// As for [`put_with`](Self::put_with).
    pub async fn put_bytes(
        &self,
        key: impl AsRef<[u8]>,
        value: Bytes,
        options: &PutOptions,
    ) -> Result<Put, Error> {
        let mut results = self.batch_put_bytes(&[(key.as_ref(), value)], options).await;
        results.pop().unwrap_or_else(|| Err(nonsense("put")))
    }

    /// [`put_bytes`](Self::put_bytes) for many objects; one result each, in order, as for [`batch_put`](Self::batch_put).
    pub async fn batch_put_bytes<K: AsRef<[u8]> + Sync>(
        &self,
        items: &[(K, Bytes)],
        options: &PutOptions,
    ) -> Vec<Result<Put, Error>> {
        let values: Vec<Bytes> = items.iter().map(|(_, value)| value.clone()).collect();
        let items = PutItem::of_values(items.iter().map(|(key, value)| (key.as_ref(), &value[..])));
        self.run(
            "put",
            items.len(),
            PutBatch::new(self.core(), options, CacheUse::Insert).giving(&values).put(&items),
        )
        .await
    }
}
