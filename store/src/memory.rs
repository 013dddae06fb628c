//! How much memory can be lent at all.

use std::fs;

use mc_base::ByteSize;

/// What the kernel and the store itself need besides the segments.
const RESERVE: u64 = 64 << 20;

/// Memory that this process can still get: what the machine has free or can reclaim, or less where a control group
/// says so. `None` where the system does not tell. Filling more than this does not fail: the kernel kills a process.
pub(crate) fn available() -> Option<ByteSize> {
    let machine = meminfo(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let read = |file: &str| fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok();
    let group = room(read("memory.max").as_deref(), read("memory.current").as_deref());
    Some(ByteSize(group.map_or(machine, |group| group.min(machine)).saturating_sub(RESERVE)))
}

/// `MemAvailable` of `/proc/meminfo`, in bytes.
fn meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What a control group leaves; `None` when it sets no limit.
fn room(max: Option<&str>, current: Option<&str>) -> Option<u64> {
    let max: u64 = max?.trim().parse().ok()?;
    Some(max.saturating_sub(current?.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_of_machine_and_group_counts() {
        assert_eq!(meminfo("MemFree: 1 kB\nMemAvailable:   2048 kB\n"), Some(2 << 20));
        assert_eq!(meminfo("MemFree: 1 kB\n"), None);
        assert_eq!(room(Some("max\n"), Some("5\n")), None);
        assert_eq!(room(Some("1000\n"), Some("400\n")), Some(600));
        assert_eq!(room(Some("1000\n"), Some("4000\n")), Some(0));
        assert_eq!(room(None, None), None, "no control group");
    }
}
