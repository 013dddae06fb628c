use std::sync::Arc;
use std::time::Duration;

use mc_net::{ExpectedStore, Tls};

use super::progress::LOOKS;
use crate::checksum::Sums;

/// Options of the client's connections.
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// Maximum number of connections to one store, default 4, beside two that small calls share. More carry more calls at once
    /// and stripe wider; each costs both ends a socket and its buffers.
    pub connections_per_peer: usize,
    /// Longest time for a connect and its hello, default 300 ms.
    pub connect_timeout: Duration,
    /// Time after which a store that moves no byte for calls that have connections to it is taken for dead, default 400
    /// ms; every call that waits for it then fails. A shorter time finds dead stores sooner, a longer one tolerates
    /// slower ones. The wait for a connection does not count.
    pub stall_timeout: Duration,
    /// Size of a stripe, default 4 MiB, at least 1 MiB: a batch uses one connection for each multiple of it. Smaller
    /// stripes use more connections for smaller objects, and cost more wake-ups.
    pub stripe_bytes: u64,
    /// Bytes of which answers carry checksums. Default: all.
    pub sums: Sums,
    /// Certificates for TLS with stores, as far as their level insists. Default: none, and connections are plain.
    pub tls: Option<Arc<Tls>>,
    /// Store whose certificate must be shown, where the endpoint names none. Default: any store.
    pub store: Option<ExpectedStore>,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            connections_per_peer: 4,
            connect_timeout: Duration::from_millis(300),
            stall_timeout: Duration::from_millis(400),
            stripe_bytes: 4 << 20,
            sums: Sums::All,
            tls: None,
            store: None,
        }
    }
}

impl TcpOptions {
    /// Returns the time between two looks at whether a connection moves bytes.
    pub(crate) fn look_every(&self) -> Duration {
        (self.stall_timeout / LOOKS).clamp(Duration::from_millis(1), Duration::from_secs(3600))
    }
}
