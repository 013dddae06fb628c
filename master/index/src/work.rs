//! Work on the index, counted in builds for tests: a bound on it holds on any machine, other than one on time.

/// Counts steps of a loop or a search whose length depends on the index: a look-up, or an item that a loop passes. Shipped
/// builds count nothing.
#[inline]
pub fn count_work(steps: usize) {
    #[cfg(feature = "testing")]
    STEPS.set(STEPS.get() + steps as u64);
    #[cfg(not(feature = "testing"))]
    let _ = steps;
}

#[cfg(feature = "testing")]
thread_local! {
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Does some work, and returns its result with the number of steps that it took on this thread.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub fn steps_of<R>(work: impl FnOnce() -> R) -> (R, u64) {
    let before = STEPS.get();
    let result = work();
    (result, STEPS.get() - before)
}
