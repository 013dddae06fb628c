//! The client's end of the connection over which a store gives its descriptors.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout_at};

use super::{RECORD_LEN, Record, Segments, SharedSegment, ShmAccess, socket_name};
use crate::mapping::Mapping;
use crate::stamps::stamps_len;
use crate::transport::Peer;
use crate::wire::{HELLO_REPLY_LEN, Hello, HelloReply, STAMPS_SINCE, VERSIONS};

/// Longest time for all of it.
const PATIENCE: Duration = Duration::from_millis(300);
/// Maximum number of segments of a store.
const MOST: usize = 4096;

/// Connects to a store and receives the descriptors of its segments.
pub(super) async fn connect(
    peer: &Peer,
    access: ShmAccess,
    deadline: Instant,
) -> Result<(UnixStream, Segments), String> {
    match timeout_at(deadline.min(Instant::now() + PATIENCE), receive_all(peer, access)).await {
        Ok(Ok(received)) => received,
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("the store did not answer within {PATIENCE:?}, or by the deadline")),
    }
}

/// Returns once the store has closed the connection, after which its segments must not be used.
pub(super) async fn ended(mut stream: UnixStream) {
    // It sends nothing more.
    let _ = stream.read(&mut [0]).await;
}

async fn receive_all(peer: &Peer, access: ShmAccess) -> io::Result<Result<(UnixStream, Segments), String>> {
    let mut stream = mc_net::connect_local(&socket_name(peer.store, peer.epoch))?;
    // Anybody may have taken the name.
    if let Err(why) = access.admits(stream.peer_cred()?.uid()) {
        return Ok(Err(why));
    }
    let hello = Hello { versions: VERSIONS, cluster: peer.cluster, store: peer.store, epoch: peer.epoch };
    stream.write_all(&hello.encode()).await?;
    let mut reply = [0; HELLO_REPLY_LEN];
    stream.read_exact(&mut reply).await?;
    let reply = HelloReply::decode(&reply).map_err(io::Error::other)?;
    if !reply.verdict.good {
        let mut why = vec![0; reply.verdict.reason_len];
        stream.read_exact(&mut why).await?;
        return Ok(Err(String::from_utf8_lossy(&why).into_owned()));
    }
    let stamped = reply.chosen >= STAMPS_SINCE;
    let mut segments = HashMap::new();
    loop {
        let (Record { number, len }, descriptors) = receive(&mut stream).await?;
        match descriptors.as_slice() {
            _ if (Record { number, len }) == Record::END => {
                return Ok(Ok((stream, Segments { by_number: segments })));
            }
            [bytes, stamps @ ..] if stamps.len() == usize::from(stamped) && segments.len() < MOST => {
                let map = || {
                    let stamps = stamps.first().map(|file| Mapping::of_another(file, stamps_len(len)));
                    let bytes = Mapping::of_another(bytes, len)?;
                    Ok::<_, io::Error>(SharedSegment { bytes, stamps: stamps.transpose()? })
                };
                match map() {
                    Ok(segment) => drop(segments.insert(number, segment)),
                    Err(error) => return Ok(Err(format!("segment {number} can't be mapped: {error}"))),
                }
            }
            _ => {
                return Ok(Err(format!("segment {number} came with {} descriptors", descriptors.len())));
            }
        }
    }
}

/// Receives a record, and the descriptors that came with it.
async fn receive(stream: &mut UnixStream) -> io::Result<(Record, Vec<OwnedFd>)> {
    let (mut bytes, mut files) = ([0; RECORD_LEN], Vec::new());
    let first = stream.async_io(Interest::READABLE, || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut into = [io::IoSliceMut::new(&mut bytes)];
        let received = rustix::net::recvmsg(stream.as_fd(), &mut into, &mut ancillary, flags)?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                files.extend(descriptors);
            }
        }
        Ok(received.bytes)
    });
    let first = first.await?;
    if first == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    stream.read_exact(&mut bytes[first..]).await?;
    Ok((Record::decode(&bytes), files))
}
