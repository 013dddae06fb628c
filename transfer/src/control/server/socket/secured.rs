//! Payload and answers with TLS: they are copied between the segment and the records.

use mc_net::DataStream;
use smallvec::SmallVec;
use tokio::io::Interest;

use super::{Closed, Received, Socket};
use crate::control::server::served::AdmittedWrite;
use crate::fence::ReadPass;
use crate::memory::Segment;

/// Bytes that are encrypted together: an answer with its payload, or a part of it that fills some records.
#[derive(Default)]
pub(super) struct Held {
    /// Empty, or as long as it gets.
    bytes: Vec<u8>,
    len: usize,
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn is_full(&self) -> bool {
        self.len == DataStream::AT_ONCE
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Adds `len` bytes, or as many as fit, and returns them to be set.
    fn extend(&mut self, len: u64) -> &mut [u8] {
        self.bytes.resize(DataStream::AT_ONCE, 0);
        let rest = &mut self.bytes[self.len..];
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(rest.len());
        self.len += len;
        &mut rest[..len]
    }
}

impl Socket {
    /// [`Self::send`] with TLS. Bytes with more behind them wait for those, so that a small answer is one record.
    pub(super) async fn send_secured(&mut self, mut bytes: &[u8], more: bool) -> Result<(), Closed> {
        while !bytes.is_empty() {
            let room = self.held.extend(bytes.len() as u64);
            let (now, later) = bytes.split_at(room.len());
            room.copy_from_slice(now);
            bytes = later;
            if self.held.is_full() {
                self.send_held().await?;
            }
        }
        if !more {
            self.send_held().await?;
            while let Err(error) = self.stream.try_flush() {
                self.wait(Interest::WRITABLE, error).await?;
            }
        }
        Ok(())
    }

    /// [`Self::receive`] with TLS: each record is copied under the pass of its write, after it was decrypted.
    pub(super) async fn receive_secured(
        &mut self,
        writes: &[AdmittedWrite],
        outcomes: &mut SmallVec<[Received; 1]>,
    ) -> Result<(), Closed> {
        for write in writes {
            let (mut done, mut lost) = (0, false);
            while done < write.len {
                let received = self.stream.try_read_with(|bytes| {
                    let Some(_held) = write.pass.hold() else {
                        lost = true;
                        return 0;
                    };
                    let now = usize::try_from(write.len - done).unwrap_or(usize::MAX).min(bytes.len());
                    write.lent.segment.write(write.offset + done, bytes[..now].into());
                    now
                });
                match received {
                    Ok(_) if lost => {
                        self.discard(write.len - done).await?;
                        break;
                    }
                    Ok(0) => return Err(Closed::ByPeer),
                    Ok(n) => {
                        done += n as u64;
                        self.moved(n).await;
                    }
                    Err(error) => self.wait(Interest::READABLE, error).await?,
                }
            }
            outcomes.push(if lost { Received::Superseded } else { Received::All });
        }
        Ok(())
    }

    /// [`Self::send_segment`] with TLS: bytes are copied under the pass, and encrypted when it is released. The last ones wait for
    /// the verdict on them.
    pub(super) async fn send_segment_secured(
        &mut self,
        segment: &Segment,
        offset: u64,
        len: u64,
        pass: &ReadPass<'_>,
    ) -> Result<(), Closed> {
        let mut done = 0;
        while done < len {
            let room = self.held.extend(len - done);
            let now = room.len() as u64;
            match pass.hold() {
                Some(_held) => segment.read_into(offset + done, &mut room.into()),
                None => room.fill(0),
            }
            done += now;
            if self.held.is_full() {
                self.send_held().await?;
            }
        }
        Ok(())
    }

    async fn send_held(&mut self) -> Result<(), Closed> {
        let mut done = 0;
        while done < self.held.len {
            match self.stream.try_write(&self.held.bytes()[done..]) {
                Ok(n) => {
                    done += n;
                    self.moved(n).await;
                }
                Err(error) => self.wait(Interest::WRITABLE, error).await?,
            }
        }
        self.held.len = 0;
        Ok(())
    }
}
