use std::io::{self, SeekFrom};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncSeek, ReadBuf};

use super::{GetSession, PIECE};
use crate::{ByteRange, Error};

/// A version of an object as a stream of bytes, for code that copies between objects, files and sockets.
///
/// It reads from the stores in pieces of 1 MiB, one after the other, and copies them once: [`GetSession::read_into`] is
/// faster for large ranges. [`AsyncBufRead`] gives the pieces out without that copy, as in `tokio::io::copy_buf`. A
/// seek makes no call; beyond the end there is nothing to read.
///
/// All bytes are of the session's version. An error is an [`io::Error`] with the [`Error`] in it (`io::Error::downcast`). No byte is lost
/// to an error: another read tries the same piece again. The errors are those of [`GetSession::read`].
///
/// ```no_run
/// # async fn example(client: &mc_client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let session = client.get_session("k").await?.ok_or("a miss")?;
/// let mut file = tokio::fs::File::create("k").await?;
/// tokio::io::copy_buf(&mut session.into_reader(), &mut file).await?;
/// # Ok(())
/// # }
/// ```
pub struct ObjectReader {
    session: Arc<GetSession>,
    /// Offset of the next byte to give out, which is the first of `piece`.
    at: u64,
    piece: Bytes,
    /// The read of the next piece; `piece` is empty meanwhile.
    reading: Option<BoxFuture<'static, Result<Bytes, Error>>>,
}

impl GetSession {
    /// Makes a reader of this session, at the object's first byte.
    #[must_use]
    pub fn into_reader(self) -> ObjectReader {
        ObjectReader { session: Arc::new(self), at: 0, piece: Bytes::new(), reading: None }
    }
}

impl ObjectReader {
    /// Returns the session, for its version and size, and to read ranges beside.
    #[must_use]
    pub fn session(&self) -> &GetSession {
        &self.session
    }

    /// Returns the offset of the next byte to read.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.at
    }
}

impl AsyncBufRead for ObjectReader {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        let left = this.session.size().saturating_sub(this.at);
        if this.piece.is_empty() && left > 0 {
            let reading = this.reading.get_or_insert_with(|| {
                let session = Arc::clone(&this.session);
                let range = ByteRange { offset: this.at, len: left.min(PIECE as u64) };
                async move { session.read(range).await }.boxed()
            });
            let read = ready!(reading.poll_unpin(cx));
            this.reading = None;
            this.piece = read.map_err(io::Error::other)?;
        }
        Poll::Ready(Ok(&this.piece))
    }

    fn consume(self: Pin<&mut Self>, amount: usize) {
        let this = self.get_mut();
        this.piece.advance(amount);
        this.at += amount as u64;
    }
}

impl AsyncRead for ObjectReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let piece = ready!(self.as_mut().poll_fill_buf(cx))?;
        let len = piece.len().min(into.remaining());
        into.put_slice(&piece[..len]);
        self.consume(len);
        Poll::Ready(Ok(()))
    }
}

impl AsyncSeek for ObjectReader {
    fn start_seek(self: Pin<&mut Self>, position: SeekFrom) -> io::Result<()> {
        let this = self.get_mut();
        let at = match position {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => this.at.checked_add_signed(by),
            SeekFrom::End(by) => this.session.size().checked_add_signed(by),
        };
        let at = at.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "a seek before the first byte of the object")
        })?;
        match at.checked_sub(this.at).and_then(|skipped| usize::try_from(skipped).ok()) {
            Some(skipped) if skipped <= this.piece.len() => this.piece.advance(skipped),
            _ => {
                this.piece.clear();
                this.reading = None;
            }
        }
        this.at = at;
        Ok(())
    }

    fn poll_complete(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<u64>> {
        Poll::Ready(Ok(self.at))
    }
}
