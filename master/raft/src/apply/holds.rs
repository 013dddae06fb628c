//! Work under the index's lock, counted in builds for tests.

#[cfg(feature = "testing")]
use std::{collections::BTreeMap, panic::Location};

/// Most steps of one hold of the lock (see [`mc_index::count_work`]), for each place in the code that takes it.
#[cfg(feature = "testing")]
pub(crate) type WorkOfHolds = BTreeMap<Location<'static>, u64>;

/// Counts the work of each hold of a lock. Shipped builds count nothing.
#[derive(Debug, Default)]
pub(super) struct Holds {
    #[cfg(feature = "testing")]
    most: parking_lot::Mutex<WorkOfHolds>,
}

impl Holds {
    /// Does the work of a hold.
    #[cfg_attr(feature = "testing", track_caller)]
    #[inline]
    pub(super) fn count<R>(&self, work: impl FnOnce() -> R) -> R {
        #[cfg(feature = "testing")]
        let place = *Location::caller();
        #[cfg(feature = "testing")]
        let work = || {
            let (result, steps) = mc_index::steps_of(work);
            let mut most = self.most.lock();
            let most = most.entry(place).or_default();
            *most = steps.max(*most);
            result
        };
        work()
    }

    #[cfg(feature = "testing")]
    pub(super) fn take(&self) -> WorkOfHolds {
        std::mem::take(&mut *self.most.lock())
    }
}
