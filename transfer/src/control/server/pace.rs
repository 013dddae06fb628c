use std::time::Duration;

/// Least rate of a peer in the middle of a message, in bytes per second. A store has some hundred connections and a network card
/// of 1 Gbit/s or more, which leave each of them more than that.
const LEAST_RATE: u64 = 64 << 10;

/// Bounds the waits for a peer within one message. A peer that moves a byte now and then would never stall, and keep its place
/// and the memory that it names for days.
///
/// Only waits count: the peer is not to blame for the time that this process needs.
#[derive(Debug)]
pub(crate) struct Pace {
    stall: Duration,
    waited: Duration,
    moved: u64,
}

impl Pace {
    /// Creates the pace of a first message. `stall` is its longest wait for a byte.
    pub(crate) fn new(stall: Duration) -> Self {
        Self { stall, waited: Duration::ZERO, moved: 0 }
    }

    /// Resets the budget at the start of a message.
    pub(crate) fn begin(&mut self) {
        *self = Self::new(self.stall);
    }

    /// Counts bytes in either direction.
    pub(crate) fn moved(&mut self, bytes: usize) {
        self.moved = self.moved.saturating_add(bytes as u64);
    }

    pub(crate) fn waited(&mut self, time: Duration) {
        self.waited = self.waited.saturating_add(time);
    }

    /// Longest time of the next wait.
    pub(crate) fn next_wait(&self) -> Duration {
        let for_bytes = Duration::from_millis(self.moved.saturating_mul(1_000) / LEAST_RATE);
        self.stall.min(self.stall.saturating_add(for_bytes).saturating_sub(self.waited))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL: Duration = Duration::from_secs(10);

    /// Time after which a peer that moves so many bytes each time, and lets this end wait in between, is too slow; `None` if it
    /// moves all of the message.
    fn cut_off_after(len: usize, each: usize, wait: Duration) -> Option<Duration> {
        let mut pace = Pace::new(STALL);
        for _ in 0..len.div_ceil(each) {
            if pace.next_wait() < wait {
                return Some(pace.waited);
            }
            pace.waited(wait);
            pace.moved(each);
        }
        None
    }

    #[test]
    fn a_peer_that_trickles_is_cut_off_and_a_slow_one_is_not() {
        assert_eq!(cut_off_after(1 << 20, 1, Duration::from_secs(9)), Some(Duration::from_secs(9)));
        assert_eq!(cut_off_after(1 << 30, 1_000, Duration::from_secs(1)), Some(Duration::from_secs(10)));
        assert_eq!(cut_off_after(1 << 30, LEAST_RATE as usize, Duration::from_secs(1)), None);
        assert_eq!(cut_off_after(1 << 30, 1 << 20, Duration::from_secs(9)), None, "in bursts");
    }

    #[test]
    fn each_message_has_its_own_time() {
        let mut pace = Pace::new(STALL);
        pace.waited(STALL);
        assert_eq!(pace.next_wait(), Duration::ZERO);
        pace.begin();
        assert_eq!(pace.next_wait(), STALL);
        pace.moved(usize::MAX);
        assert_eq!(pace.next_wait(), STALL, "no single wait is longer");
    }
}
