//! What an engine does for its peers.

use std::collections::VecDeque;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::Range;
use crate::connection::Connection;
use crate::engine::Limits;
use crate::raw_parts::RawParts;
use crate::regions::{NoUse, Regions};
use crate::sockets::Sockets;
use crate::wire::{self, Answer, HEAD, HELLO, Kind, MAX_LISTED, MAX_TEXT, Notice, RANGE, Request};

/// Most connections of an engine. Each has a thread.
const MAX_CONNECTIONS: usize = 1_024;
/// Most notices that wait to be taken.
const MAX_NOTICES: usize = 4_096;
/// Time for a request without its data.
const REQUEST_WITHIN: Duration = Duration::from_secs(10);
/// Time until connections are accepted again, where there are no descriptors or threads.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// What peers reach of an engine.
pub(crate) struct Served {
    pub(crate) limits: Limits,
    pub(crate) regions: Regions,
    pub(crate) sockets: Arc<Sockets>,
    pub(crate) notices: Mutex<VecDeque<Notice>>,
}

/// Accepts connections until the listener is shut down.
pub(crate) fn accept(listener: &TcpListener, served: &Arc<Served>) {
    loop {
        let accepted = listener.accept();
        if served.sockets.is_closed() {
            return;
        }
        let started = accepted.and_then(|(stream, _)| {
            if served.sockets.len() >= MAX_CONNECTIONS {
                return Err(io::Error::other(format!("{MAX_CONNECTIONS} connections are open")));
            }
            let served = served.clone();
            thread::Builder::new().name("mc-engine-peer".into()).spawn(move || served.serve(stream)).map(drop)
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
            // A peer may go at any time between two requests.
            Err(why) if why.kind() != io::ErrorKind::UnexpectedEof && !self.sockets.is_closed() => {
                tracing::warn!("the transfer engine ends a connection: {why}");
            }
            _ => {}
        }
    }

    fn answer_all(&self, connection: &Connection) -> io::Result<()> {
        connection.write_all(&HELLO, Instant::now() + REQUEST_WITHIN)?;
        let mut ranges = Vec::new();
        loop {
            connection.wait_for_bytes(None)?;
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
        let deadline = Instant::now() + self.limits.within(total);
        match request.kind {
            Kind::Read => match self.regions.use_by_peer(ranges, &connection.0) {
                Ok(_use) => {
                    let head = Answer { is_done: true, bytes: request.bytes }.encode();
                    send(connection, &head, ranges, deadline)
                }
                Err(why) => refuse(connection, &reason(&why), deadline),
            },
            Kind::Write => match self.regions.use_by_peer(ranges, &connection.0) {
                Ok(using) => {
                    receive(connection, ranges, deadline)?;
                    // Before the answer, so that the peer finds nothing in use after it.
                    drop(using);
                    done(connection, &[], deadline)
                }
                Err(why) => {
                    // The peer sends first and listens then.
                    connection.skip(request.bytes, deadline)?;
                    refuse(connection, &reason(&why), deadline)
                }
            },
            Kind::List => {
                let mut listed = Vec::new();
                wire::encode_ranges(self.regions.shared().into_iter().take(MAX_LISTED), &mut listed);
                done(connection, &listed, deadline)
            }
            Kind::Probe => done(connection, &[], deadline),
            Kind::Notice => {
                let len = usize::try_from(request.bytes).unwrap_or(usize::MAX);
                if len > MAX_TEXT {
                    return Err(wire::invalid(format!("{len} bytes in a notice, of at most {MAX_TEXT}")));
                }
                let mut notice = vec![0; len];
                connection.read_exact(&mut notice, deadline)?;
                match self.keep(Notice::decode(&notice)?) {
                    Ok(()) => done(connection, &[], deadline),
                    Err(why) => refuse(connection, &why, deadline),
                }
            }
        }
    }

    pub(crate) fn keep(&self, notice: Notice) -> Result<(), String> {
        let mut notices = self.notices.lock();
        if notices.len() >= MAX_NOTICES {
            return Err(format!("{MAX_NOTICES} notices wait: take them with get_notifies first"));
        }
        notices.push_back(notice);
        Ok(())
    }
}

fn reason(why: &NoUse) -> String {
    match why {
        NoUse::Closed => "the engine is closed".to_owned(),
        NoUse::Unregistered(Range { address, len }) => {
            format!("{len} bytes at {address:#x} do not lie in one piece of memory that is registered there")
        }
    }
}

#[allow(unsafe_code)]
fn send(connection: &Connection, head: &[u8; HEAD], ranges: &[Range], deadline: Instant) -> io::Result<()> {
    let head = [(head.as_ptr() as usize, HEAD)];
    let ranges = ranges.iter().map(|range| (range.address as usize, range.len as usize));
    // SAFETY: a borrowed head, and registered memory in use.
    connection.send(&mut unsafe { RawParts::new(head.into_iter().chain(ranges)) }, deadline)
}

#[allow(unsafe_code)]
fn receive(connection: &Connection, ranges: &[Range], deadline: Instant) -> io::Result<()> {
    let ranges = ranges.iter().map(|range| (range.address as usize, range.len as usize));
    // SAFETY: registered memory in use.
    connection.receive(&mut unsafe { RawParts::new(ranges) }, deadline)
}

fn done(connection: &Connection, data: &[u8], deadline: Instant) -> io::Result<()> {
    answer(connection, true, data, deadline)
}

fn refuse(connection: &Connection, why: &str, deadline: Instant) -> io::Result<()> {
    answer(connection, false, why.as_bytes(), deadline)
}

fn answer(connection: &Connection, is_done: bool, data: &[u8], deadline: Instant) -> io::Result<()> {
    let head = Answer { is_done, bytes: data.len() as u64 }.encode();
    connection.write_all(&[&head, data].concat(), deadline)
}
