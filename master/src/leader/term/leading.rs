use std::time::Duration;

use mc_eviction::{Hits, Leases};
use mc_index::{Settings, Stamp};
use mc_types::{Clock, ClusterTime, MAX_GRANT_LIFETIME, PutId, StoreId};
use parking_lot::RwLock;

use super::liveness::Liveness;
use super::outdated::OutdatedCallers;
use super::tls_reports::TlsReports;
use super::transports::TransportsInUse;

/// Lifetime of a put that asks for none: the time within which it must end.
const PUT_LIFETIME: Duration = Duration::from_secs(30);

/// One term of leadership: its clock, its leases, its view of the stores.
#[derive(Debug)]
pub(crate) struct Leading {
    /// The term.
    pub(crate) term: u64,
    /// Lowest order of an allocation that is made from now on in this term ([`mc_index::allocation_order`]).
    pub(crate) known_from: u64,
    /// Liveness of the stores.
    pub(crate) liveness: Liveness,
    /// Transports of the stores, for people.
    pub(crate) transports: TransportsInUse,
    /// Reports of the stores on TLS.
    pub(crate) tls_reports: TlsReports,
    /// Clients and stores of older builds, for people.
    pub(crate) outdated: OutdatedCallers,
    pub(crate) leases: Leases,
    /// Reads, for the order of eviction.
    pub(crate) hits: Hits,
    limits: RwLock<Limits>,
    clock: Clock,
    /// Cluster time when the term began here; `origin` is the clock's reading at that moment.
    base: ClusterTime,
    origin: Duration,
}

/// Cluster times that follow from the spans which puts name when they start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PutTimes {
    /// Start of the puts.
    pub(crate) now: ClusterTime,
    /// Longest lifetime of a put.
    pub(crate) longest: Duration,
}

impl PutTimes {
    /// Returns the deadline of a put with this lifetime; `None`: the default.
    pub(crate) fn deadline(self, lifetime: Option<Duration>) -> ClusterTime {
        self.now.after(lifetime.unwrap_or(PUT_LIFETIME).min(self.longest))
    }
}

/// Limits from the cluster's settings: leases and puts.
#[derive(Clone, Copy, Debug)]
struct Limits {
    read_lease: Duration,
    /// The longest that read leases have been in this term.
    longest_lease: Duration,
    put_deadline_max: Duration,
    put_space_wait: Duration,
}

impl Limits {
    fn of(settings: &Settings) -> Self {
        let read_lease = Duration::from_millis(settings.read_lease_ms).min(MAX_GRANT_LIFETIME);
        Self {
            read_lease,
            longest_lease: read_lease,
            put_deadline_max: Duration::from_millis(settings.put_deadline_max_ms).min(MAX_GRANT_LIFETIME),
            put_space_wait: Duration::from_millis(settings.put_space_wait_ms),
        }
    }
}

impl Leading {
    /// Begins a term. `applied` is the state's time once an entry of this term is applied: it is at or after every
    /// stamp that an earlier leader got committed.
    pub(crate) fn begin(term: u64, applied: ClusterTime, settings: &Settings, clock: Clock) -> Self {
        let origin = clock.now();
        Self {
            term,
            known_from: 0,
            liveness: Liveness::new(Duration::from_millis(settings.store_suspect_ms), origin),
            transports: TransportsInUse::default(),
            tls_reports: TlsReports::default(),
            outdated: OutdatedCallers::default(),
            leases: Leases::new(),
            hits: Hits::new(),
            limits: RwLock::new(Limits::of(settings)),
            clock,
            base: applied,
            origin,
        }
    }

    /// Adopts changed settings of the cluster.
    pub(crate) fn adopt(&self, settings: &Settings) {
        let mut limits = self.limits.write();
        let longest_lease = limits.longest_lease;
        *limits = Limits::of(settings);
        limits.longest_lease = limits.read_lease.max(longest_lease);
        self.liveness.suspect_after(Duration::from_millis(settings.store_suspect_ms));
    }

    /// Returns the reading of this process's monotonic clock.
    pub(crate) fn elapsed(&self) -> Duration {
        self.clock.now()
    }

    /// Cluster time now.
    pub(crate) fn now(&self) -> ClusterTime {
        let led = self.clock.now().saturating_sub(self.origin);
        ClusterTime(self.base.0 + u64::try_from(led.as_millis()).unwrap_or(u64::MAX - self.base.0))
    }

    /// How long this master has led this term.
    pub(crate) fn age(&self) -> Duration {
        self.clock.now().saturating_sub(self.origin)
    }

    /// Length of a read lease.
    pub(crate) fn read_lease(&self) -> Duration {
        self.limits.read().read_lease
    }

    /// Longest wait of a put for space.
    pub(crate) fn put_space_wait(&self) -> Duration {
        self.limits.read().put_space_wait
    }

    /// Returns the times of puts that start now.
    pub(crate) fn put_times(&self) -> PutTimes {
        PutTimes { now: self.now(), longest: self.limits.read().put_deadline_max }
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

    /// End of a read lease that is granted now.
    pub(crate) fn lease_end(&self) -> ClusterTime {
        self.now().after(self.read_lease())
    }

    /// Time from which the bytes of versions that are evicted now may be reused; zero for at once.
    ///
    /// No lease of this term runs on them, because their marks exclude one. Leases of earlier terms, which are unknown
    /// here, end within the first lease period of this term.
    pub(crate) fn evicted_until(&self) -> ClusterTime {
        let floor = self.base.after(self.limits.read().longest_lease);
        if self.now() < floor { floor } else { ClusterTime(0) }
    }

    /// Whether a lease granted in this term runs on `version`.
    ///
    /// Leases of earlier terms are unknown here and block nothing: a remove succeeds, and the bytes are held past the
    /// end of any such lease (see [`Self::hold_until`]).
    pub(crate) fn is_leased(&self, version: PutId) -> bool {
        self.leases.holds(version, self.now())
    }

    /// End of the time for which the bytes of a version stay reserved after a command proposed now removes or replaces
    /// it.
    ///
    /// A read may be granted until that command is applied, and holds for one lease from then. So two leases from now
    /// outlast every reader, also of earlier terms, if the command is applied within one lease. Nothing enforces that:
    /// the disks of a majority may stall while heartbeats go on. The store's fence then refuses the late reader; every
    /// transport in use today has that fence. See docs/adr/0005. The same holds for a lease of an earlier term that was
    /// granted before the setting was made shorter.
    pub(crate) fn hold_until(&self) -> ClusterTime {
        self.now().after(2 * self.limits.read().longest_lease)
    }

    /// Forgets ended leases.
    pub(crate) fn sweep_leases(&self) {
        self.leases.sweep(self.now());
    }

    /// Bytes of leased objects, as of the last sweep.
    pub(crate) fn leased_bytes(&self) -> u64 {
        self.leases.bytes()
    }

    /// Number of remembered leases.
    pub(crate) fn lease_count(&self) -> usize {
        self.leases.len()
    }

    /// Whether `store` is suspect, so that its replicas are not offered.
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
        assert!(held > leading.lease_end(), "a read that is granted right before");
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
    fn bytes_evicted_in_the_first_lease_period_of_a_term_are_held_to_its_end() {
        let (ms, clock) = manual_clock();
        let leading = Leading::begin(3, ClusterTime(500), &Settings::default(), clock);
        assert_eq!(leading.evicted_until(), ClusterTime(10_500));
        ms.fetch_add(9_999, Ordering::SeqCst);
        assert_eq!(leading.evicted_until(), ClusterTime(10_500));
        ms.fetch_add(1, Ordering::SeqCst);
        assert_eq!(leading.evicted_until(), ClusterTime(0));
    }

    #[test]
    fn a_put_never_outlives_the_longest_grant() {
        let (_, clock) = manual_clock();
        let leading = Leading::begin(3, ClusterTime(0), &Settings::default(), clock);
        assert_eq!(leading.put_times().deadline(None), ClusterTime(30_000));
        assert_eq!(leading.put_times().deadline(Some(Duration::from_secs(3600))), ClusterTime(60_000));
    }
}
