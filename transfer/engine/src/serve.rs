//! The server of an engine: accepts connections and answers the requests of peers.

use std::collections::VecDeque;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::Range;
use crate::connection::{Connection, Until};
use crate::limits::Limits;
use crate::raw_parts::RawParts;
use crate::regions::{NoUse, Regions};
use crate::sockets::Sockets;
use crate::wire::{self, Answer, HEAD, HELLO, Kind, Notice, RANGE, Request};

/// Most connections of peers. Each has a thread.
const MAX_CONNECTIONS: usize = 1_024;
/// Most notices that wait to be taken, and most bytes of them.
const MAX_NOTICES: usize = 4_096;
const MAX_NOTICE_BYTES: usize = 16 << 20;
/// Time for a request without its data.
const REQUEST_WITHIN: Duration = Duration::from_secs(10);
/// Time after which a connection without a request ends.
const IDLE: Duration = Duration::from_secs(300);
/// Pause before the next accept when the process has no descriptors or threads left.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// State of an engine that the server's threads share.
pub(crate) struct Served {
    pub(crate) limits: Limits,
    pub(crate) regions: Arc<Regions>,
    pub(crate) sockets: Arc<Sockets>,
    pub(crate) notices: Mutex<VecDeque<Notice>>,
    pub(crate) connections: AtomicUsize,
}

/// A place among the connections of peers.
struct Accepted(Arc<Served>);

impl Accepted {
    fn by(served: &Arc<Served>) -> io::Result<Self> {
        let accepted = Self(served.clone());
        match served.connections.fetch_add(1, Ordering::Relaxed) {
            ..MAX_CONNECTIONS => Ok(accepted),
            _ => Err(io::Error::other(format!("{MAX_CONNECTIONS} connections are open"))),
        }
    }
}

impl Drop for Accepted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Accepts connections until the listener is shut down.
pub(crate) fn accept(listener: &TcpListener, served: &Arc<Served>) {
    loop {
        let accepted = listener.accept();
        if served.sockets.is_closed() {
            return;
        }
        let started = accepted.and_then(|(stream, _)| {
            let accepted = Accepted::by(served)?;
            thread::Builder::new()
                .name("mc-engine-peer".into())
                .spawn(move || accepted.0.serve(stream))
                .map(drop)
        });
        if let Err(why) = started {
            tracing::warn!("the transfer engine does not serve a connection: {why}");
            thread::sleep(EXHAUSTED);
        }
    }
}

impl Served {
    fn serve(&self, stream: TcpStream) {
        let Ok(connection) = Connection::new(stream) else { return };
        let Some(_place) = self.sockets.add(connection.0.clone()) else { return };
        match self.answer_all(&connection) {
            // A peer may close the connection at any time between two requests.
            Err(why) if why.kind() != io::ErrorKind::UnexpectedEof && !self.sockets.is_closed() => {
                tracing::warn!("the transfer engine ends a connection: {why}");
            }
            _ => {}
        }
    }

    fn answer_all(&self, connection: &Connection) -> io::Result<()> {
        connection.write_all(&HELLO, Instant::now() + REQUEST_WITHIN)?;
        let mut ranges = Vec::new();
        // A peer connects for a request, and may keep the connection for later ones.
        let mut patience = REQUEST_WITHIN;
        loop {
            connection.wait_for_bytes(Instant::now() + patience)?;
            patience = IDLE;
            let deadline = Instant::now() + REQUEST_WITHIN;
            let mut head = [0; HEAD];
            connection.read_exact(&mut head, deadline)?;
            let request = Request::decode(&head)?;
            ranges.resize(request.ranges * RANGE, 0);
            connection.read_exact(&mut ranges, deadline)?;
            self.answer(connection, request, &wire::decode_ranges(&ranges))?;
        }
    }

    fn answer(&self, connection: &Connection, request: Request, ranges: &[Range]) -> io::Result<()> {
        let total = ranges.iter().map(|range| u128::from(range.len)).sum::<u128>();
        if matches!(request.kind, Kind::Read | Kind::Write) && total != u128::from(request.bytes) {
            return Err(wire::invalid(format!(
                "{total} bytes in the ranges of a request for {}",
                request.bytes
            )));
        }
        // Only the idle time is limited: the peer's own call has the deadline.
        let until = Until::Idle(self.limits.transfer);
        match request.kind {
            Kind::Read => {
                let head = Answer { is_done: true, bytes: request.bytes }.encode();
                match self.in_use(connection, ranges, || send(connection, &head, ranges, until))? {
                    None => Ok(()),
                    Some(why) => refuse(connection, &why, until),
                }
            }
            // The use of the memory ends before the peer gets the answer.
            Kind::Write => match self.in_use(connection, ranges, || receive(connection, ranges, until))? {
                None => done(connection, &[], until),
                Some(why) => {
                    // The peer sends all bytes before it reads the answer.
                    connection.skip(request.bytes, until)?;
                    refuse(connection, &why, until)
                }
            },
            Kind::First => {
                let mut first = Vec::new();
                wire::encode_ranges(self.regions.first().into_iter(), &mut first);
                done(connection, &first, until)
            }
            Kind::Probe => done(connection, &[], until),
            Kind::Notice => {
                // The decoder has checked the length.
                let mut notice = vec![0; request.bytes as usize];
                connection.read_exact(&mut notice, until)?;
                match self.keep(Notice::decode(&notice)?) {
                    Ok(()) => done(connection, &[], until),
                    Err(why) => refuse(connection, &why, until),
                }
            }
        }
    }

    /// Runs a copy from or to registered memory, or returns the reason why it can't.
    fn in_use(
        &self,
        connection: &Connection,
        ranges: &[Range],
        copy: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<Option<String>> {
        let using = match self.regions.use_by_peer(ranges) {
            Ok(using) => using,
            Err(why) => return Ok(Some(reason(&why))),
        };
        let _active = match using.on(&connection.0) {
            Ok(active) => active,
            Err(why) => return Ok(Some(reason(&why))),
        };
        copy().map(|()| None)
    }

    fn keep(&self, notice: Notice) -> Result<(), String> {
        let mut notices = self.notices.lock();
        let bytes = notices.iter().map(|notice| notice.name.len() + notice.message.len()).sum::<usize>();
        if notices.len() >= MAX_NOTICES || bytes >= MAX_NOTICE_BYTES {
            return Err(format!("{} notices wait: take them with get_notifies first", notices.len()));
        }
        notices.push_back(notice);
        Ok(())
    }
}

fn reason(why: &NoUse) -> String {
    match why {
        NoUse::Ended => "the engine was closed, or the memory unregistered".to_owned(),
        NoUse::Unregistered(Range { address, len }) => {
            format!("{len} bytes at {address:#x} do not lie in one piece of memory that is registered there")
        }
    }
}

#[allow(unsafe_code)]
fn send(connection: &Connection, head: &[u8; HEAD], ranges: &[Range], until: Until) -> io::Result<()> {
    let head = [(head.as_ptr() as usize, HEAD)];
    let ranges = ranges.iter().map(|range| (range.address as usize, range.len as usize));
    // SAFETY: a borrowed head, and registered memory in use.
    connection.send(&mut unsafe { RawParts::new(head.into_iter().chain(ranges)) }, until)
}

#[allow(unsafe_code)]
fn receive(connection: &Connection, ranges: &[Range], until: Until) -> io::Result<()> {
    let ranges = ranges.iter().map(|range| (range.address as usize, range.len as usize));
    // SAFETY: registered memory in use.
    connection.receive(&mut unsafe { RawParts::new(ranges) }, until)
}

fn done(connection: &Connection, data: &[u8], until: Until) -> io::Result<()> {
    answer(connection, true, data, until)
}

fn refuse(connection: &Connection, why: &str, until: Until) -> io::Result<()> {
    answer(connection, false, why.as_bytes(), until)
}

fn answer(connection: &Connection, is_done: bool, data: &[u8], until: Until) -> io::Result<()> {
    let head = Answer { is_done, bytes: data.len() as u64 }.encode();
    connection.write_all(&[&head, data].concat(), until)
}
