//! Log lines of a gate: one a minute, however many connections come.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

/// Least time between two lines of a port.
const EACH: Duration = Duration::from_secs(60);

/// Counts of a port since its last line.
pub(super) struct Log {
    address: SocketAddr,
    users: &'static str,
    last: Option<Instant>,
    closed: u64,
    refused: u64,
}

impl Log {
    pub(super) fn new(address: SocketAddr, users: &'static str) -> Self {
        Self { address, users, last: None, closed: 0, refused: 0 }
    }

    /// A silent connection made room for a new one.
    pub(super) fn closed_for_another(&mut self, most: usize) {
        self.closed += 1;
        self.tell(most);
    }

    /// A connection found no place.
    pub(super) fn refused(&mut self, most: usize) {
        self.refused += 1;
        self.tell(most);
    }

    pub(super) fn out_of_descriptors(&mut self, error: &io::Error) {
        if self.is_due() {
            let (address, users) = (self.address, self.users);
            tracing::warn!(
                "cannot accept connections of {users} at {address}: {error}. Raise the limit on open files (LimitNOFILE, \
                 ulimit -n), and look who connects: ss -tnp sport = :{}",
                address.port()
            );
        }
    }

    fn tell(&mut self, most: usize) {
        if self.is_due() {
            let Self { address, users, closed, refused, .. } = self;
            tracing::warn!(
                "all {most} places for {users} at {address} are taken: closed {closed} silent connections and refused \
                 {refused} new ones in the last minute. Look who connects (ss -tnp sport = :{}), or raise the limit on \
                 open files (LimitNOFILE, ulimit -n), of which this port gets a share",
                address.port()
            );
            (self.closed, self.refused) = (0, 0);
        }
    }

    /// Whether a line is due, which is then written.
    fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let due = self.last.is_none_or(|last| now.duration_since(last) >= EACH);
        if due {
            self.last = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_makes_one_line_a_minute() {
        let mut log = Log::new(([127, 0, 0, 1], 1).into(), "tests");
        let lines = (0..1_200).filter(|_| log.is_due()).count();
        assert_eq!(lines, 1);
        tokio::time::advance(EACH).await;
        assert!(log.is_due() && !log.is_due());
    }
}
