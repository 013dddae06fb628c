//! Scatter/gather lists that one system call after another sends or fills.
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use smallvec::SmallVec;

use crate::{ReadBuffer, WriteBuffer};

/// Maximum number of parts in one system call.
pub(crate) const MAX_PARTS: usize = 64;

/// Parts of memory, in order. The kernel alone reaches their bytes, and the copies for TLS.
#[derive(Default)]
pub(crate) struct IoVecs<'a> {
    parts: SmallVec<[libc::iovec; MAX_PARTS]>,
    /// Number of parts that were sent.
    sent: usize,
    of: PhantomData<&'a mut [u8]>,
}

// SAFETY: addresses of buffers that may be used by every thread.
unsafe impl Send for IoVecs<'_> {}
// SAFETY: as above.
unsafe impl Sync for IoVecs<'_> {}

impl<'a> IoVecs<'a> {
    /// Adds bytes to send.
    pub(crate) fn push(&mut self, buffer: WriteBuffer<'a>) {
        self.parts.push(libc::iovec { iov_base: buffer.as_ptr().cast_mut().cast(), iov_len: buffer.len() });
    }

    /// Adds room for bytes to receive.
    pub(crate) fn push_room(&mut self, mut buffer: ReadBuffer<'a>) {
        self.parts.push(libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() });
    }

    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether every part was sent.
    pub(crate) fn are_sent(&self) -> bool {
        self.parts[self.sent..].is_empty()
    }

    /// Removes all parts.
    pub(crate) fn clear(&mut self) {
        self.parts.clear();
        self.sent = 0;
    }

    /// Sends unsent bytes once without blocking, and returns how many were sent.
    pub(crate) fn send(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let message = message(&mut self.parts[self.sent..]);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: each part is a buffer that is readable for as long as `'a` lasts, and the kernel reads no more than it.
        let n = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
        let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
        self.advance(n);
        Ok(n)
    }

    /// Copies unsent bytes, at most `room`, to the end of `to`. They count as sent.
    pub(crate) fn take(&mut self, mut room: usize, to: &mut Vec<u8>) {
        while room > 0
            && let Some(part) = self.parts.get(self.sent)
        {
            let now = part.iov_len.min(room);
            to.reserve(now);
            let end = to.len();
            // SAFETY: the part is readable for as long as `'a` lasts, `to` has room for its bytes apart from it, and they are set
            // before they count.
            unsafe {
                libc::memcpy(to.as_mut_ptr().add(end).cast(), part.iov_base, now);
                to.set_len(end + now);
            }
            room -= now;
            self.advance(now);
        }
    }

    /// Receives once without blocking, into room that was added.
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let mut message = message(&mut self.parts);
        // SAFETY: each part is a buffer that is writable for as long as `'a` lasts, and the kernel writes no more than it.
        let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    /// Skips `n` bytes and any empty parts after them.
    fn advance(&mut self, mut n: usize) {
        for part in &mut self.parts[self.sent..] {
            let now = n.min(part.iov_len);
            // SAFETY: inside of the part, or its end.
            part.iov_base = unsafe { part.iov_base.cast::<u8>().add(now).cast() };
            part.iov_len -= now;
            n -= now;
            if part.iov_len > 0 {
                break;
            }
            self.sent += 1;
        }
    }
}

/// A message of at most [`MAX_PARTS`] parts.
fn message(parts: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: a header of zeros names no address, no control bytes and no parts.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len().min(MAX_PARTS) as _;
    message
}
