use std::fmt;

use mc_transfer::NoRdma;
use mc_types::{Code, ParseAddressError};

/// Whether the caller knows what a failed call did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The call did nothing.
    Definite,
    /// The call may or may not have taken effect, or may still do so shortly: a try of it got no answer.
    Unknown,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Definite => "it did nothing",
            Self::Unknown => "whether it took effect is unknown",
        })
    }
}

/// Error of a call of the [`Client`](crate::Client). Its text never contains a key.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what} failed at {at}: {why} ({code}; {outcome}){}", advice(hint))]
#[non_exhaustive]
pub struct Error {
    /// The attempted step: `get`, `put start`, ...
    pub what: &'static str,
    /// The code for programs to branch on. `NO_LEADER`, `RPC_TIMEOUT`, `VERSION_SKEW`, `WRONG_CLUSTER`, `PUT_GONE`,
    /// `LEASE_EXPIRED`, `TRANSFER_FAIL` and the `INVALID_*` of arguments may come from the library itself, the others from
    /// a master.
    pub code: Code,
    /// Whether the caller knows what the call did.
    pub outcome: Outcome,
    /// The master or store that failed, or `this client`.
    pub at: String,
    /// The reason, in the words of the failing side.
    pub why: String,
    /// Advice to the user; empty where the reason says what to do.
    pub hint: &'static str,
}

impl Error {
    pub(crate) fn definite(
        what: &'static str,
        code: Code,
        at: impl Into<String>,
        why: impl Into<String>,
    ) -> Self {
        Self { what, code, outcome: Outcome::Definite, at: at.into(), why: why.into(), hint: hint(code) }
    }

    /// Leaves the advice to the reason, which is in the words of a master.
    pub(crate) fn advised(self) -> Self {
        Self { hint: "", ..self }
    }

    pub(crate) fn unknown(self) -> Self {
        Self { outcome: Outcome::Unknown, ..self }
    }

    /// Returns whether the call may have taken effect.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.outcome == Outcome::Unknown
    }
}

fn advice(hint: &str) -> String {
    if hint.is_empty() { String::new() } else { format!("; {hint}") }
}

/// Returns advice for the user of a call that failed with this code.
fn hint(code: Code) -> &'static str {
    match code {
        Code::NoLeader => "check that a majority of the masters runs and is reachable (`mcctl status`)",
        Code::RpcTimeout | Code::RpcFail => "check the network to that address, or allow a longer deadline",
        Code::VersionSkew => "upgrade the older side",
        Code::WrongCluster => "correct the list of masters, or reconnect if the cluster was replaced",
        Code::NoAvailableHandle => "add stores, or remove objects",
        Code::ObjectTooLarge => "split the object, or lend larger segments",
        Code::ObjectHasLease => "wait for the lease to end, or remove with force",
        Code::ResourceExhausted => "send less at a time",
        Code::DiskNearlyFull => "make room in the data directory of that master",
        Code::PutGone => "put again, with a longer deadline if the transfer is slow",
        Code::LeaseExpired => "open another session",
        Code::VersionChanged => "open another session to read the new version",
        Code::TransferFail => "check the stores (`mcctl status`), then try again",
        Code::InvalidKey => "use a key of 1 to 4,096 bytes",
        Code::InvalidParams => "correct the arguments",
        Code::OutcomeUnknown => "read the object to find out, then decide whether to repeat the call",
        _ => "",
    }
}

/// Error of [`Builder::connect`](crate::Builder::connect). Unreachable masters are not an error unless a leader is required: the client
/// then starts in local-only mode and keeps looking for them.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The list of masters is empty.
    #[error("the list of masters is empty: name at least one as host:port")]
    NoMasters,
    /// An entry of the list is not an address.
    #[error("the list of masters has an invalid entry: {0}")]
    Address(ParseAddressError),
    /// The tenant's name is too long.
    #[error("tenant name of {len} bytes: at most {max} are allowed")]
    Tenant {
        /// Its length in bytes.
        len: usize,
        /// The longest allowed name in bytes.
        max: usize,
    },
    /// The certificates can't be used.
    #[error("TLS: {why}")]
    Tls {
        /// The file and its defect.
        why: String,
    },
    /// RDMA was asked for by name and can't be used.
    #[error("RDMA was asked for: {0}")]
    Rdma(NoRdma),
    /// The thread for the client's background work can't be started.
    #[error(
        "the client's thread can't be started: {why}; raise the limit on threads or descriptors of this process"
    )]
    Thread {
        /// The error of the system.
        why: String,
    },
    /// Every master that answered speaks other protocol versions.
    #[error("master {address} speaks protocol versions {theirs}, this client {ours}: upgrade the older side")]
    VersionSkew {
        /// Address of the master.
        address: String,
        /// Protocol versions and software of this client.
        ours: String,
        /// Protocol versions and software of the master.
        theirs: String,
    },
    /// No leader was found, and one is [required](crate::Builder::require_leader).
    #[error(
        "no leader was found within {within:?}: {why}; check that a majority of the masters runs and that the list names them"
    )]
    NoLeader {
        /// Time in which the client looked for one.
        within: std::time::Duration,
        /// The last failure of each master, or that none knows a leader.
        why: String,
    },
    /// The masters of the list belong to different clusters.
    #[error("master {address} belongs to cluster {theirs}, the others to cluster {ours}: correct the list")]
    WrongCluster {
        /// Address of the master that differs.
        address: String,
        /// The cluster that answered first.
        ours: String,
        /// The cluster of that master.
        theirs: String,
    },
}

// The text of a `ConnectError` contains these errors. As sources they would be printed twice.

impl From<ParseAddressError> for ConnectError {
    fn from(error: ParseAddressError) -> Self {
        Self::Address(error)
    }
}

impl From<NoRdma> for ConnectError {
    fn from(error: NoRdma) -> Self {
        Self::Rdma(error)
    }
}
