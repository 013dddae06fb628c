use std::fmt;

use mc_discovery::versions;
use mc_proto::VERSIONS;
use mc_types::{ClusterId, Code};

use crate::{ConnectError, Error};

/// Name and version of this client in a hello.
pub(crate) const SOFTWARE: &str = concat!("mc-client ", env!("CARGO_PKG_VERSION"));

/// Reason why the client does not use a master that answers. Its texts name both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The master speaks other protocol versions.
    Skew { address: String, theirs: String },
    /// The master belongs to another cluster.
    Cluster { address: String, ours: ClusterId, theirs: ClusterId },
}

impl Refusal {
    pub(crate) fn error(&self, what: &'static str) -> Error {
        let (code, address) = match self {
            Self::Skew { address, .. } => (Code::VersionSkew, address),
            Self::Cluster { address, .. } => (Code::WrongCluster, address),
        };
        Error::definite(what, code, address.as_str(), self.to_string())
    }

    pub(crate) fn connect_error(&self) -> ConnectError {
        match self.clone() {
            Self::Skew { address, theirs } => {
                ConnectError::VersionSkew { address, ours: our_versions(), theirs }
            }
            Self::Cluster { address, ours, theirs } => {
                ConnectError::WrongCluster { address, ours: ours.to_string(), theirs: theirs.to_string() }
            }
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Skew { address, theirs } => write!(
                f,
                "master {address} speaks protocol versions {theirs}, this client {}",
                our_versions()
            ),
            Self::Cluster { address, ours, theirs } => {
                write!(f, "master {address} belongs to cluster {theirs}, this client to cluster {ours}")
            }
        }
    }
}

fn our_versions() -> String {
    versions(&VERSIONS, SOFTWARE)
}
