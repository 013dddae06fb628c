//! Memory that this process may still take, by what the machine has available and its control groups allow.

use std::fs;
use std::path::{Path, PathBuf};

const AVAILABLE: &str = "MemAvailable:";

/// Bytes that the process can take without swapping or being killed, and a description of the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Available {
    pub(crate) bytes: u64,
    pub(crate) limit: String,
}

/// Returns the tightest limit on this process; `None` where the system tells none, so that nothing can be checked.
pub(crate) fn available() -> Option<Available> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| field(&text, AVAILABLE));
    let machine =
        machine.map(|bytes| Available { bytes, limit: "available memory of this machine".to_owned() });
    let groups = fs::read_to_string("/proc/self/cgroup").map(|text| group_dirs(&text)).unwrap_or_default();
    groups.iter().filter_map(|group| group.available()).chain(machine).min_by_key(|available| available.bytes)
}

/// Returns the bytes of the machine's memory; `None` where the system does not tell.
pub(crate) fn of_machine() -> Option<u64> {
    field(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

/// Parses a field of /proc/meminfo; returns bytes.
fn field(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// A control group's directory and the names of its files, which differ between the two versions.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    dir: PathBuf,
    limit: &'static str,
    usage: &'static str,
    reclaimable: &'static str,
}

/// Lists the groups that limit this process, innermost first, from /proc/self/cgroup. In a container the path may be
/// the host's, of which only the mounted root is visible. Missing directories are skipped when read.
fn group_dirs(cgroup: &str) -> Vec<Group> {
    let mut groups = Vec::new();
    for line in cgroup.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let (root, limit, usage, reclaimable) = if number == "0" && controllers.is_empty() {
            ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file ")
        } else if controllers.split(',').any(|name| name == "memory") {
            (
                "/sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file ",
            )
        } else {
            continue;
        };
        for ancestor in Path::new(path.trim_start_matches('/')).ancestors() {
            groups.push(Group { dir: Path::new(root).join(ancestor), limit, usage, reclaimable });
        }
    }
    groups
}

impl Group {
    fn available(&self) -> Option<Available> {
        let read = |name: &str| fs::read_to_string(self.dir.join(name)).ok();
        let stat = read("memory.stat").unwrap_or_default();
        let bytes = group_available(&read(self.limit)?, &read(self.usage)?, &stat, self.reclaimable)?;
        Some(Available { bytes, limit: format!("limit of the control group {}", self.dir.display()) })
    }
}

/// Returns the limit less the usage, plus the page cache that the kernel would drop first; `None` without a limit.
fn group_available(limit: &str, usage: &str, stat: &str, reclaimable: &str) -> Option<u64> {
    let limit: u64 = limit.trim().parse().ok()?;
    let usage: u64 = usage.trim().parse().ok()?;
    let cache =
        stat.lines().find_map(|line| line.strip_prefix(reclaimable)?.trim().parse().ok()).unwrap_or(0u64);
    // Version 1 writes "no limit" as the largest multiple of a page.
    (limit < 1 << 62).then(|| limit.saturating_sub(usage.saturating_sub(cache)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_bytes() {
        let text = "MemTotal:       24684000 kB\nMemFree: 1 kB\nMemAvailable:   24320000 kB\n";
        assert_eq!(field(text, AVAILABLE), Some(24_320_000 * 1024));
        assert_eq!(field("MemTotal: 1 kB\n", AVAILABLE), None);
        assert_eq!(field("MemAvailable: many kB\n", AVAILABLE), None);
    }

    #[test]
    fn both_versions_of_groups_are_found_with_their_ancestors() {
        let dirs =
            |text| group_dirs(text).into_iter().map(|g| g.dir.display().to_string()).collect::<Vec<_>>();
        assert_eq!(dirs("0::/a/b\n"), ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup/"]);
        assert_eq!(
            dirs("9:name=systemd:/\n4:memory:/x\n3:cpu:/y\nnonsense\n"),
            ["/sys/fs/cgroup/memory/x", "/sys/fs/cgroup/memory/"]
        );
    }

    #[test]
    fn a_group_without_a_limit_does_not_limit() {
        assert_eq!(group_available("max\n", "5\n", "", "inactive_file "), None);
        assert_eq!(group_available("9223372036854771712\n", "5\n", "", "total_inactive_file "), None);
    }

    #[test]
    fn droppable_cache_counts_as_available() {
        let stat = "cache 70\ninactive_file 30\nactive_file 40\n";
        assert_eq!(group_available("100\n", "90\n", stat, "inactive_file "), Some(40));
        assert_eq!(group_available("100\n", "190\n", "", "inactive_file "), Some(0));
    }
}
