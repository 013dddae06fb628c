use bytes::Bytes;
use mc_transfer::WriteBuffer;
use mc_types::PutId;

use super::finish::Finish;
use super::open_put::OpenPut;
use super::range_write::{RangeWrite, write_ranges};
use super::start::SessionStarts;
use crate::core::nonsense;
use crate::{Client, Error, Put, PutOptions};

/// An object that is put range by range, for example layer by layer while a model computes them.
///
/// Opening it costs one call to the leader for a whole batch, and [`finish`](Self::finish) another one. In between the
/// ranges are written in any order, also concurrently; they must cover the object exactly once. Readers see the object
/// once it is finished.
///
/// A range goes to every replica. A replica that can't be written is given up, as in a put; when none is left, writes and
/// the finish fail, and the object has to be put again. The deadline of the put, [`PutOptions::deadline`] and at most 60
/// seconds, counts from the opening. Afterwards writes and the finish fail with `PUT_GONE`. A session takes a leader:
/// without one, opening and finishing it fail with `NO_LEADER`, and nothing is kept locally. It can then be finished once a leader is
/// back, until its deadline.
///
/// Dropping a session that was not finished frees its space in the background, as [`abort`](Self::abort) does.
pub struct PutSession {
    /// Before `client`: its drop queues the put for revocation, which the end of the last handle of a client sends.
    put: OpenPut,
    client: Client,
}

/// A range of an object, and its bytes.
#[derive(Clone, Copy)]
pub struct RangeFrom<'a> {
    /// First byte, counted from the start of the object.
    pub offset: u64,
    /// The bytes; read in place.
    pub from: &'a [u8],
}

/// Ranges to write in a session.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WriteFrom<'a> {
    /// The session.
    pub session: &'a PutSession,
    /// The ranges, in any order.
    pub ranges: &'a [RangeFrom<'a>],
}

impl<'a> WriteFrom<'a> {
    /// These ranges of the object of this session.
    #[must_use]
    pub fn new(session: &'a PutSession, ranges: &'a [RangeFrom<'a>]) -> Self {
        Self { session, ranges }
    }
}

impl PutSession {
    /// Returns the id of the put, which is the version of the object once it is finished.
    #[must_use]
    pub fn id(&self) -> PutId {
        self.put.id
    }

    /// Returns the size of the object in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.put.size
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Writes a range of the object.
    ///
    /// # Errors
    /// `INVALID_PARAMS` if the range does not lie within the object, or overlaps one that was written before: then
    /// nothing is written, and the session goes on. `TRANSFER_FAIL` if no replica is left and `PUT_GONE` after the
    /// deadline: then the session has failed. A write that is abandoned leaves its range
    /// incomplete until the same range is written again with the same bytes. Bytes in memory of [`Client::allocate`] can't
    /// be written again, because a store may copy them later.
    pub async fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        let ranges = [RangeFrom { offset, from }];
        let written =
            self.client.batch_write_from(&[WriteFrom { session: self, ranges: &ranges }]).await.pop();
        written.unwrap_or_else(|| Err(nonsense("put session"))).map(drop)
    }

    /// Ends the put, which makes the object visible.
    ///
    /// A call that fails leaves the session as it is, so it can be repeated: once a leader is back, when the outcome is unknown, or when
    /// the missing ranges are written.
    ///
    /// # Errors
    /// `INVALID_PARAMS` if the ranges do not cover the object; the error names the first one that lacks. Else as for
    /// [`Client::put_with`]; a leader that does not answer leaves the outcome unknown.
    pub async fn finish(&self) -> Result<Put, Error> {
        let finished = self.client.batch_finish(std::slice::from_ref(self)).await.pop();
        finished.unwrap_or_else(|| Err(nonsense("put session")))
    }

    /// Gives the put up and frees its space.
    ///
    /// # Errors
    /// [`Error`] when no leader answers in time; the space is then freed in the background, at the latest at the put's deadline.
    pub async fn abort(self) -> Result<(), Error> {
        let client = self.client.clone();
        client.batch_abort(vec![self]).await
    }
}

impl Client {
    /// Opens a session to put an object of `size` bytes. `None`: the key exists, and the put is if-absent.
    ///
    /// # Errors
    /// [`Error`] as for [`put_with`](Self::put_with), always definite.
    pub async fn put_session(
        &self,
        key: impl AsRef<[u8]>,
        size: u64,
        options: &PutOptions,
    ) -> Result<Option<PutSession>, Error> {
        let mut sessions = self.batch_put_session(&[(key.as_ref(), size)], options).await;
        sessions.pop().unwrap_or_else(|| Err(nonsense("put session")))
    }

    /// [`put_session`](Self::put_session) for many objects, each given by its key and size; one result each, in order.
    pub async fn batch_put_session<K: AsRef<[u8]>>(
        &self,
        items: &[(K, u64)],
        options: &PutOptions,
    ) -> Vec<Result<Option<PutSession>, Error>> {
        let item = |(key, size): &(K, u64)| (Bytes::copy_from_slice(key.as_ref()), *size);
        let open = SessionStarts::new(self.core(), options).open(items.iter().map(item).collect());
        let opened = self.run("put session", items.len(), open).await;
        let session = |put| PutSession { client: self.clone(), put };
        opened.into_iter().map(|result| Ok(result?.map(session))).collect()
    }

    /// Writes ranges in many sessions of this client, without a copy on the way and without a call to the leader. There
    /// is one result for each item, in order: the number of its bytes.
    ///
    /// An item with a range that [`PutSession::write`] would refuse writes nothing. If an item fails with
    /// `TRANSFER_FAIL`, some of its ranges may be written.
    pub async fn batch_write_from(&self, items: &[WriteFrom<'_>]) -> Vec<Result<usize, Error>> {
        let items = items.iter().map(|item| {
            let ranges = item.ranges.iter().map(|range| (range.offset, range.from.into()));
            (item.session, ranges.collect())
        });
        self.write_from(items).await
    }

    pub(crate) async fn write_from<'a>(
        &self,
        items: impl Iterator<Item = (&'a PutSession, Vec<(u64, WriteBuffer<'a>)>)>,
    ) -> Vec<Result<usize, Error>> {
        let writes: Vec<_> =
            items.map(|(session, ranges)| RangeWrite { put: &session.put, ranges }).collect();
        self.run("put session write", writes.len(), write_ranges(self.core(), &writes)).await
    }

    /// [Finishes](PutSession::finish) many sessions of this client; one result each, in order.
    pub async fn batch_finish(&self, sessions: &[PutSession]) -> Vec<Result<Put, Error>> {
        self.finish_all(sessions).await
    }

    pub(crate) async fn finish_all(
        &self,
        sessions: impl IntoIterator<Item = &PutSession>,
    ) -> Vec<Result<Put, Error>> {
        let puts: Vec<&OpenPut> = sessions.into_iter().map(|session| &session.put).collect();
        self.run("put session finish", puts.len(), Finish::new(self.core(), &puts).run()).await
    }

    /// [Aborts](PutSession::abort) many sessions of this client.
    ///
    /// # Errors
    /// [`Error`] when no leader answers in time; the space is then freed in the background, at the latest at the puts' deadlines.
    pub async fn batch_abort(&self, sessions: Vec<PutSession>) -> Result<(), Error> {
        let ids: Vec<_> = sessions.iter().map(|session| session.put.id).collect();
        self.run("put session abort", ids.len(), self.core().revoked(&ids)).await?;
        sessions.iter().for_each(|session| session.put.aborted());
        Ok(())
    }
}
