//! Messages over a Unix socket that come with descriptors.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Maximum number of descriptors of a message.
const MOST: usize = 2;
/// Maximum number of descriptors that the kernel lets a peer send with one message (`SCM_MAX_FD`).
const SENT_AT_ONCE: usize = 253;

/// Sends a short message, with descriptors on its first byte.
pub(crate) async fn send(stream: &UnixStream, message: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let sent = stream.async_io(Interest::WRITABLE, || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(rustix::net::sendmsg(stream.as_fd(), &[io::IoSlice::new(message)], &mut ancillary, flags)?)
    });
    // A stream of Unix takes so few bytes at once or not at all.
    if sent.await? == message.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives a message, and adds the descriptors that came with it to `files`. The first byte may take any time, the others no longer
/// than `rest`. A call that is dropped before the first byte has lost nothing.
pub(crate) async fn receive(
    stream: &UnixStream,
    message: &mut [u8],
    rest: Duration,
    files: &mut Vec<OwnedFd>,
) -> io::Result<()> {
    let mut done = receive_some(stream, message, files).await?;
    let others = async {
        while done < message.len() {
            done += receive_some(stream, &mut message[done..], files).await?;
        }
        Ok(())
    };
    tokio::time::timeout(rest, others).await?
}

/// Receives once, at least one byte.
async fn receive_some(stream: &UnixStream, into: &mut [u8], files: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let received = stream.async_io(Interest::READABLE, || {
        // The kernel closes descriptors without room here itself, which may take long.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SENT_AT_ONCE))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut into = [io::IoSliceMut::new(into)];
        let received = rustix::net::recvmsg(stream.as_fd(), &mut into, &mut ancillary, flags)?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                files.extend(received);
            }
        }
        Ok(received.bytes)
    });
    match received.await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ if files.len() > MOST => Err(io::Error::new(io::ErrorKind::InvalidData, "too many descriptors")),
        received => Ok(received),
    }
}
