//! Connections to peers that no call uses at the moment.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::Peer;
use crate::connection::Connection;
use crate::sockets::Place;

/// Most idle connections to one peer.
const MAX_IDLE: usize = 16;
/// Most idle connections to all peers together.
const MAX_IDLE_OF_ALL: usize = 256;
/// Time for which one is kept. Peers keep theirs longer ([`crate::serve`]), so none ends while a request is sent.
const KEPT: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Pool(Mutex<HashMap<Peer, Vec<Link>>>);

/// A connection to a peer.
pub(crate) struct Link {
    pub(crate) connection: Connection,
    used: Instant,
    _place: Place,
}

impl Link {
    pub(crate) fn new(connection: Connection, place: Place) -> Self {
        Self { connection, used: Instant::now(), _place: place }
    }
}

impl Pool {
    /// Takes an idle connection that the peer has not closed.
    pub(crate) fn take(&self, peer: &Peer) -> Option<Link> {
        let mut links = self.0.lock();
        keep(&mut links, |link| link.used.elapsed() < KEPT);
        let links = links.get_mut(peer)?;
        while let Some(link) = links.pop() {
            if link.connection.is_quiet() {
                return Some(link);
            }
        }
        None
    }

    pub(crate) fn put(&self, peer: &Peer, mut link: Link) {
        link.used = Instant::now();
        let mut links = self.0.lock();
        if count(&links) >= MAX_IDLE_OF_ALL {
            // Drop connections to peers that are gone.
            keep(&mut links, |link| link.connection.is_quiet());
            if count(&links) >= MAX_IDLE_OF_ALL {
                return;
            }
        }
        let links = links.entry(peer.clone()).or_default();
        if links.len() < MAX_IDLE {
            links.push(link);
        }
    }

    /// Drops the connections to a peer that does not answer.
    pub(crate) fn forget(&self, peer: &Peer) {
        let forgotten = self.0.lock().remove(peer);
        drop(forgotten);
    }
}

fn keep(links: &mut HashMap<Peer, Vec<Link>>, is_kept: impl Fn(&Link) -> bool) {
    links.retain(|_, links| {
        links.retain(&is_kept);
        !links.is_empty()
    });
}

fn count(links: &HashMap<Peer, Vec<Link>>) -> usize {
    links.values().map(Vec::len).sum()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;

    use super::*;
    use crate::sockets::Sockets;

    #[test]
    fn connections_to_peers_that_are_gone_make_room_for_others() {
        let (pool, sockets) = (Pool::default(), Arc::new(Sockets::default()));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = |n: usize| Peer { host: n.to_string(), port: 1 };
        for n in 0..MAX_IDLE_OF_ALL + 10 {
            let connection =
                Connection::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap()).unwrap();
            let (other_end, _) = listener.accept().unwrap();
            let place = sockets.add(connection.0.clone()).unwrap();
            pool.put(&peer(n), Link::new(connection, place));
            assert!(count(&pool.0.lock()) <= MAX_IDLE_OF_ALL);
            assert!(pool.take(&peer(n)).is_some_and(|link| {
                pool.put(&peer(n), link);
                true
            }));
            drop(other_end);
            if n % 2 == 0 {
                assert!(pool.take(&peer(n)).is_none(), "its peer is gone");
            }
        }
    }
}
