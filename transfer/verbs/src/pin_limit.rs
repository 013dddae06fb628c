//! The limit on pinned memory, as the system reports it, for errors that name it.

use std::fmt;

/// Limit on the memory that a process may pin, which registration does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinLimit {
    /// Soft limit in bytes (`RLIMIT_MEMLOCK`); `None`: unlimited.
    pub limit: Option<u64>,
    /// Bytes pinned already, by this process.
    pub pinned: u64,
    /// Whether the process may exceed the limit (`CAP_IPC_LOCK`).
    pub privileged: bool,
}

/// Number of the capability `CAP_IPC_LOCK`.
const CAP_IPC_LOCK: u32 = 14;

impl PinLimit {
    /// Reads the limit of this process.
    #[must_use]
    pub fn of_this_process() -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self::of(limit, &status)
    }

    fn of(limit: Option<u64>, status: &str) -> Self {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = |name| field(name)?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok();
        let capabilities = field("CapEff").and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
        Self {
            limit,
            pinned: kib("VmPin").unwrap_or(0).saturating_mul(1024),
            privileged: capabilities.is_some_and(|all| all >> CAP_IPC_LOCK & 1 == 1),
        }
    }

    /// Whether `more` bytes would exceed the limit.
    #[must_use]
    pub fn is_exceeded_by(&self, more: u64) -> bool {
        !self.privileged && self.limit.is_some_and(|limit| self.pinned.saturating_add(more) > limit)
    }
}

impl fmt::Display for PinLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.limit, self.privileged) {
            (_, true) => write!(
                f,
                "the process may pin any amount (CAP_IPC_LOCK), and has pinned {} bytes",
                self.pinned
            ),
            (None, _) => write!(f, "memlock is unlimited, and the process has pinned {} bytes", self.pinned),
            (Some(limit), false) => write!(
                f,
                "the process may pin {limit} bytes (memlock) and has pinned {}: raise the limit (`ulimit -l unlimited`, \
                 LimitMEMLOCK=infinity in a systemd unit, or the capability IPC_LOCK in a container)",
                self.pinned
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tmc-store\nVmLck:\t       0 kB\nVmPin:\t      64 kB\nCapEff:\t";

    #[test]
    fn the_limit_is_exceeded_only_without_the_privilege() {
        let plain = PinLimit::of(Some(100 << 10), &format!("{STATUS}0000000000000000\n"));
        assert_eq!(plain, PinLimit { limit: Some(100 << 10), pinned: 64 << 10, privileged: false });
        assert!(!plain.is_exceeded_by(36 << 10) && plain.is_exceeded_by((36 << 10) + 1));
        assert!(plain.to_string().contains("LimitMEMLOCK=infinity"), "{plain}");
        let root = PinLimit::of(Some(0), &format!("{STATUS}000001ffffffffff\n"));
        assert!(root.privileged && !root.is_exceeded_by(u64::MAX));
        assert!(!PinLimit::of(None, "").is_exceeded_by(u64::MAX));
        assert!(!PinLimit::of_this_process().to_string().is_empty());
    }
}
