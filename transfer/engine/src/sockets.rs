//! Open connections of an engine, all of which end with it.

use std::collections::HashMap;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;

#[derive(Default)]
pub(crate) struct Sockets(Mutex<State>);

#[derive(Default)]
struct State {
    is_closed: bool,
    next: u64,
    open: HashMap<u64, Arc<TcpStream>>,
}

/// A place among the connections, until it is dropped.
pub(crate) struct Place {
    sockets: Arc<Sockets>,
    id: u64,
}

impl Sockets {
    /// Adds a connection; `None` once all were closed.
    pub(crate) fn add(self: &Arc<Self>, socket: Arc<TcpStream>) -> Option<Place> {
        let mut state = self.0.lock();
        if state.is_closed {
            return None;
        }
        let id = state.next;
        state.next += 1;
        state.open.insert(id, socket);
        Some(Place { sockets: self.clone(), id })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.lock().is_closed
    }

    /// Ends all connections, and those that are added later.
    pub(crate) fn close(&self) {
        let mut state = self.0.lock();
        state.is_closed = true;
        for socket in state.open.values() {
            end(socket);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A forked child may have the descriptor, too, and would keep the connection open.
        if let Some(socket) = self.sockets.0.lock().open.remove(&self.id) {
            end(&socket);
        }
    }
}

/// Shuts a socket down, so that calls on it fail in every thread.
pub(crate) fn end(socket: &TcpStream) {
    // Fails on a socket that has ended already.
    let _ = socket.shutdown(Shutdown::Both);
}
