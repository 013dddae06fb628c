use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The faults that a run plans. A test that plans a kill and then checks a run without one proves nothing, so it fails when this
/// value is dropped.
#[derive(Debug, Default)]
pub struct Faults {
    planned: Vec<Fault>,
}

/// One planned fault.
#[derive(Clone, Debug)]
pub struct Fault {
    what: String,
    at_least: u64,
    seen: Arc<AtomicU64>,
}

impl Faults {
    /// Starts without a planned fault.
    pub fn new() -> Self {
        Self::default()
    }

    /// Plans a fault that has to happen at least once. Call [`Fault::happened`] where it does.
    pub fn plan(&mut self, what: impl Into<String>) -> Fault {
        self.plan_times(what, 1)
    }

    /// Plans a fault that has to happen at least `at_least` times.
    pub fn plan_times(&mut self, what: impl Into<String>, at_least: u64) -> Fault {
        let fault = Fault { what: what.into(), at_least, seen: Arc::default() };
        self.planned.push(fault.clone());
        fault
    }
}

/// Fails a run that ends without a planned fault, or in which one did not happen often enough.
impl Drop for Faults {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        assert!(!self.planned.is_empty(), "no fault was planned: this run shows nothing");
        let short = self.planned.iter().filter(|fault| fault.count() < fault.at_least);
        let short =
            short.map(|fault| format!("{} ({} of {} times)", fault.what, fault.count(), fault.at_least));
        let short: Vec<_> = short.collect();
        assert!(short.is_empty(), "planned faults did not happen: {}", short.join("; "));
    }
}

impl Fault {
    /// Records that the fault happened. Call it once the effect shows: after the process is seen dead, not before the
    /// signal is sent.
    pub fn happened(&self) {
        self.seen.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how often it happened.
    pub fn count(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_whose_faults_happened_passes() {
        let mut faults = Faults::new();
        let (kill, drop) = (faults.plan("kill"), faults.plan_times("dropped reply", 2));
        kill.happened();
        drop.happened();
        drop.happened();
    }

    #[test]
    #[should_panic(expected = "dropped reply (1 of 2 times)")]
    fn a_run_in_which_a_planned_fault_did_not_happen_fails() {
        let mut faults = Faults::new();
        faults.plan("kill").happened();
        faults.plan_times("dropped reply", 2).happened();
    }

    #[test]
    #[should_panic(expected = "shows nothing")]
    fn a_run_without_a_planned_fault_fails() {
        drop(Faults::new());
    }
}
