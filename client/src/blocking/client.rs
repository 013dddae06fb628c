use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use mc_transfer::{RegisterError, RegisteredMemory};

use super::{GetSession, PutSession};
use crate::{
    ByteRange, Description, Error, GetInto, GetIntoOwned, GetRangesInto, GotOwned, Health, KeyPage,
    ListPosition, ListedKey, Mode, Presence, Put, PutFrom, PutOptions, ReadInto, Removed, Source, Stats,
    WriteFrom,
};

/// A [client](crate::Client) whose calls block. It is as cheap to clone and as safe to share between threads.
#[derive(Clone, Debug)]
pub struct Client(crate::Client);

/// Objects of a listing, created by [`Client::list`].
pub struct Listing {
    client: Client,
    objects: BoxStream<'static, Result<ListedKey, Error>>,
}

impl From<crate::Client> for Client {
    fn from(client: crate::Client) -> Self {
        Self(client)
    }
}

impl From<Client> for crate::Client {
    fn from(client: Client) -> Self {
        client.0
    }
}

impl Iterator for Listing {
    type Item = Result<ListedKey, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.client.wait(self.objects.next())
    }
}

impl Client {
    /// Returns the async handle.
    #[must_use]
    pub fn as_async(&self) -> &crate::Client {
        &self.0
    }

    /// Runs a call of the [async handle](Self::as_async) to its end.
    pub fn wait<F: Future>(&self, call: F) -> F::Output {
        self.0.wait(call)
    }

    calls! { "Client":
        connected(timeout: Duration) -> bool;

        put(key: impl AsRef<[u8]>, value: &[u8]) -> Result<Put, Error>;
        put_with(key: impl AsRef<[u8]>, value: &[u8], options: &PutOptions) -> Result<Put, Error>;
        put_bytes(key: impl AsRef<[u8]>, value: Bytes, options: &PutOptions) -> Result<Put, Error>;
        batch_put(
            items: &[(impl AsRef<[u8]> + Sync, impl AsRef<[u8]> + Sync)],
            options: &PutOptions
        ) -> Vec<Result<Put, Error>>;
        batch_put_bytes(items: &[(impl AsRef<[u8]> + Sync, Bytes)], options: &PutOptions) -> Vec<Result<Put, Error>>;
        batch_put_from(items: &[PutFrom<'_>], options: &PutOptions) -> Vec<Result<Put, Error>>;

        get(key: impl AsRef<[u8]>) -> Result<Option<Bytes>, Error>;
        get_with_source(key: impl AsRef<[u8]>) -> Result<(Option<Bytes>, Source), Error>;
        get_range(key: impl AsRef<[u8]>, range: ByteRange) -> Result<Option<Bytes>, Error>;
        batch_get(keys: &[impl AsRef<[u8]> + Sync]) -> Vec<Result<Option<Bytes>, Error>>;
        batch_get_with_source(keys: &[impl AsRef<[u8]> + Sync]) -> Vec<Result<(Option<Bytes>, Source), Error>>;
        batch_get_owned(keys: &[impl AsRef<[u8]> + Sync]) -> Vec<Result<Option<Vec<u8>>, Error>>;
        batch_get_into(items: &mut [GetInto<'_>]) -> Vec<Result<Option<usize>, Error>>;
        batch_get_into_owned(items: Vec<GetIntoOwned>) -> Vec<GotOwned>;
        batch_get_ranges(items: &[(impl AsRef<[u8]>, Vec<ByteRange>)]) -> Vec<Result<Option<Vec<Bytes>>, Error>>;
        batch_get_ranges_into(items: &mut [GetRangesInto<'_>]) -> Vec<Result<Option<usize>, Error>>;

        exist(key: impl AsRef<[u8]>) -> Result<bool, Error>;
        size(key: impl AsRef<[u8]>) -> Result<Option<u64>, Error>;
        presence(key: impl AsRef<[u8]>) -> Result<Presence, Error>;
        peek(key: impl AsRef<[u8]>) -> Result<Presence, Error>;
        describe(key: impl AsRef<[u8]>) -> Result<Option<Description>, Error>;
        batch_exist(keys: &[impl AsRef<[u8]> + Sync]) -> Vec<Result<bool, Error>>;
        batch_size(keys: &[impl AsRef<[u8]> + Sync]) -> Vec<Result<Option<u64>, Error>>;
        batch_peek(keys: &[impl AsRef<[u8]> + Sync]) -> Vec<Result<Presence, Error>>;
        batch_describe(keys: &[impl AsRef<[u8]> + Sync]) -> Vec<Result<Option<Description>, Error>>;
        list_keys(prefix: impl AsRef<[u8]>, from: Option<ListPosition>, limit: u32) -> Result<KeyPage, Error>;

        remove(key: impl AsRef<[u8]>, force: bool) -> Result<bool, Error>;
        batch_remove(keys: &[impl AsRef<[u8]> + Sync], force: bool) -> Vec<Result<bool, Error>>;
        remove_all(force: bool) -> Result<Removed, Error>;
        remove_by_regex(pattern: &str, force: bool) -> Result<Removed, Error>;
        batch_drop_replicas(keys: &[impl AsRef<[u8]> + Sync], store_name: &str) -> Vec<Result<bool, Error>>;

        batch_read_into(items: &mut [ReadInto<'_>]) -> Vec<Result<usize, Error>>;
        batch_write_from(items: &[WriteFrom<'_>]) -> Vec<Result<usize, Error>>;
    }

    /// [`Client::list`](crate::Client::list) as an iterator, which waits for a page when the one before is used up.
    pub fn list(&self, prefix: impl AsRef<[u8]>) -> Listing {
        Listing { client: self.clone(), objects: self.0.list(prefix) }
    }

    /// [`Client::get_session`](crate::Client::get_session), which this waits for.
    pub fn get_session(&self, key: impl AsRef<[u8]>) -> Result<Option<GetSession>, Error> {
        Ok(self.wait(self.0.get_session(key))?.map(Into::into))
    }

    /// [`Client::batch_get_session`](crate::Client::batch_get_session), which this waits for.
    pub fn batch_get_session(&self, keys: &[impl AsRef<[u8]>]) -> Vec<Result<Option<GetSession>, Error>> {
        let opened = self.wait(self.0.batch_get_session(keys));
        opened.into_iter().map(|session| Ok(session?.map(Into::into))).collect()
    }

    /// [`Client::put_session`](crate::Client::put_session), which this waits for.
    pub fn put_session(
        &self,
        key: impl AsRef<[u8]>,
        size: u64,
        options: &PutOptions,
    ) -> Result<Option<PutSession>, Error> {
        Ok(self.wait(self.0.put_session(key, size, options))?.map(Into::into))
    }

    /// [`Client::batch_put_session`](crate::Client::batch_put_session), which this waits for.
    pub fn batch_put_session(
        &self,
        items: &[(impl AsRef<[u8]>, u64)],
        options: &PutOptions,
    ) -> Vec<Result<Option<PutSession>, Error>> {
        let opened = self.wait(self.0.batch_put_session(items, options));
        opened.into_iter().map(|session| Ok(session?.map(Into::into))).collect()
    }

    /// [`Client::batch_finish`](crate::Client::batch_finish), which this waits for.
    pub fn batch_finish(&self, sessions: &[PutSession]) -> Vec<Result<Put, Error>> {
        self.wait(self.0.finish_all(sessions.iter().map(PutSession::as_async)))
    }

    /// [`Client::batch_abort`](crate::Client::batch_abort), which this waits for.
    pub fn batch_abort(&self, sessions: Vec<PutSession>) -> Result<(), Error> {
        self.wait(self.0.batch_abort(sessions.into_iter().map(Into::into).collect()))
    }

    /// [`Client::with_get_timeout`](crate::Client::with_get_timeout).
    #[must_use]
    pub fn with_get_timeout(&self, timeout: Duration) -> Self {
        Self(self.0.with_get_timeout(timeout))
    }

    /// [`Client::allocate`](crate::Client::allocate).
    pub fn allocate(&self, len: usize) -> Result<RegisteredMemory, RegisterError> {
        self.0.allocate(len)
    }

    /// [`Client::health`](crate::Client::health).
    #[must_use]
    pub fn health(&self) -> Health {
        self.0.health()
    }

    /// [`Client::mode`](crate::Client::mode).
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.0.mode()
    }

    /// [`Client::last_error`](crate::Client::last_error).
    #[must_use]
    pub fn last_error(&self) -> Option<Error> {
        self.0.last_error()
    }

    /// [`Client::stats`](crate::Client::stats).
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// [`Client::close`](crate::Client::close).
    pub fn close(&self) {
        self.0.close();
    }
}
