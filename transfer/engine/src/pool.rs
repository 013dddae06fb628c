//! Connections to peers that no call uses at the moment.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::Peer;
use crate::connection::Connection;
use crate::sockets::Place;

/// Most idle connections to one peer.
const MAX_IDLE: usize = 16;

#[derive(Default)]
pub(crate) struct Pool(Mutex<HashMap<Peer, Vec<Link>>>);

/// A connection to a peer.
pub(crate) struct Link {
    pub(crate) connection: Connection,
    pub(crate) _place: Place,
}

impl Pool {
    pub(crate) fn take(&self, peer: &Peer) -> Option<Link> {
        self.0.lock().get_mut(peer)?.pop()
    }

    pub(crate) fn put(&self, peer: &Peer, link: Link) {
        let mut links = self.0.lock();
        let links = links.entry(peer.clone()).or_default();
        if links.len() < MAX_IDLE {
            links.push(link);
        }
    }

    /// Drops the connections to a peer that has gone.
    pub(crate) fn forget(&self, peer: &Peer) {
        let forgotten = self.0.lock().remove(peer);
        drop(forgotten);
    }
}
