use std::future::Future;
use std::time::Duration;

use mc_log::TypeConfig;
use mc_types::NodeId;
use openraft::errors::{NetworkError, RPCError, Timeout, Unreachable};
use openraft::network::RPCTypes;
use tonic::{Code, Status};

use crate::lease::acks::LostEntries;
use crate::network::wire::convert::BadMessage;

/// Both ends of a call, for error messages.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) from: NodeId,
    pub(crate) target: NodeId,
    pub(crate) address: String,
}

impl Route {
    pub(crate) fn timeout(&self, action: RPCTypes, timeout: Duration) -> Timeout<TypeConfig> {
        Timeout { action, id: self.from, target: self.target, timeout }
    }

    /// Returns the error of a failed call. openraft backs off after `Unreachable` (the peer is down, or refuses and
    /// will for a while) and tries again at once after `NetworkError`.
    pub(crate) fn failed(&self, status: &Status) -> RPCError<TypeConfig> {
        let text = format!("node {} at {}: {}", self.target, self.address, status.message());
        match status.code() {
            Code::Unavailable
            | Code::FailedPrecondition
            | Code::InvalidArgument
            | Code::Unimplemented
            | Code::ResourceExhausted => Unreachable::from_string(text).into(),
            _ => NetworkError::from_string(text).into(),
        }
    }

    pub(crate) fn nonsense(&self, err: &BadMessage) -> RPCError<TypeConfig> {
        Unreachable::from_string(format!("node {} at {} sent a bad answer: {err}", self.target, self.address))
            .into()
    }

    /// Returns the error of a peer that has lost entries, in place of an answer that openraft can't process.
    pub(crate) fn lost(&self, lost: &LostEntries) -> RPCError<TypeConfig> {
        Unreachable::from_string(lost.to_string()).into()
    }

    pub(crate) fn broken(&self, why: &str) -> RPCError<TypeConfig> {
        NetworkError::from_string(format!("node {} at {} {why}", self.target, self.address)).into()
    }

    /// Awaits one call's answer within `ttl`.
    pub(crate) async fn call<R>(
        &self,
        action: RPCTypes,
        ttl: Duration,
        call: impl Future<Output = Result<tonic::Response<R>, Status>>,
    ) -> Result<R, RPCError<TypeConfig>> {
        match tokio::time::timeout(ttl, call).await {
            Err(_) => Err(self.timeout(action, ttl).into()),
            Ok(Err(status)) => Err(self.failed(&status)),
            Ok(Ok(reply)) => Ok(reply.into_inner()),
        }
    }
}
