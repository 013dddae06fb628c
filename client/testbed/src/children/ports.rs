//! Ports for children that must know each other's addresses before any of them runs.

use std::collections::HashSet;
use std::net::TcpListener;

use rand::RngExt;

/// Ports below Linux's ephemeral range (32768 and up). In that range an outgoing connection could take the port of a
/// master that is down for a moment, so that the master could not come back.
const RANGE: std::ops::Range<u16> = 12_000..32_000;

/// Draws loopback ports that are free at that moment, each at most once.
#[derive(Debug, Default)]
pub(super) struct Ports {
    taken: HashSet<u16>,
}

impl Ports {
    /// Draws the next free address, `127.0.0.1:port`; `None` when 10,000 random ports were all in use.
    pub(super) fn next_address(&mut self) -> Option<String> {
        for _ in 0..10_000 {
            let port = rand::rng().random_range(RANGE);
            if self.taken.insert(port) && TcpListener::bind(("127.0.0.1", port)).is_ok() {
                return Some(format!("127.0.0.1:{port}"));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_distinct_and_can_be_bound() {
        let mut ports = Ports::default();
        let addresses: HashSet<_> = (0..50).map(|_| ports.next_address().unwrap()).collect();
        assert_eq!(addresses.len(), 50);
        let bound: Vec<_> = addresses.iter().map(|address| TcpListener::bind(address).unwrap()).collect();
        assert_eq!(bound.len(), 50, "all at once");
    }
}
