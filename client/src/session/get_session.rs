use bytes::Bytes;
use mc_types::PutId;

use super::renewal::{OpenGet, SessionReads};
use crate::core::nonsense;
use crate::get::Destination;
use crate::{ByteRange, Client, Error, RangeInto};

/// A version of an object that is read range by range, for example layer by layer.
///
/// Opening it costs one call to the leader for a whole batch, reading none. The client renews the read lease in the
/// background, so that the object is not evicted between reads. It does so for five minutes at most and stops when the
/// session is dropped; later reads fail with `LEASE_EXPIRED`.
///
/// All reads are of the version that was there at first. If the object is replaced, removed or, after its lease has
/// lapsed, evicted, reads fail with `VERSION_CHANGED` or `OBJECT_NOT_FOUND` once the client has learned of it; until then
/// they return bytes of the pinned version. Opening a session takes a leader. Reading goes on without one until the
/// lease ends, and fails with `NO_LEADER` then.
///
/// See [`Client::batch_get_ranges`] for the promise that the bytes of a range are the right ones.
pub struct GetSession {
    client: Client,
    opened: OpenGet,
}

/// Ranges to read in a session into the caller's memory.
#[derive(Debug)]
#[non_exhaustive]
pub struct ReadInto<'a> {
    /// The session.
    pub session: &'a GetSession,
    /// The ranges, in any order; they may overlap.
    pub ranges: Vec<RangeInto<'a>>,
}

impl<'a> ReadInto<'a> {
    /// These ranges of the object of this session.
    #[must_use]
    pub fn new(session: &'a GetSession, ranges: Vec<RangeInto<'a>>) -> Self {
        Self { session, ranges }
    }
}

impl GetSession {
    /// Returns the id of the put that wrote this version.
    #[must_use]
    pub fn version(&self) -> PutId {
        self.opened.pinned.version
    }

    /// Returns the size of the object in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.opened.pinned.size
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Reads a range of the object.
    ///
    /// # Errors
    /// `INVALID_PARAMS` if the range does not lie within the object; `VERSION_CHANGED`, `OBJECT_NOT_FOUND`,
    /// `LEASE_EXPIRED` and `NO_LEADER` as described above; `REPLICA_IS_NOT_READY` or `TRANSFER_FAIL` if no replica can be
    /// read now. A read changes nothing, so its outcome is always definite.
    pub async fn read(&self, range: ByteRange) -> Result<Bytes, Error> {
        let read = vec![(&*self.opened.pinned, Destination::ranges(vec![range]))];
        let read = SessionReads::new(self.client.core()).read(read);
        let read = self.client.run("get session read", 1, read).await.pop();
        let read = read.and_then(|result| match result {
            Ok(got) => got.parts()?.pop().map(Ok),
            Err(error) => Some(Err(error)),
        });
        read.unwrap_or_else(|| Err(nonsense("get session")))
    }

    /// Reads ranges of the object into the caller's memory; returns the sum of their lengths.
    ///
    /// # Errors
    /// As for [`read`](Self::read). The content of the memory is then unspecified.
    pub async fn read_into(&self, ranges: &mut [RangeInto<'_>]) -> Result<usize, Error> {
        let read = vec![(&*self.opened.pinned, RangeInto::destination(ranges))];
        let read = self
            .client
            .run("get session read", 1, SessionReads::new(self.client.core()).read(read))
            .await
            .pop();
        read.unwrap_or_else(|| Err(nonsense("get session"))).map(|got| got.len())
    }
}

impl Client {
    /// Opens a session to read an object; `None` is a miss, as for [`get`](Self::get).
    ///
    /// # Errors
    /// [`Error`] when no leader answers in time, or the key has an invalid length. The local cache does not stand in
    /// for a leader here.
    pub async fn get_session(&self, key: impl AsRef<[u8]>) -> Result<Option<GetSession>, Error> {
        let mut sessions = self.batch_get_session(&[key.as_ref()]).await;
        sessions.pop().unwrap_or_else(|| Err(nonsense("get session")))
    }

    /// [`get_session`](Self::get_session) for many keys; one result each, in order.
    pub async fn batch_get_session<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
    ) -> Vec<Result<Option<GetSession>, Error>> {
        let copied = keys.iter().map(|key| Bytes::copy_from_slice(key.as_ref())).collect();
        let open = SessionReads::new(self.core()).open(copied, self.closed());
        let opened = self.run("get session", keys.len(), open).await;
        let session = |opened| GetSession { client: self.clone(), opened };
        opened.into_iter().map(|result| Ok(result?.map(session))).collect()
    }

    /// Reads ranges in many sessions of this client, without a copy on the way and without a call to the leader.
    /// There is one result for each item, in order, as of [`GetSession::read_into`].
    pub async fn batch_read_into(&self, items: &mut [ReadInto<'_>]) -> Vec<Result<usize, Error>> {
        let items = items.iter_mut();
        self.read_into(items.map(|ReadInto { session, ranges }| (*session, RangeInto::destination(ranges))))
            .await
    }

    pub(crate) async fn read_into<'a>(
        &self,
        items: impl Iterator<Item = (&'a GetSession, Destination<'a>)>,
    ) -> Vec<Result<usize, Error>> {
        let reads: Vec<_> = items.map(|(session, into)| (&*session.opened.pinned, into)).collect();
        let results =
            self.run("get session read", reads.len(), SessionReads::new(self.core()).read(reads)).await;
        results.into_iter().map(|result| result.map(|got| got.len())).collect()
    }
}
