use bytes::Bytes;
use mc_types::PutId;

use crate::{ByteRange, Error, Put, RangeInto};

/// A [session](crate::GetSession) to read an object, whose calls block.
#[derive(Debug)]
pub struct GetSession(crate::GetSession);

/// A [session](crate::PutSession) to put an object, whose calls block.
#[derive(Debug)]
pub struct PutSession(crate::PutSession);

impl From<crate::GetSession> for GetSession {
    fn from(session: crate::GetSession) -> Self {
        Self(session)
    }
}

impl From<GetSession> for crate::GetSession {
    fn from(session: GetSession) -> Self {
        session.0
    }
}

impl From<crate::PutSession> for PutSession {
    fn from(session: crate::PutSession) -> Self {
        Self(session)
    }
}

impl From<PutSession> for crate::PutSession {
    fn from(session: PutSession) -> Self {
        session.0
    }
}

impl GetSession {
    /// Returns the async session, for [`ReadInto`](crate::ReadInto).
    #[must_use]
    pub fn as_async(&self) -> &crate::GetSession {
        &self.0
    }

    fn wait<F: Future>(&self, call: F) -> F::Output {
        self.0.client().wait(call)
    }

    /// [`GetSession::version`](crate::GetSession::version).
    #[must_use]
    pub fn version(&self) -> PutId {
        self.0.version()
    }

    /// [`GetSession::size`](crate::GetSession::size).
    #[must_use]
    pub fn size(&self) -> u64 {
        self.0.size()
    }

    calls! { "GetSession":
        read(range: ByteRange) -> Result<Bytes, Error>;
        read_into(ranges: &mut [RangeInto<'_>]) -> Result<usize, Error>;
    }
}

impl PutSession {
    /// Returns the async session, for [`WriteFrom`](crate::WriteFrom).
    #[must_use]
    pub fn as_async(&self) -> &crate::PutSession {
        &self.0
    }

    fn wait<F: Future>(&self, call: F) -> F::Output {
        self.0.client().wait(call)
    }

    /// [`PutSession::id`](crate::PutSession::id).
    #[must_use]
    pub fn id(&self) -> PutId {
        self.0.id()
    }

    /// [`PutSession::size`](crate::PutSession::size).
    #[must_use]
    pub fn size(&self) -> u64 {
        self.0.size()
    }

    calls! { "PutSession":
        write(offset: u64, from: &[u8]) -> Result<(), Error>;
        finish() -> Result<Put, Error>;
    }

    /// [`PutSession::abort`](crate::PutSession::abort), which this waits for.
    pub fn abort(self) -> Result<(), Error> {
        let client = self.0.client().clone();
        client.wait(self.0.abort())
    }
}
