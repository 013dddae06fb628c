//! Sockets with deadlines.
#![allow(unsafe_code)]

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{SockRef, TcpKeepalive};

use crate::raw_parts::RawParts;

/// Time without a sign of life after which an idle connection is given up.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// A connection, which [`crate::sockets::Sockets`] can shut down at any time; then its calls fail.
pub(crate) struct Connection(pub(crate) Arc<TcpStream>);

/// Time limit of a call on a connection.
#[derive(Clone, Copy)]
pub(crate) enum Until {
    At(Instant),
    /// This long after the last byte that was moved.
    Idle(Duration),
}

impl Until {
    fn deadline(self) -> Instant {
        match self {
            Self::At(deadline) => deadline,
            Self::Idle(time) => Instant::now() + time,
        }
    }
}

impl From<Instant> for Until {
    fn from(deadline: Instant) -> Self {
        Self::At(deadline)
    }
}

impl Connection {
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        SockRef::from(&stream)
            .set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3))?;
        Ok(Self(Arc::new(stream)))
    }

    pub(crate) fn to(address: SocketAddr, within: Duration) -> io::Result<Self> {
        Self::new(TcpStream::connect_timeout(&address, within)?)
    }

    /// Waits until there is something to read.
    pub(crate) fn wait_for_bytes(&self, deadline: Instant) -> io::Result<()> {
        self.wait(PollFlags::IN, deadline)
    }

    fn wait(&self, events: PollFlags, deadline: Instant) -> io::Result<()> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
            match poll(&mut [PollFd::new(&*self.0, events)], Some(&timeout)) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                // An error of the socket shows in the next call.
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether there is neither a byte nor an end to read, as on an idle connection to a peer that is there.
    pub(crate) fn is_quiet(&self) -> bool {
        matches!(self.wait(PollFlags::IN, Instant::now()), Err(why) if why.kind() == io::ErrorKind::TimedOut)
    }

    pub(crate) fn send(&self, parts: &mut RawParts, until: Until) -> io::Result<()> {
        self.move_all(parts, PollFlags::OUT, until, |parts| parts.send(self.0.as_fd()))
    }

    pub(crate) fn receive(&self, parts: &mut RawParts, until: Until) -> io::Result<()> {
        self.move_all(parts, PollFlags::IN, until, |parts| parts.receive(self.0.as_fd()))
    }

    fn move_all(
        &self,
        parts: &mut RawParts,
        events: PollFlags,
        until: Until,
        mut once: impl FnMut(&mut RawParts) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut deadline = until.deadline();
        while !parts.is_done() {
            match once(parts) {
                // A peer that keeps up never causes this wait.
                Ok(()) if Instant::now() >= deadline => return Err(io::ErrorKind::TimedOut.into()),
                Ok(()) => deadline = until.deadline(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(events, deadline)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(crate) fn write_all(&self, bytes: &[u8], until: impl Into<Until>) -> io::Result<()> {
        // SAFETY: bytes that are borrowed until this returns, and only read.
        self.send(&mut unsafe { RawParts::new([(bytes.as_ptr() as usize, bytes.len())]) }, until.into())
    }

    pub(crate) fn read_exact(&self, bytes: &mut [u8], until: impl Into<Until>) -> io::Result<()> {
        // SAFETY: bytes that are borrowed mutably until this returns.
        self.receive(
            &mut unsafe { RawParts::new([(bytes.as_mut_ptr() as usize, bytes.len())]) },
            until.into(),
        )
    }

    /// Reads this many bytes and drops them.
    pub(crate) fn skip(&self, mut bytes: u64, until: Until) -> io::Result<()> {
        let mut some = [0; 1 << 16];
        while bytes > 0 {
            let now = usize::try_from(bytes).unwrap_or(usize::MAX).min(some.len());
            self.read_exact(&mut some[..now], until)?;
            bytes -= now as u64;
        }
        Ok(())
    }
}
