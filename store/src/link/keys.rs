use std::time::Duration;

use mc_types::GrantKey;
use parking_lot::Mutex;

use super::Registration;

/// Age at which a key is replaced, and how much later some stores may do it than others.
const AGE: Duration = Duration::from_secs(24 * 3600);
const AGE_SPREAD: Duration = Duration::from_secs(2 * 3600);
/// Period over which the stores of a cluster replace keys that have travelled in the clear, once TLS is required.
const EXPOSED_SPREAD: Duration = Duration::from_secs(10);
/// Least time between two changes: the masters and the data server hold one earlier key.
const REST: Duration = GrantKey::OVERLAP.saturating_mul(2);

/// The key of the grants on a store's memory, and when the next one is due. Times are those of the store's clock.
pub(crate) struct Keys(Mutex<State>);

struct State {
    offered: GrantKey,
    /// Whether no master has the offered key yet, but the one before.
    is_new: bool,
    exposed: Exposed,
    /// Earliest time of the next change.
    not_before: Duration,
    due: Duration,
}

/// Whether the offered key may have travelled in the clear: in a mount, or from master to master.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Exposed {
    No,
    Yes,
    /// Yes, and TLS is required by now. So it is due soon.
    Due,
}

impl Keys {
    /// The first key of a process under an epoch.
    pub(crate) fn of(registration: Registration, now: Duration) -> Self {
        // The key of the process before is the earlier one.
        let replaces_another = registration.incarnation > 1;
        Self(Mutex::new(State {
            offered: registration.key,
            is_new: false,
            exposed: Exposed::No,
            not_before: if replaces_another { now + REST } else { now },
            due: now + spread(AGE, AGE_SPREAD),
        }))
    }

    /// The key that mounts name.
    pub(crate) fn offered(&self) -> GrantKey {
        self.0.lock().offered
    }

    /// Whether masters have to be told the offered key.
    pub(crate) fn is_new(&self) -> bool {
        self.0.lock().is_new
    }

    /// Draws the next key if it is due. `requires_tls`: whether the cluster requires TLS, so that keys travel encrypted everywhere.
    ///
    /// Call it for each heartbeat: it also notes whether the present key was exposed.
    pub(crate) fn next(&self, now: Duration, requires_tls: bool) -> Option<GrantKey> {
        let mut state = self.0.lock();
        match (requires_tls, state.exposed) {
            (false, _) => state.exposed = Exposed::Yes,
            (true, Exposed::Yes) => {
                state.exposed = Exposed::Due;
                state.due = state.due.min(now + spread(Duration::ZERO, EXPOSED_SPREAD));
            }
            (true, Exposed::No | Exposed::Due) => {}
        }
        if state.is_new || now < state.due.max(state.not_before) {
            return None;
        }
        let exposed = if requires_tls { Exposed::No } else { Exposed::Yes };
        *state = State {
            offered: GrantKey::random(),
            is_new: true,
            exposed,
            not_before: state.not_before,
            due: now + spread(AGE, AGE_SPREAD),
        };
        Some(state.offered)
    }

    /// Records that a master has mounted the memory with `key`. Returns whether it has that from now on.
    pub(crate) fn mounted(&self, key: GrantKey, now: Duration) -> bool {
        let mut state = self.0.lock();
        let is_news = state.is_new && state.offered == key;
        if is_news {
            (state.is_new, state.not_before) = (false, now + REST);
        }
        is_news
    }
}

fn spread(least: Duration, by: Duration) -> Duration {
    least + by.mul_f64(rand::random_range(0.0..1.0))
}

#[cfg(test)]
mod tests {
    use mc_types::SegmentEpoch;

    use super::*;

    const FIRST: GrantKey = GrantKey([1; 32]);
    const FIRST_OF_ALL: Registration = Registration { epoch: SegmentEpoch(1), incarnation: 1, key: FIRST };
    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_key_is_replaced_each_day() {
        let keys = Keys::of(FIRST_OF_ALL, HOUR);
        assert_eq!(keys.next(24 * HOUR, true), None);
        let second = keys.next(27 * HOUR, true).unwrap();
        assert!(second != FIRST && keys.offered() == second && keys.is_new());
        assert_eq!(keys.next(100 * HOUR, true), None, "no master has it yet");
        assert!(!keys.mounted(FIRST, 100 * HOUR), "a mount that was under way");
        assert!(keys.mounted(second, 100 * HOUR) && !keys.is_new());
        assert!(!keys.mounted(second, 100 * HOUR), "a further mount");
        assert_eq!(keys.next(100 * HOUR + REST / 2, true), None);
        assert!(keys.next(100 * HOUR + REST, true).is_some(), "overdue by now");
    }

    #[test]
    fn a_key_that_travelled_in_the_clear_is_replaced_once_tls_is_required() {
        let keys = Keys::of(FIRST_OF_ALL, HOUR);
        for _ in 0..100 {
            assert_eq!(keys.next(2 * HOUR, false), None);
        }
        keys.next(2 * HOUR, true);
        let second = keys.next(2 * HOUR + EXPOSED_SPREAD, true).unwrap();
        assert!(keys.mounted(second, 3 * HOUR));
        assert_eq!(keys.next(4 * HOUR, true), None, "this one did not");
        // The level falls and rises again.
        assert_eq!(keys.next(5 * HOUR, false), None);
        keys.next(5 * HOUR, true);
        assert!(keys.next(5 * HOUR + EXPOSED_SPREAD, true).is_some());
    }

    #[test]
    fn the_key_of_the_process_before_counts_for_its_time() {
        let keys = Keys::of(Registration { incarnation: 2, ..FIRST_OF_ALL }, HOUR);
        keys.next(HOUR, false);
        keys.next(HOUR, true);
        assert_eq!(keys.next(HOUR + EXPOSED_SPREAD, true), None);
        assert!(keys.next(HOUR + REST + EXPOSED_SPREAD, true).is_some());
    }
}
