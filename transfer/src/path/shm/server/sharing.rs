//! The connection to a process of this host that shares memory with this store: gives it the descriptors of the segments, and takes
//! those of its memory.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::OwnedSemaphorePermit;

use super::areas::ClientAreas;
use super::requests::ShmServer;
use crate::control::server::{Counters, ServedMemory, check};
use crate::control::wire::{HELLO_LEN, Hello, HelloReply, SHARING_SINCE, Status};
use crate::memory::Mapping;
use crate::path::shm::files;
use crate::path::shm::record::{MESSAGE_LEN, Message, Record};

/// Longest wait for a client's hello, for room to send it the descriptors, and from the first byte of a message to its last.
const PATIENCE: Duration = Duration::from_secs(1);
/// Number of reads, or of bytes, that no client can have read between two messages. A message that claims more is
/// refused.
const IMPLAUSIBLE: u64 = 1 << 50;

/// Gives the descriptors to one client and serves its messages. Returns when it must not use them any more, or does not
/// want to. `files` are descriptors of the client that are not closed yet.
pub(crate) async fn share(
    served: &ServedMemory,
    shm: &ShmServer,
    stream: &UnixStream,
    admitted: Result<(), String>,
    files: &mut Vec<OwnedFd>,
) -> io::Result<()> {
    // Before the list is read, so that no change is missed.
    let mut relent = served.relent.subscribe();
    tokio::time::timeout(PATIENCE, hand_over(served, stream, admitted, files)).await??;
    let mut areas = shm.areas.of_client();
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
        take_message(served, stream, &message, files, &mut areas).await?;
        close_all(files).await;
    }
}

async fn take_message(
    served: &ServedMemory,
    stream: &UnixStream,
    message: &[u8; MESSAGE_LEN],
    files: &[OwnedFd],
    areas: &mut ClientAreas<'_>,
) -> io::Result<()> {
    match (Message::decode(message), files) {
        (Some(Message::Read { reads, bytes }), []) if reads.max(bytes) < IMPLAUSIBLE => {
            Counters::add(&served.counters.shm_reads, reads);
            Counters::add(&served.counters.shm_bytes_read, bytes);
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
    served: &ServedMemory,
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
    let version = match check::check_hello(served.identity, served.authority.times(), &hello) {
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
    let lent = served.lent.load_full();
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

/// Closes a client's connection, and descriptors of it, apart from the runtime's threads, and then gives its place back.
///
/// Descriptors that were not received close with the connection. The end of one can take as long as its client likes: a socket may
/// wait for a peer that takes no bytes.
pub(crate) fn close((stream, files): (UnixStream, Vec<OwnedFd>), place: OwnedSemaphorePermit) {
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
