//! The state that all calls of a client share: its masters, its local objects, its transports, and the errors of items.

mod batch;
mod chunks;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use mc_proto::v1::{BatchExistRequest, BatchGetRequest, BatchPutEndRequest, BatchPutStartRequest, GetResult};
use mc_transfer::{
    Checksum, DeviceError, Peer, ReadOp, Seal, StagedTransport, TransferError, Transport as _, WriteOp,
    Written,
};
use mc_types::{Code, MAX_KEY_LEN, PutId, StoreId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) use batch::{Cost, IN_FLIGHT, Keep, cut, representatives};
pub(crate) use chunks::{copied, key_chunks, read_error};

use crate::Error;
use crate::avoid::AvoidList;
use crate::call::{Lane, LeaderClient, Revokes};
use crate::local::Local;
use crate::masters::{Change, MastersState, Observer};
use crate::metrics::Counters;
use crate::mode::ModeSwitch;
use crate::placement::Granted;

/// State shared by all calls of a client.
#[derive(Clone, Debug)]
pub(crate) struct Core {
    pub(crate) leader: Arc<LeaderClient>,
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) revokes: Arc<Revokes>,
    pub(crate) local: Arc<Local>,
    pub(crate) avoid: Arc<AvoidList>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) transport: StagedTransport,
    pub(crate) tenant: String,
    pub(crate) checksum: bool,
    pub(crate) call_timeout: Duration,
    pub(crate) get_timeout: Duration,
    pub(crate) fail_local_misses: bool,
    pub(crate) fail_unfinished_gets: bool,
}

/// The kinds of calls that come in bursts.
#[derive(Debug)]
pub(crate) struct Lanes {
    pub(crate) gets: Lane<BatchGetRequest>,
    pub(crate) exists: Lane<BatchExistRequest>,
    /// Whether the master that answered an exist last reads packed keys.
    pub(crate) exists_packed: AtomicBool,
    pub(crate) starts: Lane<BatchPutStartRequest>,
    /// Starts of large puts, which may wait for room: small ones must not wait with them.
    pub(crate) large_starts: Lane<BatchPutStartRequest>,
    pub(crate) ends: Lane<BatchPutEndRequest>,
}

impl Lanes {
    /// Maximum number of messages of a kind under way. A few more calls than that share messages already.
    const MESSAGES: usize = 16;
    /// The same for starts of large puts, which share none.
    const LARGE: usize = 64;

    pub(crate) fn new(leader: &Arc<LeaderClient>, revokes: &Arc<Revokes>) -> Self {
        Self {
            gets: Lane::new(leader, revokes, Self::MESSAGES),
            exists: Lane::new(leader, revokes, Self::MESSAGES),
            exists_packed: AtomicBool::new(false),
            starts: Lane::new(leader, revokes, Self::MESSAGES),
            large_starts: Lane::of_single_calls(leader, revokes, Self::LARGE),
            ends: Lane::new(leader, revokes, Self::MESSAGES),
        }
    }
}

/// Applies changes reported by the masters to the local objects and the avoid list.
#[derive(Debug)]
pub(crate) struct ApplyChanges {
    pub(crate) local: Arc<Local>,
    pub(crate) avoid: Arc<AvoidList>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) mode: Arc<ModeSwitch>,
}

impl Observer for ApplyChanges {
    fn changed(&self, change: Change) {
        match change {
            // Suspects hold for one leader's term; the new leader reports its own.
            Change::NewTerm => self.avoid.forget_suspects(),
            Change::NewCluster => self.local.clear(&self.counters),
            Change::AllSuspects(stores) => self.avoid.hear_all(stores),
            Change::Stores(stores) => self.avoid.hear(stores),
        }
    }

    fn published(&self, state: &MastersState) {
        self.mode.follow(state);
    }
}

impl Core {
    /// Judges a miss in local-only mode, of which the pool was not asked.
    ///
    /// # Errors
    /// If such misses are to be told from those of the pool.
    pub(crate) fn local_miss(&self, what: &'static str) -> Result<(), Error> {
        if !self.fail_local_misses {
            return Ok(());
        }
        let why = "no leader is in reach, and this client does not have the object itself";
        Err(Error::definite(what, Code::NoLeader, "this client", why))
    }

    /// Judges a miss of the pool.
    ///
    /// # Errors
    /// If the object is being written, and such misses are to be told from others.
    pub(crate) fn pool_miss(&self, what: &'static str, result: &GetResult) -> Result<(), Error> {
        if !result.being_written || !self.fail_unfinished_gets {
            return Ok(());
        }
        let why = "it has no such object yet: a put of the key has started and has not ended";
        Err(Error::definite(what, Code::ReplicaIsNotReady, "the leader", why))
    }

    /// Frees the room of puts, and returns once it is free.
    pub(crate) async fn revoked(&self, puts: &[PutId]) -> Result<(), Error> {
        self.leader.revoke(puts, &self.tenant, Instant::now() + self.call_timeout).await
    }

    /// Revokes the puts that calls have abandoned, until the last handle of the client is `dropped`.
    ///
    /// A call may go on for a while when the client is `closed`, for example as long as its store writes. If it then
    /// abandons its put, that is revoked after the puts that were left when the client was closed.
    pub(crate) async fn revoke_abandoned(self, closed: CancellationToken, dropped: CancellationToken) {
        closed.run_until_cancelled(self.revokes.run(&self.leader, &self.tenant, self.call_timeout)).await;
        loop {
            self.revokes.flush(&self.leader, &self.tenant).await;
            if dropped.run_until_cancelled(self.revokes.more()).await.is_none() {
                break;
            }
        }
        // A handle's last puts are queued before it is gone.
        self.revokes.flush(&self.leader, &self.tenant).await;
    }

    /// Returns the deadline of one metadata call within an operation that ends by `overall`.
    pub(crate) fn call_deadline(&self, overall: Instant) -> Instant {
        overall.min(Instant::now() + self.call_timeout)
    }

    /// Reads from one store until the deadline, or until the leader suspects the store.
    pub(crate) async fn read_from(
        &self,
        from: &Granted,
        mut ops: Vec<ReadOp<'_>>,
        deadline: Instant,
    ) -> Vec<Result<Checksum, TransferError>> {
        let count = ops.len();
        let read = self.transport.read(&from.peer, &from.grant, &mut ops, deadline);
        let results = tokio::select! {
            results = read => results,
            () = self.avoid.suspected(from.peer.store, from.offered) => vec![Err(suspect(&from.peer)); count],
        };
        self.judge(from.peer.store, &results);
        results
    }

    /// Writes to one store until the deadline, or until the leader suspects the store.
    pub(crate) async fn write_to(
        &self,
        to: &Granted,
        ops: Vec<WriteOp<'_>>,
        seal: Seal,
        deadline: Instant,
    ) -> Vec<Result<Written, TransferError>> {
        let write = self.transport.write(&to.peer, &to.grant, &ops, seal, deadline);
        let results = tokio::select! {
            results = write => results,
            () = self.avoid.suspected(to.peer.store, to.offered) => vec![Err(suspect(&to.peer)); ops.len()],
        };
        self.judge(to.peer.store, &results);
        results
    }

    fn judge<T>(&self, store: StoreId, results: &[Result<T, TransferError>]) {
        if results.iter().any(|result| result.as_ref().is_err_and(TransferError::is_of_the_store)) {
            self.avoid.failed(store, Instant::now());
        } else if results.iter().any(Result::is_ok) {
            self.avoid.worked(store);
        }
    }
}

fn suspect(peer: &Peer) -> TransferError {
    let addresses: Vec<&str> = peer.endpoints.iter().map(|endpoint| endpoint.address.as_str()).collect();
    let reason = "the leader calls it suspect".to_owned();
    TransferError::Stalled { store: peer.store, address: addresses.join(" or "), reason }
}

/// Checks a key's length, so that a key that masters would refuse is not sent.
pub(crate) fn check_key(what: &'static str, key: &[u8]) -> Result<(), Error> {
    if key.is_empty() || key.len() > MAX_KEY_LEN {
        let why = format!("a key of {} bytes: 1 to {MAX_KEY_LEN} are allowed", key.len());
        return Err(Error::definite(what, Code::InvalidKey, "this client", why));
    }
    Ok(())
}

/// Returns the error of a call whose bytes could not be copied from or to memory of a GPU.
pub(crate) fn device_error(what: &'static str, why: &DeviceError) -> Error {
    Error::definite(what, Code::TransferFail, "this client", why.to_string()).advised()
}

/// Returns the error of a call that got no buffer for memory of GPUs by its deadline.
pub(crate) fn no_buffer_error(what: &'static str) -> Error {
    Error::definite(what, Code::RpcTimeout, "this client", TransferError::NoBuffer.to_string()).advised()
}

/// Returns the error of a transfer that failed in this process, as it would with any store.
pub(crate) fn error_of_this_client(what: &'static str, error: &TransferError) -> Option<Error> {
    match error {
        TransferError::Device(why) => Some(device_error(what, why)),
        TransferError::NoBuffer => Some(no_buffer_error(what)),
        TransferError::RdmaOff => {
            Some(Error::definite(what, Code::TransferFail, "this client", error.to_string()).advised())
        }
        _ => None,
    }
}

/// Returns the error of an item that a master refused.
pub(crate) fn item_error(what: &'static str, code: i32) -> Error {
    let code = Code::try_from(code).unwrap_or(Code::InternalError);
    Error::definite(what, code, "the leader", "it refused this item")
}

/// Returns the error of an item that the leader refused, with a reason that says what to do.
pub(crate) fn item_error_with(what: &'static str, code: Code, why: &str) -> Error {
    Error::definite(what, code, "the leader", why).advised()
}

/// Returns the error of an answer that is malformed or does not match its request.
pub(crate) fn nonsense(what: &'static str) -> Error {
    Error::definite(
        what,
        Code::RpcFail,
        "the leader",
        "its answer is malformed or does not match the request",
    )
}
