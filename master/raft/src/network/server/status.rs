//! Answers to calls that openraft does not get, or does not answer.

use mc_log::TypeConfig;
use openraft::errors::{Fatal, RaftError};
use tonic::Status;

use crate::network::wire::convert::BadMessage;

pub(crate) fn malformed(err: &BadMessage) -> Status {
    Status::invalid_argument(err.to_string())
}

pub(crate) fn stopped(err: &Fatal<TypeConfig>) -> Status {
    Status::unavailable(format!("this master has stopped: {err}"))
}

pub(crate) fn raft_stopped(err: RaftError<TypeConfig>) -> Status {
    match err {
        RaftError::APIError(never) => match never {},
        RaftError::Fatal(err) => stopped(&err),
    }
}
