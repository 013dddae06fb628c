use std::time::Duration;

/// Slowest expected rate of a transfer in bytes per second: the time limit grows by its size at this rate.
const SLOWEST: u128 = 1 << 30;

/// Times of an engine's calls.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time for a connect, and for a call that moves no bytes.
    pub connect: Duration,
    /// Time for a transfer, plus one second for each GiB.
    pub transfer: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connect: Duration::from_secs(5), transfer: Duration::from_secs(30) }
    }
}

impl Limits {
    pub(crate) fn within(&self, bytes: u128) -> Duration {
        self.transfer + Duration::from_secs(u64::try_from(bytes / SLOWEST).unwrap_or(u64::MAX >> 1))
    }
}
