use bytes::Bytes;
use mc_transfer::ReadBuffer;

use super::{Destination, Get, Got, Source};
use crate::core::{copied, nonsense};
use crate::{Client, Error};

/// One object to read into the caller's memory.
#[non_exhaustive]
pub struct GetInto<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Buffers that receive its bytes, one after the other; in sum they may be longer than the object.
    pub into: Vec<&'a mut [u8]>,
}

impl<'a> GetInto<'a> {
    /// The object of this key, to be read into these buffers.
    #[must_use]
    pub fn new<K: AsRef<[u8]> + ?Sized>(key: &'a K, into: Vec<&'a mut [u8]>) -> Self {
        Self { key: key.as_ref(), into }
    }
}

impl Client {
    /// Reads one object; `None` is a miss.
    ///
    /// A miss means that the pool has no such object *that can be read now*: there is none, it is being written (see
    /// [`Builder::fail_unfinished_gets`](crate::Builder::fail_unfinished_gets)), its stores are suspect, or its only
    /// replicas could not be read (counted as `unreachable_replicas`) or had wrong bytes (counted as
    /// `checksum_mismatches`). When the connection to a store fails, the client reads other replicas first, then asks
    /// the leader again and tries that store once more before it reports a miss.
    ///
    /// In local-only mode the local cache and an [embedded store](crate::Builder::embedded_store)'s memory answer. Their value
    /// may have been removed or replaced since. A miss is then not one of the pool: see
    /// [`get_with_source`](Self::get_with_source) and [`Builder::fail_local_misses`](crate::Builder::fail_local_misses).
    ///
    /// # Errors
    /// [`Error`] when no leader answers in time, or the key has an invalid length. A get changes nothing, so its
    /// outcome is always definite.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>, Error> {
        let mut results = self.batch_get(&[key.as_ref()]).await;
        results.pop().unwrap_or_else(|| Err(nonsense("get")))
    }

    /// [`get`](Self::get) for many keys; one result each, in order.
    pub async fn batch_get<K: AsRef<[u8]> + Sync>(&self, keys: &[K]) -> Vec<Result<Option<Bytes>, Error>> {
        let items = copied(keys).into_iter().map(|key| (key, Destination::whole())).collect();
        let results = self.run("get", keys.len(), Get::new(self.core()).all(items)).await;
        results.into_iter().map(|result| Ok(result?.and_then(Got::bytes))).collect()
    }

    /// [`batch_get`](Self::batch_get) into memory that is the caller's alone: the local cache shares none of it, and keeps a copy.
    pub async fn batch_get_owned<K: AsRef<[u8]> + Sync>(
        &self,
        keys: &[K],
    ) -> Vec<Result<Option<Vec<u8>>, Error>> {
        let items = copied(keys).into_iter().map(|key| (key, Destination::whole_owned())).collect();
        let results = self.run("get", keys.len(), Get::new(self.core()).all(items)).await;
        results.into_iter().map(|result| Ok(result?.and_then(Got::owned))).collect()
    }

    /// [`get`](Self::get), with who answered. It tells a hit of the pool from one of the cache, and a miss of the pool from one without a
    /// leader.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn get_with_source(&self, key: impl AsRef<[u8]>) -> Result<(Option<Bytes>, Source), Error> {
        let mut results = self.batch_get_with_source(&[key.as_ref()]).await;
        results.pop().unwrap_or_else(|| Err(nonsense("get")))
    }

    /// [`get_with_source`](Self::get_with_source) for many keys; one result each, in order.
    pub async fn batch_get_with_source<K: AsRef<[u8]> + Sync>(
        &self,
        keys: &[K],
    ) -> Vec<Result<(Option<Bytes>, Source), Error>> {
        let items = copied(keys).into_iter().map(|key| (key, Destination::whole())).collect();
        let results = self.run("get", keys.len(), Get::new(self.core()).all_with_source(items)).await;
        results.into_iter().map(|(result, source)| Ok((result?.and_then(Got::bytes), source))).collect()
    }

    /// Reads objects into the caller's memory; each result is the number of bytes, or `None` for a miss.
    ///
    /// Nothing is copied on the way, so the local cache is not filled. The buffers of an item are filled by one read. An
    /// item whose memory is shorter than its object fails with `INVALID_PARAMS`. If an item returns no bytes, the content
    /// of its memory is unspecified.
    pub async fn batch_get_into(&self, items: &mut [GetInto<'_>]) -> Vec<Result<Option<usize>, Error>> {
        let items: Vec<_> = items
            .iter_mut()
            .map(|GetInto { key, into }| {
                let into = into.iter_mut().map(|buffer| ReadBuffer::from(&mut **buffer));
                (Bytes::copy_from_slice(key), Destination::whole_into(into))
            })
            .collect();
        self.get_into(items).await
    }

    /// Reads objects or parts of them into the caller's memory.
    pub(crate) async fn get_into(
        &self,
        items: Vec<(Bytes, Destination<'_>)>,
    ) -> Vec<Result<Option<usize>, Error>> {
        let results = self.run("get", items.len(), Get::new(self.core()).all(items)).await;
        results.into_iter().map(|result| Ok(result?.map(|got| got.len()))).collect()
    }
}
