//! The share of this process's descriptors that data connections may use.

use rustix::process::{Resource, getrlimit};

/// Descriptors reserved for the rest: heartbeats and the search for a leader, HTTP, segments, logs, and connections
/// that are being refused.
const RESERVED: u64 = 256;
/// Most data connections: four for each of 10,000 clients, and some to spare. If all are idle, they take a few hundred
/// megabytes, half of it in the kernel.
const MOST: u64 = 1 << 16;

/// Returns the most data connections under the present descriptor limit, and the most of them with RDMA, which takes a descriptor
/// more: `pairs` at most.
pub(crate) fn share(pairs: usize) -> (usize, usize) {
    let limit = getrlimit(Resource::Nofile).current;
    let all = usize::try_from(connections_of(limit.unwrap_or(u64::MAX))).unwrap_or(usize::MAX);
    let pairs = pairs.min(all / 4);
    (all - pairs, pairs)
}

/// Returns `limit` less [`RESERVED`], or half of it where descriptors are few, and at most [`MOST`].
fn connections_of(limit: u64) -> u64 {
    limit.saturating_sub(RESERVED).max(limit / 2).min(MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_descriptors_are_left_whatever_the_limit() {
        assert_eq!(connections_of(256), 128);
        assert_eq!(connections_of(1_024), 768);
        assert_eq!(connections_of(20_000), 19_744);
        assert_eq!(connections_of(u64::MAX), 65_536);
    }
}
