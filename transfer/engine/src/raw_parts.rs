//! Scatter/gather lists of raw addresses that one system call after another sends or fills.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

/// Most parts in one system call. The kernel allows 1,024.
const AT_ONCE: usize = 256;

/// Parts of memory, in order. Only the kernel accesses their bytes, so an invalid address is an error of the call.
pub(crate) struct RawParts {
    parts: Vec<libc::iovec>,
    /// Number of parts that were moved in full.
    done: usize,
}

impl RawParts {
    /// # Safety
    /// Until the value is dropped, each part that is memory may be read and written by the kernel, as far as it is sent or received.
    pub(crate) unsafe fn new(parts: impl IntoIterator<Item = (usize, usize)>) -> Self {
        let part = |(address, len)| libc::iovec { iov_base: address as *mut _, iov_len: len };
        Self { parts: parts.into_iter().filter(|(_, len)| *len > 0).map(part).collect(), done: 0 }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done == self.parts.len()
    }

    /// Sends once without blocking.
    pub(crate) fn send(&mut self, socket: impl AsFd) -> io::Result<()> {
        let message = self.message();
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the caller of `new` vouches for the parts.
        let n = unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const message, flags) };
        self.advance(n)
    }

    /// Receives once without blocking. An end of the stream is an error.
    pub(crate) fn receive(&mut self, socket: impl AsFd) -> io::Result<()> {
        let mut message = self.message();
        // SAFETY: as for `send`.
        let n = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.advance(n)
    }

    /// Returns a message of the next parts, of which there must be at least one.
    fn message(&mut self) -> libc::msghdr {
        let next = &mut self.parts[self.done..];
        // SAFETY: a header of zeros names no address, no control bytes and no parts.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = next.as_mut_ptr();
        message.msg_iovlen = next.len().min(AT_ONCE) as _;
        message
    }

    /// Skips the bytes that a system call has moved.
    fn advance(&mut self, n: isize) -> io::Result<()> {
        let mut n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
        while n > 0 {
            let part = &mut self.parts[self.done];
            let now = n.min(part.iov_len);
            part.iov_base = part.iov_base.wrapping_byte_add(now);
            part.iov_len -= now;
            n -= now;
            if part.iov_len == 0 {
                self.done += 1;
            }
        }
        Ok(())
    }
}
