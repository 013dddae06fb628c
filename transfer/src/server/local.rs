//! The store's end of shared memory: gives the descriptors of its segments to processes of this host.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{ACCEPT_PAUSE, DataServer, check};
use crate::shm::{Record, ShmAccess};
use crate::wire::{HELLO_LEN, Hello, HelloReply, STAMPS_SINCE, Status};

/// Longest wait for a client's hello, and for room to send it the descriptors.
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum number of processes that have the descriptors at the same time; the others use TCP. A store has more descriptors
/// to spare than that, beside those for data connections.
const MOST: usize = 128;

impl DataServer {
    /// Gives the descriptors of the segments to processes that connect and may have them, until `shutdown`.
    ///
    /// A connection lasts as long as its client may keep them: it is closed when a segment comes or goes, and at the end.
    pub async fn serve_local(
        self: Arc<Self>,
        listener: UnixListener,
        access: ShmAccess,
        shutdown: CancellationToken,
    ) {
        let (connections, places) = (TaskTracker::new(), Arc::new(Semaphore::new(MOST)));
        while let Some(accepted) = shutdown.run_until_cancelled(listener.accept()).await {
            match (accepted, places.clone().try_acquire_owned()) {
                (Ok((stream, _)), Ok(place)) => {
                    let (server, shutdown) = (self.clone(), shutdown.clone());
                    connections.spawn(async move {
                        let ended = shutdown.run_until_cancelled(server.share(stream, access)).await;
                        if let Some(Err(error)) = ended {
                            tracing::debug!(%error, "a client did not get the segments");
                        }
                        drop(place);
                    });
                }
                (Ok(_), Err(_)) => tracing::debug!(most = MOST, "too many clients have the segments"),
                (Err(error), _) => {
                    tracing::warn!(%error, "cannot accept local connections, trying again");
                    shutdown.run_until_cancelled(tokio::time::sleep(ACCEPT_PAUSE)).await;
                }
            }
        }
        drop(listener);
        connections.close();
        connections.wait().await;
    }

    /// Gives the descriptors to one client, and returns when it must not use them any more, or does not want to.
    async fn share(&self, mut stream: UnixStream, access: ShmAccess) -> io::Result<()> {
        // Before the list is read, so that no change is missed.
        let mut relent = self.relent.subscribe();
        tokio::time::timeout(PATIENCE, self.hand_over(&mut stream, access)).await??;
        let mut byte = [0];
        tokio::select! {
            // The client has closed it, or breaks the protocol.
            _ = stream.read(&mut byte) => {}
            _ = relent.changed() => {}
        }
        Ok(())
    }

    async fn hand_over(&self, stream: &mut UnixStream, access: ShmAccess) -> io::Result<()> {
        let mut hello = [0; HELLO_LEN];
        stream.read_exact(&mut hello).await?;
        let hello = Hello::decode(&hello).map_err(io::Error::other)?;
        let version = match check::check_hello(self.identity, self.authority.times(), &hello) {
            Ok(version) => version,
            Err(refusal) => {
                let reply = HelloReply::encode(0, Err((refusal.status(), &refusal.to_string())));
                stream.write_all(&reply).await?;
                return Err(io::Error::other(refusal));
            }
        };
        let theirs = stream.peer_cred()?.uid();
        if let Err(why) = access.admits(theirs) {
            stream.write_all(&HelloReply::encode(0, Err((Status::Identity, &why)))).await?;
            return Err(io::Error::other(why));
        }
        stream.write_all(&HelloReply::encode(version, Ok(()))).await?;
        let lent = self.lent.load_full();
        for lent in lent.iter() {
            let segment = &lent.segment;
            if let (Some(bytes), Some(stamps)) = (segment.shared(), segment.stamps()) {
                let record = Record { number: segment.number(), len: segment.len() };
                // Clients of earlier versions know of no stamps.
                let files = [bytes, stamps.as_fd()];
                send(stream, record, &files[..if version < STAMPS_SINCE { 1 } else { 2 }]).await?;
            }
        }
        send(stream, Record::END, &[]).await
    }
}

/// Sends a record, with descriptors on its first byte.
async fn send(stream: &UnixStream, record: Record, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = record.encode();
    let sent = stream.async_io(Interest::WRITABLE, || {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(rustix::net::sendmsg(stream.as_fd(), &[io::IoSlice::new(&bytes)], &mut ancillary, flags)?)
    });
    // A stream of Unix takes so few bytes at once or not at all.
    if sent.await? == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}
