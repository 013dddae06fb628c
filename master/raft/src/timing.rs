use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Heartbeats and election timeouts of a master's Raft node, from its flag `--raft-timing`.
///
/// All masters of a cluster must use the same: a leader computes its lease from it, and voters keep out of elections
/// for as long. Each message has the sender's election timeout, and masters whose timeouts differ refuse each other
/// (docs/adr/0010).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaftTiming {
    /// Interval between a leader's heartbeats.
    pub heartbeat: Duration,
    /// Shortest silence of the leader after which a follower stands for election.
    pub election_min: Duration,
    /// Longest such silence, also the length of the leader's lease.
    pub election_max: Duration,
}

impl RaftTiming {
    /// Masters in one data centre: failover in about half a second, round trips of up to 75 ms.
    pub const LAN: Self = Self::of(50, 150, 300);
    /// Masters in several data centres: failover in about two seconds, round trips of up to 250 ms.
    pub const WAN: Self = Self::of(100, 500, 1_000);

    const fn of(heartbeat_ms: u64, election_min_ms: u64, election_max_ms: u64) -> Self {
        Self {
            heartbeat: Duration::from_millis(heartbeat_ms),
            election_min: Duration::from_millis(election_min_ms),
            election_max: Duration::from_millis(election_max_ms),
        }
    }

    /// Returns the time limit of a heartbeat's answer: three quarters of a minimum election timeout.
    ///
    /// openraft has one heartbeat to a follower under way at a time, and drops an answer that arrives later than its
    /// `heartbeat_interval`. Only an answer renews the lease without which it refuses writes. So that option is the
    /// time limit of an answer here, and [`crate::node::tasks::send_heartbeats`] sets the pace. Each preset supports
    /// round trips of up to half its minimum election timeout; the remaining quarter is for a busy machine. At such a
    /// round trip an answer is at most one pace and two round trips old when the next one comes: 200 of the lease's 300
    /// ms, 600 of 1,000 ms with `wan`.
    ///
    /// It is not longer because openraft checks its election timer every 13/64 of it.
    pub(crate) fn answer_limit(self) -> Duration {
        (self.election_min * 3 / 4).max(self.heartbeat)
    }

    /// Returns the longest time for a sync of the log with which elections succeed: half of the mean election timeout.
    ///
    /// An election takes two syncs one after the other, of the candidate's own vote and of another voter's. If they take
    /// longer, a mean timeout ends, and with it the election, before the vote counts.
    pub(crate) fn longest_sync(self) -> Duration {
        (self.election_min + self.election_max) / 4
    }

    /// Returns the longest round trip between masters that it supports.
    pub(crate) fn supported_round_trip(self) -> Duration {
        self.election_min / 2
    }
}

impl Default for RaftTiming {
    fn default() -> Self {
        Self::LAN
    }
}

impl fmt::Display for RaftTiming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::LAN => f.write_str("lan"),
            Self::WAN => f.write_str("wan"),
            Self { heartbeat, election_min, election_max } => {
                write!(f, "heartbeat {heartbeat:?}, election {election_min:?} to {election_max:?}")
            }
        }
    }
}

impl FromStr for RaftTiming {
    type Err = RaftTimingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "lan" => Ok(Self::LAN),
            "wan" => Ok(Self::WAN),
            other => Err(RaftTimingError(other.to_owned())),
        }
    }
}

/// Error of a text that names no [`RaftTiming`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no Raft timing: use `lan` for masters in one data centre, `wan` for several")]
pub struct RaftTimingError(pub String);

pub(crate) fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_read_back_as_they_are_shown() {
        for preset in [RaftTiming::LAN, RaftTiming::WAN] {
            assert_eq!(preset.to_string().parse(), Ok(preset));
        }
        let odd = RaftTiming { heartbeat: Duration::from_millis(70), ..RaftTiming::LAN };
        assert_eq!(odd.to_string(), "heartbeat 70ms, election 150ms to 300ms");
        let error = "fast".parse::<RaftTiming>().unwrap_err().to_string();
        assert!(error.starts_with("`fast` is no Raft timing: use `lan`"), "{error}");
    }
}
