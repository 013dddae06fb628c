//! The store's end of shared memory: gives the descriptors of its segments to processes of this host, and takes those of
//! their memory.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::areas::ClientAreas;
use super::{ACCEPT_PAUSE, Counters, DataServer, check};
use crate::memory::Mapping;
use crate::shm::{MESSAGE_LEN, Message, Record, ShmAccess, files};
use crate::wire::{HELLO_LEN, Hello, HelloReply, SHARING_SINCE, Status};

/// Longest wait for a client's hello, for room to send it the descriptors, and from the first byte of a message to its last.
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum number of processes that have the descriptors at the same time; the others use TCP. A store has more descriptors
/// to spare than that, beside those for data connections.
const MOST: usize = 128;
/// Maximum number of processes that are refused at the same time.
const REFUSED_AT_ONCE: usize = 16;
/// Maximum number of connections beyond these that are closed at the same time.
const CLOSED_AT_ONCE: usize = 16;

/// Number of reads, and of bytes, that nobody reads between two messages about them.
const IMPLAUSIBLE: u64 = 1 << 50;

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
        let connections = TaskTracker::new();
        let (places, refusals) = (Arc::new(Semaphore::new(MOST)), Arc::new(Semaphore::new(REFUSED_AT_ONCE)));
        let closers = Arc::new(Semaphore::new(CLOSED_AT_ONCE));
        while let Some(accepted) = shutdown.run_until_cancelled(listener.accept()).await {
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept local connections, trying again");
                    shutdown.run_until_cancelled(tokio::time::sleep(ACCEPT_PAUSE)).await;
                    continue;
                }
            };
            // Before it takes a place: processes that may not share memory must not keep out those that may.
            let admitted = stream.peer_cred().map_err(|error| error.to_string());
            let admitted = admitted.and_then(|theirs| access.admits(theirs.uid()));
            let places = if admitted.is_ok() { &places } else { &refusals };
            let Ok(place) = places.clone().try_acquire_owned() else {
                tracing::debug!(most = MOST, "too many clients have the segments");
                let Some(Ok(turn)) = shutdown.run_until_cancelled(closers.clone().acquire_owned()).await
                else {
                    break;
                };
                close((stream, Vec::new()), turn);
                continue;
            };
            let (server, shutdown) = (self.clone(), shutdown.clone());
            connections.spawn(async move {
                let mut files = Vec::new();
                let share = server.share(&stream, admitted, &mut files);
                if let Some(Err(error)) = shutdown.run_until_cancelled(share).await {
                    tracing::debug!(%error, "a client does not share memory any more");
                }
                close((stream, files), place);
            });
        }
        drop(listener);
        connections.close();
        connections.wait().await;
    }

    /// Gives the descriptors to one client and serves its messages. Returns when it must not use them any more, or does not
    /// want to. `files` are descriptors of the client that are not closed yet.
    async fn share(
        &self,
        stream: &UnixStream,
        admitted: Result<(), String>,
        files: &mut Vec<OwnedFd>,
    ) -> io::Result<()> {
        // Before the list is read, so that no change is missed.
        let mut relent = self.relent.subscribe();
        tokio::time::timeout(PATIENCE, self.hand_over(stream, admitted, files)).await??;
        let mut areas = self.areas.of_client();
        loop {
            let mut message = [0; MESSAGE_LEN];
            let received = tokio::select! {
                received = files::receive(stream, &mut message, PATIENCE, files) => received,
                _ = relent.changed() => return Ok(()),
            };
            match received {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                received => received?,
            }
            self.message(stream, &message, files, &mut areas).await?;
            close_all(files).await;
        }
    }

    async fn message(
        &self,
        stream: &UnixStream,
        message: &[u8; MESSAGE_LEN],
        files: &[OwnedFd],
        areas: &mut ClientAreas<'_>,
    ) -> io::Result<()> {
        match (Message::decode(message), files) {
            (Some(Message::Read { reads, bytes }), []) if reads.max(bytes) < IMPLAUSIBLE => {
                Counters::add(&self.counters.shm_reads, reads);
                Counters::add(&self.counters.shm_bytes_read, bytes);
            }
            (Some(Message::Area { len }), [file]) => {
                let area = Mapping::of_client(file, len).inspect_err(|error| {
                    tracing::debug!(%error, "a client's memory can't be mapped, so its bytes come over TCP");
                });
                let number = area.ok().and_then(|area| areas.add(area)).unwrap_or(0);
                let answer = number.to_be_bytes();
                tokio::time::timeout(PATIENCE, files::send(stream, &answer, &[])).await??;
            }
            (Some(Message::AreaEnd { number }), []) => areas.remove(number),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        Ok(())
    }

    async fn hand_over(
        &self,
        stream: &UnixStream,
        admitted: Result<(), String>,
        files: &mut Vec<OwnedFd>,
    ) -> io::Result<()> {
        let mut hello = [0; HELLO_LEN];
        files::receive(stream, &mut hello, PATIENCE, files).await?;
        if !files.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "descriptors with the hello"));
        }
        let hello = Hello::decode(&hello).map_err(io::Error::other)?;
        let version = match check::check_hello(self.identity, self.authority.times(), &hello) {
            Ok(version) => version,
            Err(refusal) => {
                let reply = HelloReply::encode(0, Err((refusal.status(), &refusal.to_string())));
                files::send(stream, &reply, &[]).await?;
                return Err(io::Error::other(refusal));
            }
        };
        if let Err(why) = admitted {
            files::send(stream, &HelloReply::encode(0, Err((Status::Identity, &why))), &[]).await?;
            return Err(io::Error::other(why));
        }
        files::send(stream, &HelloReply::encode(version, Ok(())), &[]).await?;
        let lent = self.lent.load_full();
        for lent in lent.iter() {
            let segment = &lent.segment;
            if let (Some(bytes), Some(stamps)) = (segment.shared(), &lent.stamps) {
                let record = Record { number: segment.number(), len: segment.len() };
                // Clients of earlier versions know of no stamps.
                let files = [bytes, stamps.as_fd()];
                let files = &files[..if version < SHARING_SINCE { 1 } else { 2 }];
                files::send(stream, &record.encode(), files).await?;
            }
        }
        files::send(stream, &Record::END.encode(), &[]).await
    }
}

/// Closes a client's connection, and descriptors of it, apart from the runtime's threads, and then gives its place back.
///
/// Descriptors that were not received close with the connection. The end of one can take as long as its client likes: a socket may
/// wait for a peer that takes no bytes.
fn close((stream, files): (UnixStream, Vec<OwnedFd>), place: OwnedSemaphorePermit) {
    if let Ok(stream) = stream.into_std() {
        drop(tokio::task::spawn_blocking(move || {
            drop((stream, files));
            drop(place);
        }));
    }
}

/// Closes descriptors of a client apart from the runtime's threads, and waits for that, so that each client has one such thread at most.
async fn close_all(files: &mut Vec<OwnedFd>) {
    if !files.is_empty() {
        let files = std::mem::take(files);
        // The runtime may end before.
        let _ = tokio::task::spawn_blocking(move || drop(files)).await;
    }
}
