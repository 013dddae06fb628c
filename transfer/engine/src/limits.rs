use std::time::Duration;

/// Bytes a second that a transfer may be as slow as, beyond its base time.
const SLOWEST: u128 = 1 << 30;

/// Times of an engine's calls.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For a connection, and for a call that moves no bytes.
    pub connect: Duration,
    /// For a transfer; each GiB adds a second.
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
