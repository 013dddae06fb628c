//! How bytes go between this process and the stores that it has called.

use mc_types::StoreId;

/// The transports to one store, as far as this process has tried them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerReport {
    /// The store.
    pub store: StoreId,
    /// Address of its memory.
    pub address: String,
    /// The transports, the best one first. Bytes go by the first usable one, as far as this process knows; a few of them by TCP anyway,
    /// because they are not worth more than a request.
    pub transports: Vec<PeerTransport>,
}

/// One transport to a store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerTransport {
    /// Its name: shm, rdma or tcp.
    pub name: &'static str,
    /// Whether bytes can go by it.
    pub usable: bool,
    /// How it is used, or why it is not.
    pub how: String,
    /// Bytes of this process that went by it. For TCP these are all on the present connections, also requests.
    pub bytes: u64,
}

impl PeerTransport {
    pub(crate) fn usable(name: &'static str, how: impl Into<String>) -> Self {
        Self { name, usable: true, how: how.into(), bytes: 0 }
    }

    pub(crate) fn unusable(name: &'static str, why: impl Into<String>) -> Self {
        Self { name, usable: false, how: why.into(), bytes: 0 }
    }

    pub(crate) fn moved(self, bytes: u64) -> Self {
        Self { bytes, ..self }
    }
}

/// Reason for a transport that no call has tried, because none had enough bytes for it.
pub(crate) const UNTRIED: &str = "not tried yet";
