use std::sync::Arc;
use std::time::Duration;

use mc_transfer::{Checksum, Peer, ReadOp, TransferError, Transport, WriteOp};
use mc_types::{Code, MAX_KEY_LEN, StoreId};
use tokio::time::Instant;

use crate::Error;
use crate::masters::Masters;
use crate::placement::Granted;

/// State that every call of a client uses.
#[derive(Clone, Debug)]
pub(crate) struct Core {
    pub(crate) masters: Arc<Masters>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) tenant: String,
    pub(crate) checksum: bool,
    pub(crate) call_timeout: Duration,
    pub(crate) get_timeout: Duration,
}

impl Core {
    /// Deadline of one metadata call within a longer one.
    pub(crate) fn call_deadline(&self, overall: Instant) -> Instant {
        overall.min(Instant::now() + self.call_timeout)
    }

    /// Reads from one store, until the deadline or until the leader calls the store suspect.
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
            () = self.masters.avoid.suspected(from.peer.store, from.offered) => vec![Err(suspect(&from.peer)); count],
        };
        self.judge(from.peer.store, &results);
        results
    }

    /// Writes to one store, until the deadline or until the leader calls the store suspect.
    pub(crate) async fn write_to(
        &self,
        to: &Granted,
        ops: Vec<WriteOp<'_>>,
        deadline: Instant,
    ) -> Vec<Result<Checksum, TransferError>> {
        let write = self.transport.write(&to.peer, &to.grant, &ops, deadline);
        let results = tokio::select! {
            results = write => results,
            () = self.masters.avoid.suspected(to.peer.store, to.offered) => vec![Err(suspect(&to.peer)); ops.len()],
        };
        self.judge(to.peer.store, &results);
        results
    }

    fn judge(&self, store: StoreId, results: &[Result<Checksum, TransferError>]) {
        if results.iter().any(|result| result.as_ref().is_err_and(TransferError::is_of_the_store)) {
            self.masters.avoid.failed(store, Instant::now());
        } else if results.iter().any(Result::is_ok) {
            self.masters.avoid.worked(store);
        }
    }
}

fn suspect(peer: &Peer) -> TransferError {
    let addresses: Vec<&str> = peer.endpoints.iter().map(|endpoint| endpoint.address.as_str()).collect();
    let reason = "the leader calls it suspect".to_owned();
    TransferError::Stalled { store: peer.store, address: addresses.join(" or "), reason }
}

/// A key that a master would refuse is refused here.
pub(crate) fn check_key(what: &'static str, key: &[u8]) -> Result<(), Error> {
    if key.is_empty() || key.len() > MAX_KEY_LEN {
        let why = format!("a key of {} bytes: 1 to {MAX_KEY_LEN} are allowed", key.len());
        return Err(Error::definite(what, Code::InvalidKey, "this client", why));
    }
    Ok(())
}

/// The error for an item that a master refused.
pub(crate) fn item_error(what: &'static str, code: i32) -> Error {
    let code = Code::try_from(code).unwrap_or(Code::InternalError);
    Error::definite(what, code, "the leader", "it refused this item")
}

/// The error for an answer that does not match its question.
pub(crate) fn nonsense(what: &'static str) -> Error {
    Error::definite(what, Code::RpcFail, "the leader", "its answer makes no sense")
}
