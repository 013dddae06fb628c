//! Exit code and machine-readable outcome of a command that failed.

use std::fmt;

use mc_client::{Code, ConnectError, Outcome};

use crate::interrupt::Interrupted;
use crate::output::printable;

/// Exit code for wrong usage, an unusable pool, or output that was lost.
pub(crate) const UNUSABLE: u8 = 2;
/// Exit code for an object that is in the pool but can't be read now.
const UNAVAILABLE: u8 = 3;
/// Exit code of an interrupted command, as in shells after SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

/// Error for a key whose object is in the pool but can't be read now.
#[derive(Debug)]
pub struct Unavailable {
    /// The key.
    pub key: String,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is temporarily unavailable: it is in the pool, and no store that holds it can be read now \
             (`mcctl status` shows the stores); try again",
            printable(&self.key)
        )
    }
}

impl std::error::Error for Unavailable {}

/// No leader answered the command.
#[derive(Debug)]
pub struct NoLeader(pub String);

impl fmt::Display for NoLeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoLeader {}

/// Exit code, pool code and outcome of an error, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) exit_code: u8,
    pub(crate) code: Option<Code>,
    pub(crate) outcome: Outcome,
}

impl Failure {
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        let definite = |exit_code, code| Self { exit_code, code, outcome: Outcome::Definite };
        if let Some(error) = error.downcast_ref::<mc_client::Error>() {
            Self { exit_code: UNUSABLE, code: Some(error.code), outcome: error.outcome }
        } else if error.is::<Unavailable>() {
            definite(UNAVAILABLE, Some(Code::ReplicaIsNotReady))
        } else if error.is::<NoLeader>() {
            definite(UNUSABLE, Some(Code::NoLeader))
        } else if let Some(error) = error.downcast_ref::<ConnectError>() {
            definite(
                UNUSABLE,
                Some(match error {
                    ConnectError::VersionSkew { .. } => Code::VersionSkew,
                    ConnectError::WrongCluster { .. } => Code::WrongCluster,
                    _ => Code::InvalidParams,
                }),
            )
        } else if error.is::<Interrupted>() {
            Self { exit_code: INTERRUPTED, code: None, outcome: Outcome::Unknown }
        } else {
            definite(UNUSABLE, None)
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn each_kind_of_failure_has_its_exit_code_and_its_code() {
        let of = |error: anyhow::Error| {
            let failure = Failure::of(&error);
            (failure.exit_code, failure.code, failure.outcome)
        };
        let unavailable = Unavailable { key: "k".to_owned() };
        assert!(unavailable.to_string().contains("temporarily unavailable"));
        assert_eq!(of(unavailable.into()), (3, Some(Code::ReplicaIsNotReady), Outcome::Definite));
        let no_leader: anyhow::Result<()> = Err(NoLeader("none".to_owned()).into());
        let no_leader = no_leader.context("cannot put").unwrap_err();
        assert_eq!(of(no_leader), (2, Some(Code::NoLeader), Outcome::Definite));
        assert_eq!(of(ConnectError::NoMasters.into()), (2, Some(Code::InvalidParams), Outcome::Definite));
        assert_eq!(of(Interrupted.into()), (130, None, Outcome::Unknown));
        assert_eq!(of(anyhow::anyhow!("no such file")), (2, None, Outcome::Definite));
    }
}
