use std::time::Duration;

use mc_index::{Settings, Stamp};
use mc_types::{Clock, ClusterTime, MAX_GRANT_LIFETIME, PutId, StoreId};
use parking_lot::RwLock;

use super::leases::Leases;
use super::liveness::Liveness;

/// One term of leadership: its clock, its leases, its view of the stores.
#[derive(Debug)]
pub(crate) struct Leading {
    /// The term.
    pub(crate) term: u64,
    /// Liveness of the stores.
    pub(crate) liveness: Liveness,
    leases: Leases,
    terms: RwLock<Terms>,
    clock: Clock,
    /// Cluster time when this began, and what the clock showed then.
    base: ClusterTime,
    origin: Duration,
}

/// Limits from the cluster's settings: leases and puts.
#[derive(Clone, Copy, Debug)]
struct Terms {
    read_lease: Duration,
    /// The longest that read leases have been in this term.
    longest_lease: Duration,
    put_deadline_max: Duration,
}

impl Terms {
    fn of(settings: &Settings) -> Self {
        let read_lease = Duration::from_millis(settings.read_lease_ms).min(MAX_GRANT_LIFETIME);
        Self {
            read_lease,
            longest_lease: read_lease,
            put_deadline_max: Duration::from_millis(settings.put_deadline_max_ms).min(MAX_GRANT_LIFETIME),
        }
    }
}

impl Leading {
    /// Begins a term. `applied` is the state's time once an entry of this term is applied: every stamp that any earlier
    /// leader got committed is at or before it.
    pub(crate) fn begin(term: u64, applied: ClusterTime, settings: &Settings, clock: Clock) -> Self {
        let origin = clock.now();
        Self {
            term,
            liveness: Liveness::new(Duration::from_millis(settings.store_suspect_ms), origin),
            leases: Leases::new(),
            terms: RwLock::new(Terms::of(settings)),
            clock,
            base: applied,
            origin,
        }
    }

    /// The cluster's settings have changed.
    pub(crate) fn adopt(&self, settings: &Settings) {
        let mut terms = self.terms.write();
        let longest_lease = terms.longest_lease;
        *terms = Terms::of(settings);
        terms.longest_lease = terms.read_lease.max(longest_lease);
        self.liveness.suspect_after(Duration::from_millis(settings.store_suspect_ms));
    }

    /// This process's monotonic clock.
    pub(crate) fn elapsed(&self) -> Duration {
        self.clock.now()
    }

    /// Cluster time now.
    pub(crate) fn now(&self) -> ClusterTime {
        let led = self.clock.now().saturating_sub(self.origin);
        ClusterTime(self.base.0 + u64::try_from(led.as_millis()).unwrap_or(u64::MAX - self.base.0))
    }

    /// How long this term has been led here.
    pub(crate) fn age(&self) -> Duration {
        self.clock.now().saturating_sub(self.origin)
    }

    /// Length of a read lease.
    pub(crate) fn read_lease(&self) -> Duration {
        self.terms.read().read_lease
    }

    /// The deadlines of puts that start now, by what each asks for in ms (0: the default of 30 s).
    pub(crate) fn put_deadlines(&self) -> impl Fn(u64) -> ClusterTime + use<> {
        let (now, longest) = (self.now(), self.terms.read().put_deadline_max);
        move |asked_ms| {
            let asked = Duration::from_millis(if asked_ms == 0 { 30_000 } else { asked_ms });
            now.after(asked.min(longest))
        }
    }

    /// A stamp for a command that is proposed now.
    pub(crate) fn stamp(&self) -> Stamp {
        Stamp {
            now: self.now(),
            term: self.term,
            seed: rand::random(),
            suspects: self.liveness.suspects().to_vec(),
        }
    }

    /// Notes that somebody was told where `version` lies.
    pub(crate) fn lease(&self, version: PutId) {
        self.leases.grant(version, self.now().after(self.read_lease()));
    }

    /// Whether a lease granted in this term runs on `version`.
    ///
    /// Leases of earlier terms are not known. They refuse nothing: a remove succeeds, and its bytes are held past the
    /// end of any of them (see [`Self::hold_until`]).
    pub(crate) fn is_leased(&self, version: PutId) -> bool {
        self.leases.holds(version, self.now())
    }

    /// Until when the bytes of a version are kept that a command proposed now removes or replaces.
    ///
    /// A read may be granted until that command is applied, and holds for one lease from then. So two leases from now
    /// outlast every reader, those of earlier terms included, if the command is applied within one lease. Nothing
    /// enforces that (disks of a majority may stall while heartbeats go on): then the store's fence refuses the late
    /// reader, which every transport that bytes are read over today has. See docs/adr/0005. The same goes for a lease of an
    /// earlier term that was granted before the setting was made shorter.
    pub(crate) fn hold_until(&self) -> ClusterTime {
        self.now().after(2 * self.terms.read().longest_lease)
    }

    /// Forgets ended leases.
    pub(crate) fn sweep_leases(&self) {
        self.leases.sweep(self.now());
    }

    /// Leases that are remembered.
    pub(crate) fn lease_count(&self) -> usize {
        self.leases.len()
    }

    /// Whether `store` is offered.
    pub(crate) fn is_suspect(&self, store: StoreId) -> bool {
        self.liveness.suspects().binary_search(&store).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn manual_clock() -> (Arc<AtomicU64>, Clock) {
        let ms = Arc::new(AtomicU64::new(5_000));
        let read = ms.clone();
        (ms, Clock::from_fn(move || Duration::from_millis(read.load(Ordering::SeqCst))))
    }

    #[test]
    fn cluster_time_goes_on_from_what_was_applied() {
        let (ms, clock) = manual_clock();
        let leading = Leading::begin(3, ClusterTime(70), &Settings::default(), clock);
        assert_eq!(leading.now(), ClusterTime(70));
        ms.fetch_add(1_500, Ordering::SeqCst);
        assert_eq!(leading.now(), ClusterTime(1_570));
        assert_eq!(leading.stamp().term, 3);
    }

    #[test]
    fn removed_bytes_are_held_past_every_lease_that_can_still_be_granted() {
        let (ms, clock) = manual_clock();
        let leading = Leading::begin(3, ClusterTime(0), &Settings::default(), clock);
        let held = leading.hold_until();
        ms.fetch_add(9_999, Ordering::SeqCst); // the command is applied just within one lease
        leading.lease(PutId(1)); // and this read was granted right before
        assert!(held > leading.now().after(Duration::from_millis(9_999)));
    }

    #[test]
    fn a_shorter_lease_holds_removed_bytes_for_those_that_were_granted_before() {
        let (_, clock) = manual_clock();
        let leading = Leading::begin(3, ClusterTime(0), &Settings::default(), clock);
        leading.adopt(&Settings { read_lease_ms: 5_000, ..Settings::default() });
        assert_eq!(
            (leading.read_lease(), leading.hold_until()),
            (Duration::from_secs(5), ClusterTime(20_000))
        );
        leading.adopt(&Settings { read_lease_ms: 30_000, ..Settings::default() });
        assert_eq!(leading.hold_until(), ClusterTime(60_000));
    }

    #[test]
    fn a_put_never_outlives_the_longest_grant() {
        let (_, clock) = manual_clock();
        let leading = Leading::begin(3, ClusterTime(0), &Settings::default(), clock);
        assert_eq!(leading.put_deadlines()(0), ClusterTime(30_000));
        assert_eq!(leading.put_deadlines()(3_600_000), ClusterTime(60_000));
    }
}
