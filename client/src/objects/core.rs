use std::sync::Arc;
use std::time::Duration;

use mc_transfer::{Checksum, Peer, ReadOp, Seal, TransferError, Transport, WriteOp};
use mc_types::{Code, MAX_KEY_LEN, StoreId};
use tokio::time::Instant;

use super::AvoidList;
use crate::Error;
use crate::local::Local;
use crate::masters::{Change, Masters, Observer};
use crate::metrics::Counters;
use crate::placement::Granted;

/// State shared by all calls of a client.
#[derive(Clone, Debug)]
pub(crate) struct Core {
    pub(crate) masters: Arc<Masters>,
    pub(crate) local: Arc<Local>,
    pub(crate) avoid: Arc<AvoidList>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) tenant: String,
    pub(crate) checksum: bool,
    pub(crate) call_timeout: Duration,
    pub(crate) get_timeout: Duration,
}

/// Applies changes reported by the masters to the local objects and the avoid list.
#[derive(Debug)]
pub(crate) struct Follow {
    pub(crate) local: Arc<Local>,
    pub(crate) avoid: Arc<AvoidList>,
    pub(crate) counters: Arc<Counters>,
}

impl Observer for Follow {
    fn changed(&self, change: Change) {
        match change {
            // Suspects hold for one leader's term; the new leader reports its own.
            Change::NewTerm => self.avoid.forget_suspects(),
            Change::NewCluster => self.local.clear(&self.counters),
            Change::AllSuspects(stores) => self.avoid.hear_all(stores),
            Change::Stores(stores) => self.avoid.hear(stores),
        }
    }
}

impl Core {
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
    ) -> Vec<Result<Checksum, TransferError>> {
        let write = self.transport.write(&to.peer, &to.grant, &ops, seal, deadline);
        let results = tokio::select! {
            results = write => results,
            () = self.avoid.suspected(to.peer.store, to.offered) => vec![Err(suspect(&to.peer)); ops.len()],
        };
        self.judge(to.peer.store, &results);
        results
    }

    fn judge(&self, store: StoreId, results: &[Result<Checksum, TransferError>]) {
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

/// Returns the error of an item that a master refused.
pub(crate) fn item_error(what: &'static str, code: i32) -> Error {
    let code = Code::try_from(code).unwrap_or(Code::InternalError);
    item_error_with(what, code, "it refused this item")
}

/// Returns the error of an item that the leader refused, with the reason that the leader gave.
pub(crate) fn item_error_with(what: &'static str, code: Code, why: &str) -> Error {
    Error::definite(what, code, "the leader", why)
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
