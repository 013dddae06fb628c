//! The paths that bytes take between a client and a store. Each has an end at both, and knows the messages of [`crate::control`]. Neither
//! `shm` nor `rdma` knows the other; shared memory makes its requests by the calls of `tcp`, and RDMA goes beside them.
//!
//! A store's end of a path is a [`ServerPath`] for each connection; `server` has one of each. A client's end of a path that carries
//! bytes beside the connections is a [`ClientPath`], with a [`StorePath`] to each store.

pub(crate) mod rdma;
pub(crate) mod server;
pub(crate) mod shm;
pub(crate) mod tcp;

use std::any::Any;
use std::sync::Arc;

use futures::future::BoxFuture;
use mc_types::{Grant, SealedGrant};
use tokio::time::Instant;

use crate::control::client::pieces::Piece;
use crate::control::client::{Failure, Link, Outcome, TcpOptions};
use crate::control::server::{Closed, Exchange};
use crate::control::wire::Hello;
use crate::report::PeerTransport;
use crate::transport::Seal;
use crate::{ReadBuffer, WriteBuffer};

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

/// A path of a client beside its connections, over which the requests go: it carries the bytes of large turns.
pub(crate) trait ClientPath: Send + Sync {
    /// Returns the path to the store at an address, to which calls connect with `options`.
    fn to_store(self: Arc<Self>, address: &str, options: &TcpOptions) -> Arc<dyn StorePath>;

    /// Why bytes may go by nothing else; `None` if they may.
    fn why_only(&self) -> Option<&'static str>;

    /// Reports on it for a store that was not called yet.
    fn untried(&self) -> PeerTransport;
}

/// A path to one store, beside the connections to it.
pub(crate) trait StorePath: Send + Sync {
    /// Maximum bytes of a piece.
    fn longest_piece(&self) -> u64;

    /// Returns over how many of the `free` connections a batch of `ops` operations and `total` bytes should go.
    fn lanes(&self, ops: usize, total: u64, free: usize) -> usize;

    /// Prepares a turn, before it takes a connection; `None` if it should go over the connection itself. `failures` counts the attempts
    /// of the call in which this path has failed.
    ///
    /// # Errors
    /// The future's error ends the call.
    fn prepare<'a>(
        &'a self,
        call: CallContext<'a>,
        bytes: &TurnBytes<'_, '_>,
        failures: u32,
    ) -> Option<Preparation<'a>>;

    /// Notes that the store can't reach a granted range in this way, so that the call goes on over the connection.
    ///
    /// # Errors
    /// When its bytes may go by nothing else.
    fn unreached(&self, grant: &SealedGrant, range: u32, why: &str) -> Result<(), Failure>;

    /// Takes note of the end of a turn, by whatever path: this one may have failed.
    fn after_turn(&self, call: CallContext<'_>);

    fn report(&self) -> PeerTransport;
}

/// The wait for what a turn needs. The result may be that the turn should go over the connection itself.
pub(crate) type Preparation<'a> = BoxFuture<'a, Result<Option<Box<dyn PreparedTurn + 'a>>, Failure>>;

/// A turn that has all it needs but its connection.
pub(crate) trait PreparedTurn: Send {
    /// Carries the turn and appends the outcomes of its pieces to `done`, from the first one on. It may leave the last ones for the next
    /// turn. A future that is dropped leaves the caller's memory alone from then on.
    fn carry<'a, 'b: 'a>(
        self: Box<Self>,
        link: &'a mut Link,
        beside: &'a mut Beside,
        grant: &'a SealedGrant,
        bytes: TurnBytes<'a, 'b>,
        done: &'a mut Vec<Outcome>,
    ) -> BoxFuture<'a, Result<Carried, Failure>>
    where
        Self: 'a;
}

/// State that a path keeps for a connection between turns, such as a queue pair. The connection is closed before it is dropped.
pub(crate) type Beside = Option<Box<dyn Any + Send>>;

/// How a turn went that was prepared for a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carried {
    /// The store has answered.
    ByPath,
    /// Not at all: no byte has moved, so the turn goes on over the connection.
    NotYet,
}

/// A call, as far as a path has to know it.
#[derive(Clone, Copy)]
pub(crate) struct CallContext<'a> {
    /// Memory that the call is about, with the store's id.
    pub(crate) hello: Hello,
    pub(crate) grant: &'a SealedGrant,
    pub(crate) deadline: Instant,
}

/// Pieces of a turn, with the caller's buffers.
pub(crate) enum TurnBytes<'a, 'b> {
    Read(&'a mut [Piece<ReadBuffer<'b>>]),
    Write(&'a [Piece<WriteBuffer<'b>>], Seal),
}

impl TurnBytes<'_, '_> {
    /// Number of pieces.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Read(pieces) => pieces.len(),
            Self::Write(pieces, _) => pieces.len(),
        }
    }

    /// Number of bytes.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Read(pieces) => pieces.iter().map(|piece| piece.len).sum(),
            Self::Write(pieces, _) => pieces.iter().map(|piece| piece.len).sum(),
        }
    }
}
