//! The gate of a port: connections wait in it until their peers have said something.
//!
//! A connection costs a descriptor before it is good for anything. A peer that says nothing, or a byte a second, would
//! hold that descriptor for minutes, and some dozens of such peers stop a process. So a port has a number of places. A
//! connection gets into the server once its peer has said its greeting, within [`GREETING_WITHIN`]. A newcomer that
//! finds no place takes that of the connection that has been silent for the longest time. A connection that has spoken
//! is not closed for others: clients and stores are idle for as long as they like.
//!
//! The gate owns a silent connection, so closing it gives the descriptor back at once.

mod log;

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use parking_lot::Mutex;
use tokio::io::{AsyncRead as _, ReadBuf};

use self::log::Log;
use crate::connection::Connection;
use crate::network::Listener;
use crate::room::{Count, Place, Room};

/// Time that a peer has to say its greeting, and that a guest has to be vouched for. A peer of ours does both at once;
/// the time is for a machine under load.
const GREETING_WITHIN: Duration = Duration::from_secs(5);
/// Longest greeting in bytes.
const LONGEST: usize = 32 << 10;
/// Pause after an accept that failed for lack of descriptors, with no silent connection to close.
const PAUSE: Duration = Duration::from_millis(100);

/// First words of a peer, without which its connection is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// The whole head of an HTTP request.
    Http1,
    /// The preface of HTTP/2, which a client sends right after it has connected (RFC 9113, section 3.4).
    Http2,
}

impl Greeting {
    /// Whether `said` holds all of it. The server checks the rest.
    fn is_in(self, said: &[u8]) -> bool {
        const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        match self {
            Self::Http2 => said.len() >= PREFACE.len(),
            // An empty line. Its carriage return may be missing (RFC 9112, section 2.2).
            Self::Http1 => {
                said.windows(2).any(|two| two == b"\n\n") || said.windows(3).any(|three| three == b"\n\r\n")
            }
        }
    }
}

/// Rules of a gate.
#[derive(Clone)]
pub struct Rules {
    /// Users of the port, for the log, such as `clients and stores`.
    pub users: &'static str,
    /// First words of a peer.
    pub greeting: Greeting,
    /// Returns the places that the port has now. Asked for each connection, so a changed limit counts.
    pub room: Arc<dyn Fn() -> Room + Send + Sync>,
    /// Longest life of a connection that has spoken; `None` for connections that stay.
    pub lifetime: Option<Duration>,
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Rules").field(&self.users).field(&self.greeting).finish()
    }
}

impl Listener {
    /// Puts a gate in front of the listener. It passes on no errors: it logs them.
    #[must_use]
    pub fn gated(self, rules: Rules) -> Self {
        let Self { address, incoming } = self;
        let gate = Gate {
            incoming,
            log: Log::new(address, rules.users),
            rules,
            port: Arc::default(),
            greetings: FuturesUnordered::new(),
            silent: VecDeque::new(),
        };
        let incoming = futures::stream::unfold(gate, |mut gate| async move {
            let connection = gate.next().await?;
            Some((Ok(connection), gate))
        });
        Self { address, incoming: Box::pin(incoming) }
    }
}

/// A connection whose peer has spoken, and what it said.
struct Greeted {
    connection: Connection,
    said: Vec<u8>,
}

struct Gate {
    incoming: crate::network::Incoming,
    rules: Rules,
    port: Arc<Mutex<Count>>,
    greetings: FuturesUnordered<BoxFuture<'static, Option<Greeted>>>,
    /// The silent connections, the oldest first, and some that are silent no more.
    silent: VecDeque<Arc<Silent>>,
    log: Log,
}

impl Gate {
    /// Returns the next connection whose peer has spoken; `None` once the listener has ended.
    async fn next(&mut self) -> Option<Connection> {
        loop {
            tokio::select! {
                biased;
                Some(greeted) = self.greetings.next(), if !self.greetings.is_empty() => {
                    if let Some(greeted) = greeted {
                        return Some(self.admit(greeted));
                    }
                }
                accepted = self.incoming.next() => match accepted? {
                    Ok(connection) => self.take_in(connection),
                    Err(error) => self.not_accepted(&error).await,
                }
            }
        }
    }

    fn admit(&self, Greeted { connection, said }: Greeted) -> Connection {
        let place = Place::of_silent(&self.port, (self.rules.room)());
        let time = if place.is_guest() { Some(GREETING_WITHIN) } else { self.rules.lifetime };
        connection.admitted(said, place, time)
    }

    /// Lets a new connection wait for its peer's greeting, or refuses it where there is no place for it.
    fn take_in(&mut self, connection: Connection) {
        let room = (self.rules.room)();
        let to_close = self.port.lock().to_close_for_one_more(room);
        let Some(to_close) = to_close else { return self.log.refused(room.most) };
        for _ in 0..to_close {
            self.close_the_oldest();
            self.log.closed_for_another(room.most);
        }
        while self.silent.front().is_some_and(|oldest| oldest.0.lock().is_none()) {
            self.silent.pop_front();
        }
        let silent = Arc::new(Silent(Mutex::new(Some(connection))));
        self.port.lock().silent += 1;
        self.silent.push_back(silent.clone());
        self.greetings.push(silent.greeting(self.rules.greeting, self.port.clone()).boxed());
    }

    /// Closes the connection that has been silent for the longest time; returns whether there was one.
    fn close_the_oldest(&mut self) -> bool {
        while let Some(oldest) = self.silent.pop_front() {
            if oldest.close(&self.port) {
                return true;
            }
        }
        false
    }

    async fn not_accepted(&mut self, error: &io::Error) {
        // EMFILE and ENFILE. After any other error the next accept waits for the next connection.
        if !matches!(error.raw_os_error(), Some(23 | 24)) {
            tracing::debug!(%error, "a connection ended before it was accepted");
            return;
        }
        self.log.out_of_descriptors(error);
        if !self.close_the_oldest() {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// A connection whose peer has not said its greeting; `None` once it has, or was closed.
struct Silent(Mutex<Option<Connection>>);

impl Silent {
    /// Closes it; returns whether it was still there.
    fn close(&self, port: &Mutex<Count>) -> bool {
        let there = self.0.lock().take().is_some();
        if there {
            port.lock().silent -= 1;
        }
        there
    }

    /// Waits for the greeting; returns the connection, which `port` still counts as silent, and all that was said.
    async fn greeting(self: Arc<Self>, greeting: Greeting, port: Arc<Mutex<Count>>) -> Option<Greeted> {
        let heard = tokio::time::timeout(GREETING_WITHIN, self.hear(greeting)).await;
        if let Ok(Some(said)) = heard
            && let Some(connection) = self.0.lock().take()
        {
            return Some(Greeted { connection, said });
        }
        self.close(&port);
        None
    }

    async fn hear(&self, greeting: Greeting) -> Option<Vec<u8>> {
        let mut said = Vec::new();
        while !greeting.is_in(&said) {
            let before = said.len();
            poll_fn(|cx| self.poll_hear(cx, &mut said)).await.ok()?;
            if said.len() == before || said.len() > LONGEST {
                return None;
            }
        }
        Some(said)
    }

    /// Appends to `said` what the peer says next, and nothing once the connection is closed.
    fn poll_hear(&self, cx: &mut Context<'_>, said: &mut Vec<u8>) -> Poll<io::Result<()>> {
        let mut connection = self.0.lock();
        let Some(connection) = connection.as_mut() else { return Poll::Ready(Ok(())) };
        let mut piece = [0; 1024];
        let mut piece = ReadBuf::new(&mut piece);
        let read = std::pin::Pin::new(connection).poll_read(cx, &mut piece);
        said.extend_from_slice(piece.filled());
        read
    }
}

#[cfg(test)]
mod tests;
