use std::fmt;

use mc_types::{Code, ParseAddressError};

/// Whether the caller knows what a failed call did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The call did nothing.
    Definite,
    /// The call may or may not have taken effect, now or shortly: a try of it got no answer.
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

/// Why a call of the [`Client`](crate::Client) failed. Keys are never part of the text.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what} failed at {at}: {why} ({}; {outcome}); {hint}", code.name())]
#[non_exhaustive]
pub struct Error {
    /// The attempted step: `get`, `put start`, ...
    pub what: &'static str,
    /// The code to decide by. `NO_LEADER`, `RPC_TIMEOUT`, `VERSION_SKEW`, `WRONG_CLUSTER`, `PUT_GONE`,
    /// `TRANSFER_FAIL` and the `INVALID_*` of arguments may come from the library itself, the others from a master.
    pub code: Code,
    /// Whether the call may have taken effect.
    pub outcome: Outcome,
    /// The master or store that failed, or `this client`.
    pub at: String,
    /// The reason, as it was given.
    pub why: String,
    /// Advice.
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

    pub(crate) fn unknown(self) -> Self {
        Self { outcome: Outcome::Unknown, ..self }
    }

    /// Whether the call may have taken effect.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.outcome == Outcome::Unknown
    }
}

/// Advice to a person about a code.
fn hint(code: Code) -> &'static str {
    match code {
        Code::NoLeader => "check that a majority of the masters runs and is reachable (`mcctl status`)",
        Code::RpcTimeout | Code::RpcFail => "check the network to that address, or allow a longer deadline",
        Code::VersionSkew => "upgrade the older side",
        Code::WrongCluster => "correct the list of masters, or reconnect if the cluster was replaced",
        Code::NoAvailableHandle => "add stores, remove objects, or wait for an eviction",
        Code::ObjectTooLarge => "split the object, or lend larger segments",
        Code::ObjectHasLease => "wait for the lease to end, or remove with force",
        Code::ResourceExhausted => "send less at a time",
        Code::DiskNearlyFull => "make room in the data directory of that master",
        Code::PutGone => "put again, with a longer deadline if the transfer is slow",
        Code::TransferFail => "check the stores (`mcctl status`), then try again",
        Code::InvalidKey => "use a key of 1 to 4,096 bytes",
        Code::InvalidParams => "correct the arguments",
        Code::OutcomeUnknown => "read to find out, then decide",
        _ => "see the reason",
    }
}

/// Why [`Builder::connect`](crate::Builder::connect) failed. Unreachable masters are not among the reasons: the
/// client starts in local-only mode then and goes on looking for them.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The list of masters names none.
    #[error("the list of masters is empty: name at least one as host:port")]
    NoMasters,
    /// An entry of the list is not an address.
    #[error("the list of masters: {0}")]
    Address(#[from] ParseAddressError),
    /// The tenant's name is too long.
    #[error("tenant name of {len} bytes: at most {max} are allowed")]
    Tenant {
        /// Its bytes.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// Every master that answered speaks other protocol versions.
    #[error("master {address} speaks protocol versions {theirs}, this client {ours}: upgrade the older side")]
    VersionSkew {
        /// The master.
        address: String,
        /// Our versions and software.
        ours: String,
        /// Its versions and software.
        theirs: String,
    },
    /// The masters of the list belong to different clusters.
    #[error("master {address} belongs to cluster {theirs}, the others to cluster {ours}: correct the list")]
    WrongCluster {
        /// The master that differs.
        address: String,
        /// The cluster that answered first.
        ours: String,
        /// Its cluster.
        theirs: String,
    },
}
