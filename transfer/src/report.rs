//! Reports which transports carry bytes between this process and the stores that it has called.

use mc_types::StoreId;

/// The transports to one store, as far as this process has tried them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerReport {
    /// The store.
    pub store: StoreId,
    /// Address of its memory.
    pub address: String,
    /// The transports, the best one first. Bytes go by the first one that is usable, as far as this process knows. A
    /// small transfer goes by TCP anyway, within its request or answer.
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
    /// How the transport is used, or the reason why it is not.
    pub how: String,
    /// Bytes of this process that the transport has carried. For TCP: all bytes on the present connections, requests
    /// included.
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
