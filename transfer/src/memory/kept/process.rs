use std::fs;

use serde::{Deserialize, Serialize};

/// A process of this run of the machine: ids of processes are used again, together with the time of their start they are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProcessId {
    pid: u32,
    /// In ticks since the machine has started; 0 where the system does not tell.
    started: u64,
}

impl ProcessId {
    /// The process that calls.
    pub(super) fn own() -> Self {
        let pid = std::process::id();
        Self { pid, started: started(pid).unwrap_or(0) }
    }

    /// Whether the process runs, as far as this one sees: one of another container may be out of sight.
    pub(super) fn runs(self) -> bool {
        self != Self::own() && self.started > 0 && started(self.pid) == Some(self.started)
    }
}

/// Returns the time of the start of a process that has not ended.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may hold anything. After it the state is the 1st field, and the time of the start the 20th.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    // A zombie has given back its memory and descriptors, unless it is only the first of several threads.
    let has_ended = matches!(fields.next()?, "Z" | "X") && threads(pid) <= 1;
    fields.nth(18).filter(|_| !has_ended)?.parse().ok()
}

fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_runs_until_it_has_ended() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let id = ProcessId { pid: child.id(), started: started(child.id()).unwrap() };
        assert!(id.runs());
        assert!(!ProcessId { started: id.started + 1, ..id }.runs(), "another one of the same number");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!id.runs());
        assert!(!ProcessId::own().runs(), "nobody waits for itself");
    }
}
