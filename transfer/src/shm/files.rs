//! Messages over a Unix socket that come with descriptors.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use tokio::io::{AsyncReadExt as _, Interest};
use tokio::net::UnixStream;

/// Maximum number of descriptors of a message.
const MOST: usize = 2;

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

/// Receives a message, and the descriptors that came with it. The first byte may take any time, the others no longer than
/// `rest`. A call that is dropped before the first byte has lost nothing.
pub(crate) async fn receive(
    stream: &mut UnixStream,
    message: &mut [u8],
    rest: Duration,
) -> io::Result<Vec<OwnedFd>> {
    let mut files = Vec::new();
    let first = stream.async_io(Interest::READABLE, || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut into = [io::IoSliceMut::new(message)];
        let received = rustix::net::recvmsg(stream.as_fd(), &mut into, &mut ancillary, flags)?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                files.extend(received);
            }
        }
        Ok(received.bytes)
    });
    let first = first.await?;
    if first == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    tokio::time::timeout(rest, stream.read_exact(&mut message[first..])).await??;
    Ok(files)
}
