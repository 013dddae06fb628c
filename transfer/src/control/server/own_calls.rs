use parking_lot::{RwLock, RwLockReadGuard};

/// Whether calls of this process may change the memory, and take what they have read: while the server serves.
#[derive(Default)]
pub(crate) struct OwnCalls(RwLock<bool>);

/// Period in which calls of this process may use the memory. Dropping it ends the period, once no call is in a step.
pub(crate) struct Admission<'a>(&'a OwnCalls);

impl OwnCalls {
    pub(crate) fn admit(&self) -> Admission<'_> {
        *self.0.write() = true;
        Admission(self)
    }

    /// Keeps the server from ending for one step; `None` if it has ended.
    pub(crate) fn step(&self) -> Option<RwLockReadGuard<'_, bool>> {
        let admitted = self.0.read();
        admitted.then_some(admitted)
    }
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        *self.0.0.write() = false;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn the_end_waits_for_a_step_and_lets_no_other_one_begin() {
        let calls = OwnCalls::default();
        assert!(calls.step().is_none(), "not served yet");
        let admission = calls.admit();
        let (step, ended) = (calls.step().unwrap(), &AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(move || {
                drop(admission);
                ended.store(true, Ordering::SeqCst);
            });
            // The end waits, and what comes later waits behind it.
            while calls.0.try_read().is_some() {
                thread::yield_now();
            }
            assert!(!ended.load(Ordering::SeqCst));
            drop(step);
        });
        assert!(calls.step().is_none());
    }
}
