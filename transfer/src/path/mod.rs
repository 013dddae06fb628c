//! The paths that bytes take between a client and a store. Each has an end at both, and knows the messages of [`crate::control`], not
//! the other paths.
//!
//! A store's end of a path is a [`ServerPath`] for each connection; `server` has one of each.

pub(crate) mod rdma;
pub(crate) mod server;
pub(crate) mod shm;
mod tcp;

use mc_types::Grant;

use crate::control::server::{Closed, Exchange};

/// A path at the store's end of one connection.
pub(crate) trait ServerPath {
    /// Kinds of the requests whose bytes go by it.
    type Request;

    /// Moves the bytes of a request, and adds the verdict on it as a whole and those on its operations to the exchange, which sends
    /// them afterwards. An error ends the connection at once, so the path sends before that what the client has to know.
    fn serve(
        &mut self,
        exchange: &mut Exchange<'_>,
        request: PermittedRequest<'_, Self::Request>,
    ) -> impl Future<Output = Result<(), Closed>> + Send;

    /// Returns when another connection needs what this path keeps for this one, which is idle. Never, if it keeps nothing.
    fn wanted(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}

/// A request whose grant has been opened and permits its access.
pub(crate) struct PermittedRequest<'a, K> {
    pub(crate) id: u64,
    pub(crate) kind: K,
    pub(crate) grant: &'a Grant,
    /// Its operations, as the wire has them.
    pub(crate) ops: &'a [u8],
}
