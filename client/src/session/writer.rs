use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::io::AsyncWrite;

use super::{PIECE, PutSession};
use crate::{Error, Put};

/// An object that is put as a stream of bytes, for code that copies between objects, files and sockets.
///
/// It collects bytes and writes them to the stores in pieces of 1 MiB; a flush writes no shorter piece, because no
/// reader could see it yet. `shutdown` writes the rest and [finishes](PutSession::finish) the put, which makes the
/// object visible. The object has the size that its session was opened with: writes beyond it fail with
/// [`InvalidInput`](io::ErrorKind::InvalidInput), and a shutdown before it fails with `INVALID_PARAMS` and can be
/// repeated once the missing bytes are written.
///
/// Dropping the writer before a shutdown has succeeded gives the put up and frees its space: nobody ever sees a part of an object. If a shutdown was
/// under way, or failed with an unknown outcome, the object may be there, whole.
///
/// An error is an [`io::Error`] with the [`Error`] in it (`io::Error::downcast`). A piece that no replica took fails the writer for good: the
/// call that wrote it and every later one fail with the same error, and the object has to be put again. That call may be a later one than
/// the one that gave the bytes. A replica that alone fails is given up, as in any put. A shutdown that could not finish the put, for
/// example without a leader, can be repeated until the put's deadline.
///
/// ```no_run
/// # async fn example(client: &mc_client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use mc_client::PutOptions;
/// use tokio::io::AsyncWriteExt;
///
/// let mut file = tokio::fs::File::open("k").await?;
/// let size = file.metadata().await?.len();
/// if let Some(session) = client.put_session("k", size, &PutOptions::default()).await? {
///     let mut object = session.into_writer();
///     tokio::io::copy(&mut file, &mut object).await?;
///     object.shutdown().await?;
/// }
/// # Ok(())
/// # }
/// ```
pub struct ObjectWriter {
    session: Arc<PutSession>,
    /// Bytes that are not on their way yet.
    piece: Vec<u8>,
    /// Offset of the first of them.
    at: u64,
    /// The write of the bytes before them.
    writing: Option<BoxFuture<'static, Result<(), Error>>>,
    /// The write that failed the session.
    failed: Option<Error>,
    finishing: Option<BoxFuture<'static, Result<Put, Error>>>,
    put: Option<Put>,
}

impl PutSession {
    /// Makes a writer of this session, which nothing was written to yet.
    #[must_use]
    pub fn into_writer(self) -> ObjectWriter {
        ObjectWriter {
            session: Arc::new(self),
            piece: Vec::new(),
            at: 0,
            writing: None,
            failed: None,
            finishing: None,
            put: None,
        }
    }
}

impl ObjectWriter {
    /// Returns the session, for its id and size.
    #[must_use]
    pub fn session(&self) -> &PutSession {
        &self.session
    }

    /// Returns the offset of the next byte to write.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.at + self.piece.len() as u64
    }

    /// Returns how the put ended, once a shutdown has succeeded: whether this object was stored, or another client's was there before.
    #[must_use]
    pub fn put(&self) -> Option<Put> {
        self.put
    }

    /// Writes the bytes at hand if there are at least as many as `least`, and waits for what is under way.
    fn poll_pieces(&mut self, least: usize, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if let Some(error) = &self.failed {
                return Poll::Ready(Err(io::Error::other(error.clone())));
            }
            if let Some(writing) = &mut self.writing {
                self.failed = ready!(writing.poll_unpin(cx)).err();
                self.writing = None;
            } else if self.piece.len() < least {
                return Poll::Ready(Ok(()));
            } else {
                let (session, offset) = (Arc::clone(&self.session), self.at);
                self.at = self.position();
                let piece = std::mem::take(&mut self.piece);
                self.writing = Some(async move { session.write(offset, &piece).await }.boxed());
            }
        }
    }
}

impl AsyncWrite for ObjectWriter {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        // Wait for a write that has begun: no task would drive it while the caller waits for more bytes.
        ready!(this.poll_pieces(PIECE, cx))?;
        let left = this.session.size() - this.position();
        let room = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE - this.piece.len());
        if room == 0 && !from.is_empty() {
            let why =
                format!("a write beyond the {} bytes that the session was opened for", this.session.size());
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidInput, why)));
        }
        let len = from.len().min(room);
        this.piece.extend_from_slice(&from[..len]);
        Poll::Ready(Ok(len))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // `tokio::io::copy` flushes whenever its reader has nothing at hand, and would make a write of every few KiB.
        self.get_mut().poll_pieces(PIECE, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_pieces(1, cx))?;
        if this.put.is_none() {
            let finishing = this.finishing.get_or_insert_with(|| {
                let session = Arc::clone(&this.session);
                async move { session.finish().await }.boxed()
            });
            let finished = ready!(finishing.poll_unpin(cx));
            this.finishing = None;
            this.put = Some(finished.map_err(io::Error::other)?);
        }
        Poll::Ready(Ok(()))
    }
}
