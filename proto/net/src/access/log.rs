use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::denied::Denied;

/// Least time between two lines.
const EACH: Duration = Duration::from_secs(60);

/// Log of denials: one line a minute, however many there are.
#[derive(Debug, Default)]
pub(super) struct Log {
    last: Option<Instant>,
    /// Denials since the last line.
    denied: u64,
}

impl Log {
    pub(super) fn denied(&mut self, from: Option<SocketAddr>, why: &Denied) {
        if let Some(denied) = self.due() {
            let from = from.map_or_else(|| "a caller".to_owned(), |from| from.to_string());
            tracing::warn!("denied {denied} calls since the last such line, this one from {from}: {why}");
        }
    }

    /// Counts a denial; returns the number of those that a line is due for.
    fn due(&mut self) -> Option<u64> {
        self.denied += 1;
        let now = Instant::now();
        if self.last.is_some_and(|last| now.duration_since(last) < EACH) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.denied))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_makes_one_line_a_minute_that_counts_it() {
        let mut log = Log::default();
        assert_eq!(log.due(), Some(1));
        assert!((0..1_000).all(|_| log.due().is_none()));
        tokio::time::advance(EACH).await;
        assert_eq!((log.due(), log.due()), (Some(1_001), None));
    }
}
