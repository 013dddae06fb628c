use bytes::Bytes;
use std::time::Duration;

use crate::options::Builder;
use crate::{Admin, ConnectError, Error, Mode, Put, PutOptions, Stats};

/// A client of one cluster and one tenant. Cheap to clone, safe to share between tasks and threads; it runs on the
/// caller's tokio runtime, and its background tasks end when its last clone is dropped.
///
/// Every call ends by its deadline, whatever is down. Dropping a call's future abandons it: a put that had started
/// is ended by the masters at its deadline.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use mc_client::Client;
///
/// let client = Client::builder().masters("a:50051,b:50051,c:50051").local_cache("4gb".parse()?).connect().await?;
/// client.put("k", b"value").await?;
/// assert_eq!(client.get("k").await?.as_deref(), Some(&b"value"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Client {}

/// One object to read into the caller's memory.
#[derive(Debug)]
pub struct GetInto<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Where its bytes go; may be longer than the object.
    pub into: &'a mut [u8],
}

/// One object to write from the caller's memory.
#[derive(Clone, Debug)]
pub struct PutFrom<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its bytes, in order; read in place.
    pub slices: &'a [&'a [u8]],
}

impl Client {
    /// Settings to connect with.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) async fn connect(_builder: Builder) -> Result<Self, ConnectError> {
        todo!()
    }

    /// Returns once a leader is known, or `false` when `timeout` has passed without one.
    pub async fn connected(&self, timeout: Duration) -> bool {
        let _ = timeout;
        todo!()
    }

    /// Puts one object if its key is absent; [`put_with`](Self::put_with) with the default options.
    ///
    /// # Errors
    /// See [`put_with`](Self::put_with).
    pub async fn put(&self, key: impl AsRef<[u8]>, value: &[u8]) -> Result<Put, Error> {
        self.put_with(key, value, &PutOptions::default()).await
    }

    /// Puts one object: 1 byte up to the largest segment, under a key of 1 to 4,096 bytes.
    ///
    /// # Errors
    /// [`Error`], which says whether the outcome is definite or unknown.
    pub async fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: &[u8],
        options: &PutOptions,
    ) -> Result<Put, Error> {
        let _ = (key.as_ref(), value, options);
        todo!()
    }

    /// Puts objects; one result each, in order.
    pub async fn batch_put<K, V>(&self, items: &[(K, V)], options: &PutOptions) -> Vec<Result<Put, Error>>
    where
        K: AsRef<[u8]> + Sync,
        V: AsRef<[u8]> + Sync,
    {
        let _ = (items, options);
        todo!()
    }

    /// Puts objects from scattered memory, in place: nothing is copied, so the local cache is not filled.
    pub async fn batch_put_from(
        &self,
        items: &[PutFrom<'_>],
        options: &PutOptions,
    ) -> Vec<Result<Put, Error>> {
        let _ = (items, options);
        todo!()
    }

    /// Reads one object; `None` is a miss.
    ///
    /// # Errors
    /// [`Error`]; a get changes nothing, so its outcome is always definite.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>, Error> {
        let _ = key.as_ref();
        todo!()
    }

    /// Reads objects; one result each, in order.
    pub async fn batch_get<K: AsRef<[u8]> + Sync>(&self, keys: &[K]) -> Vec<Result<Option<Bytes>, Error>> {
        let _ = keys;
        todo!()
    }

    /// Reads objects into the caller's memory: the number of bytes, or `None` for a miss. An item whose memory is
    /// shorter than its object fails with `INVALID_PARAMS`. What a failed or missed item's memory holds afterwards is
    /// unspecified.
    pub async fn batch_get_into(&self, items: &mut [GetInto<'_>]) -> Vec<Result<Option<usize>, Error>> {
        let _ = items;
        todo!()
    }

    /// Whether the object is there and can be read.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn exist(&self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        Ok(self.size(key).await?.is_some())
    }

    /// [`exist`](Self::exist) for many keys; one result each, in order.
    pub async fn batch_exist<K: AsRef<[u8]> + Sync>(&self, keys: &[K]) -> Vec<Result<bool, Error>> {
        let _ = keys;
        todo!()
    }

    /// Bytes of an object; `None` is a miss.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn size(&self, key: impl AsRef<[u8]>) -> Result<Option<u64>, Error> {
        let _ = key.as_ref();
        todo!()
    }

    /// Removes an object; `false` when there was none. With `force` also one that is being read. Never repeated by
    /// itself once it may have been applied, since the repetition could hit someone else's object.
    ///
    /// # Errors
    /// [`Error`], which says whether the outcome is definite or unknown.
    pub async fn remove(&self, key: impl AsRef<[u8]>, force: bool) -> Result<bool, Error> {
        let _ = (key.as_ref(), force);
        todo!()
    }

    /// [`remove`](Self::remove) for many keys; one result each, in order.
    pub async fn batch_remove<K: AsRef<[u8]> + Sync>(
        &self,
        keys: &[K],
        force: bool,
    ) -> Vec<Result<bool, Error>> {
        let _ = (keys, force);
        todo!()
    }

    /// Whether a leader is in reach.
    #[must_use]
    pub fn mode(&self) -> Mode {
        todo!()
    }

    /// What this client counted.
    #[must_use]
    pub fn stats(&self) -> Stats {
        todo!()
    }

    /// Questions about the masters themselves.
    #[must_use]
    pub fn admin(&self) -> Admin {
        Admin::new(self.clone())
    }

    /// Ends the background tasks and fails every later call; other clones are closed too.
    pub fn close(&self) {}
}
