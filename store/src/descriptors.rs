//! Which of this process's descriptors are for data connections.

use rustix::process::{Resource, getrlimit};

/// Left for the rest: heartbeats and the search for a leader, HTTP, segments, logs, and connections that are being refused.
const RESERVED: u64 = 256;
/// Four each of 10,000 clients, and some more. With all of them idle this is a few hundred megabytes, half of it the
/// kernel's.
const MOST: u64 = 1 << 16;

/// Most data connections under the present limit.
pub(crate) fn max_connections() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    usize::try_from(connections_of(limit.unwrap_or(u64::MAX))).unwrap_or(usize::MAX)
}

/// Where there are few descriptors, half of them.
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
