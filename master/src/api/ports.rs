//! Shares of the ports in this process's descriptors.
//!
//! The log, the snapshots and the connections to the other masters get their part first. A flood on one port then stops
//! neither the log nor the other ports.

use std::sync::Arc;

use mc_net::{Greeting, Room, Rules};
use mc_process::{descriptor_limit, http};

/// Most descriptors that are not for accepted connections: the log's files, snapshots, three connections to each other
/// master, those over which requests are passed on, and the runtimes' own.
const OWN: usize = 512;
/// Most connections of other masters: each has three, and as many again while it reconnects.
const RAFT: usize = 128;

/// Fewest places that are kept for stores.
const STORES_MIN: usize = 3;

/// Most connections that each port may have.
#[derive(Debug, PartialEq, Eq)]
struct Shares {
    /// Clients and stores. A quarter, and three at least, is kept for stores, so that the pool's memory stays within reach.
    clients: Room,
    raft: Room,
}

impl Shares {
    /// Returns the shares under a limit of `limit` descriptors. Each HTTP port takes its own
    /// ([`http::most_connections`]).
    fn of(limit: usize, http_ports: usize) -> Self {
        let accepted = limit - OWN.min(limit / 2);
        let raft = RAFT.min(accepted / 2);
        let clients = (accepted - raft).saturating_sub(http_ports * http::most_connections(limit));
        let kept = (clients / 4).max(STORES_MIN);
        Self { clients: Room { most: clients, kept }, raft: Room { most: raft, kept: raft / 2 } }
    }
}

/// Returns the maximum number of HTTP requests that are passed on to the leader at a time, each over a connection of
/// its own.
pub(crate) fn passed_on() -> usize {
    passed_on_of(descriptor_limit())
}

/// Returns their share under a limit of `limit` descriptors: a small part of those that are not for accepted connections.
fn passed_on_of(limit: usize) -> usize {
    (limit / 64).clamp(1, 32)
}

/// Returns the rules of the port for clients and stores, beside a number of HTTP ports.
pub(crate) fn for_clients(http_ports: usize) -> Rules {
    Rules {
        users: "clients and stores",
        greeting: Greeting::Http2,
        room: Arc::new(move || Shares::of(descriptor_limit(), http_ports).clients),
        lifetime: None,
    }
}

/// Returns the rules of the Raft port.
pub(crate) fn for_masters() -> Rules {
    Rules {
        users: "masters",
        greeting: Greeting::Http2,
        // The same beside any number of HTTP ports.
        room: Arc::new(|| Shares::of(descriptor_limit(), 1).raft),
        lifetime: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_are_passed_on_leave_most_to_the_log() {
        for limit in [64, 256, 1_024, 20_000, 1 << 30] {
            assert!(passed_on_of(limit) * 16 <= OWN.min(limit / 2), "of {limit}");
        }
    }

    #[test]
    fn each_port_gets_its_share_and_the_log_keeps_its_own() {
        let limits = [64, 256, 1_024, 20_000, 65_536, 1 << 30];
        for (limit, ports) in limits.iter().flat_map(|limit| [(*limit, 1), (*limit, 2)]) {
            let Shares { clients, raft } = Shares::of(limit, ports);
            let accepted = clients.most + raft.most + ports * http::most_connections(limit);
            assert!(accepted <= limit - OWN.min(limit / 2), "of {limit}: {clients:?} {raft:?}");
            assert!(raft.most >= 16, "of {limit}: three masters and their reconnecting");
            assert!(clients.kept >= 3, "of {limit}: {clients:?}");
        }
        assert_eq!(Shares::of(64, 1).clients, Room { most: 12, kept: 3 });
        assert_eq!(
            [1_024, 65_536].map(|limit| Shares::of(limit, 1).clients.most),
            [320, 62_848],
            "as documented"
        );
        // `mcctl bench fleet` has four descriptors for each client, and wants a limit of 4,000 above all.
        let fleet = Shares::of(4_000 + 1_000 * 12 + 1_000 * 4, 1).clients;
        assert!(fleet.most - fleet.kept > 2 * 2_000, "{fleet:?}");
    }
}
