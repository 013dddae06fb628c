//! Processor time and memory of processes, from `/proc`.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::latencies::round;

/// CPU time and memory of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// Per cent of one core.
    pub(crate) cpu_percent: f64,
    pub(crate) rss_mib: f64,
}

impl Usage {
    /// Measures the CPU time over `span`, and the resident memory at its end.
    pub(crate) async fn over(pid: u32, span: Duration) -> Result<Self> {
        let (before, began) = (cpu_seconds(pid)?, Instant::now());
        tokio::time::sleep(span).await;
        let cpu = (cpu_seconds(pid)? - before) / began.elapsed().as_secs_f64();
        Ok(Self { cpu_percent: round(cpu * 100.0), rss_mib: round(rss_mib(pid)?) })
    }
}

/// Returns the processor time of a process, in seconds.
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64> {
    let text = read(pid, "stat")?;
    let ticks = cpu_ticks(&text).with_context(|| format!("/proc/{pid}/stat is not as expected: {text}"))?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Reads user and system time from a `/proc/PID/stat`, fields 14 and 15. The name, field 2, may contain spaces.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

fn rss_mib(pid: u32) -> Result<f64> {
    let text = read(pid, "status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    Ok(kib.context("/proc/PID/status of a measured process has no VmRSS: it has probably ended")? / 1024.0)
}

fn read(pid: u32, what: &str) -> Result<String> {
    let path = format!("/proc/{pid}/{what}");
    std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_brackets_does_not_shift_the_fields() {
        let stat = "12 (mc (a) b) S 1 12 12 0 -1 4194560 900 0 0 0 37 5 0 0 20 0 4 0 100 1000 50";
        assert_eq!(cpu_ticks(stat), Some(42));
        assert_eq!(cpu_ticks("12 (cut"), None);
    }
}
