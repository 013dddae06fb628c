//! The routes of RDMA to one store, and which of them failed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use mc_types::{SealedGrant, SegmentNumber};
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::control::client::TcpOptions;
use crate::control::wire::Hello;
use crate::memory::Rdma;
use crate::report::{PeerTransport, UNTRIED};

/// The name of this transport.
pub(crate) const RDMA: &str = "rdma";

/// Time after which a route that failed is probed first, and for which a segment that no device reaches is not asked for. The former
/// doubles each time, up to [`SUSPENDED_MOST`].
pub(crate) const SUSPENDED_FOR: Duration = Duration::from_secs(5);
const SUSPENDED_MOST: Duration = Duration::from_secs(60);

/// The routes to one store: each is a device of this process together with one of the store's.
#[derive(Default)]
pub(crate) struct Routes(Mutex<RoutesState>);

#[derive(Default)]
struct RoutesState {
    /// Number of the store's devices; 0 before the first answer.
    theirs: usize,
    /// Routes that failed.
    suspended: HashMap<usize, Suspended>,
    /// Last pause before the probes of each route by which no bytes of a call have gone since it failed.
    pauses: HashMap<usize, Duration>,
    /// How the routes that failed are probed, since the first one did.
    probing: Option<Probing>,
    /// Segments that no device of the store reaches: when to try again, and why.
    unreached: HashMap<SegmentNumber, (Instant, String)>,
    next: usize,
    /// Bytes that went by RDMA and were found good.
    moved: u64,
}

/// The store that probes go to, and what they ask with. A store makes queue pairs only for clients with a grant, so
/// probes use the grant of the last call.
pub(crate) struct Target {
    pub(crate) address: String,
    pub(crate) options: TcpOptions,
    pub(crate) hello: Hello,
    pub(crate) grant: SealedGrant,
    /// How long an answer by RDMA may take.
    pub(crate) patience: Duration,
}

struct Suspended {
    probe_at: Instant,
    why: String,
}

struct Probing {
    target: Arc<Target>,
    /// It ends with the routes; a probe under way ends first.
    task: AbortOnDropHandle<()>,
}

/// Devices of a route: one of `ours`, and one of `theirs`. The first routes use each device of both ends, the others combine them in
/// another order.
pub(crate) fn devices_of(route: usize, ours: usize, theirs: usize) -> (usize, usize) {
    let (ours, theirs) = (ours.max(1), theirs.max(1));
    let (nth, round) = (route % ours.max(theirs), route / ours.max(theirs));
    if ours >= theirs { (nth, (nth + round) % theirs) } else { ((nth + round) % ours, nth) }
}

impl Routes {
    /// Returns the route to try: the next one of those that did not fail. Devices of the same number go first, because they
    /// are often on the same switch, and each of both ends is in one of these (see [`devices_of`]). `Err` says why there is none.
    pub(crate) fn pick(&self, ours: usize) -> Result<usize, String> {
        let mut state = self.0.lock();
        let next = state.next;
        let all = ours * state.theirs.max(1);
        let free = |route: &usize| !state.suspended.contains_key(route);
        let first = ours.max(state.theirs);
        let rails = (0..first).map(|nth| (next + nth) % first);
        let found = rails.chain(first..all).find(free);
        state.next = next.wrapping_add(1);
        found.ok_or_else(|| state.why())
    }

    /// Whether a route can be tried; `Err` says why not.
    pub(crate) fn any(&self, ours: usize) -> Result<(), String> {
        let state = self.0.lock();
        let free = |route| !state.suspended.contains_key(&route);
        if (0..ours * state.theirs.max(1)).any(free) { Ok(()) } else { Err(state.why()) }
    }

    /// Says whether bytes go by RDMA, and how, or why not. A route that failed counts as such until a probe, or bytes of a call,
    /// have gone by it.
    pub(crate) fn report(&self, rdma: &Rdma) -> PeerTransport {
        let state = self.0.lock();
        let all = rdma.len() * state.theirs;
        let failed = state.suspended.keys().filter(|route| **route < all).count();
        let names = || rdma.names().collect::<Vec<_>>().join(", ");
        let now = Instant::now();
        let unreached: Vec<&str> =
            state.unreached.values().filter(|(until, _)| *until > now).map(|(_, why)| why.as_str()).collect();
        if let Some(why) = rdma.why_not() {
            return PeerTransport::unusable(RDMA, why.to_string()).moved(state.moved);
        }
        let report = match failed {
            _ if state.theirs == 0 && state.suspended.is_empty() => PeerTransport::unusable(RDMA, UNTRIED),
            failed if failed >= all => PeerTransport::unusable(RDMA, state.why()),
            _ if state.moved == 0 && !unreached.is_empty() => {
                PeerTransport::unusable(RDMA, unreached.join("; "))
            }
            _ => {
                let mut how = vec![format!("over {}", names())];
                if failed > 0 {
                    how.push(format!("{failed} of {all} routes failed: {}", state.why()));
                }
                how.extend(rdma.lacks());
                how.extend(unreached.into_iter().map(str::to_owned));
                PeerTransport::usable(RDMA, how.join("; "))
            }
        };
        report.moved(state.moved)
    }

    /// Notes that no device of the store reaches a segment, which is suspended for a while.
    pub(crate) fn suspend_segment(&self, segment: SegmentNumber, why: &str) {
        let until = Instant::now() + SUSPENDED_FOR;
        if self.0.lock().unreached.insert(segment, (until, why.to_owned())).is_none() {
            tracing::warn!("no RDMA for bytes of segment {segment} of a store: {why}");
        }
    }

    /// Returns why one of the segments is suspended; `None` if none is.
    pub(crate) fn lacks(&self, segments: impl Iterator<Item = SegmentNumber>) -> Option<String> {
        let (state, now) = (self.0.lock(), Instant::now());
        let mut found = segments.filter_map(|segment| state.unreached.get(&segment));
        found.find(|(until, _)| *until > now).map(|(_, why)| why.clone())
    }

    /// Whether every segment is reached, as far as is known.
    pub(crate) fn reaches_all(&self) -> bool {
        self.0.lock().unreached.is_empty()
    }

    /// Number of the store's devices; 0 before its first answer.
    pub(crate) fn theirs(&self) -> usize {
        self.0.lock().theirs
    }

    /// Notes the number of the store's devices.
    pub(crate) fn learn(&self, theirs: usize) {
        self.0.lock().theirs = theirs;
    }

    /// Counts bytes of a call that went over a route, which works.
    pub(crate) fn moved(&self, route: usize, bytes: u64) {
        let mut state = self.0.lock();
        state.suspended.remove(&route);
        if bytes > 0 {
            state.pauses.remove(&route);
        }
        state.moved += bytes;
    }

    /// Suspends a route until a probe finds that it works.
    pub(crate) fn suspend(&self, route: usize, why: &str) {
        let mut state = self.0.lock();
        let pause = state.pauses.get(&route).map_or(SUSPENDED_FOR, |pause| SUSPENDED_MOST.min(*pause * 2));
        if !state.suspended.contains_key(&route) {
            tracing::warn!(
                "no RDMA over one route to a store, which is probed every {pause:?} to {SUSPENDED_MOST:?}: {why}"
            );
        }
        state.pauses.insert(route, pause);
        state.suspended.insert(route, Suspended { probe_at: Instant::now() + pause, why: why.to_owned() });
    }

    /// Ends the time for which a route is suspended, because a probe has gone by it. Its pause is not forgotten: a probe may work
    /// where calls fail.
    pub(crate) fn resume(&self, route: usize) {
        if self.0.lock().suspended.remove(&route).is_some() {
            tracing::info!("RDMA works again over a route to a store that had failed");
        }
    }

    /// Puts the probe of a route off that says nothing about it. Only a call starts the next one, with its own grant, which
    /// must not expire before.
    pub(crate) fn postpone_probe(&self, route: usize) {
        if let Some(suspended) = self.0.lock().suspended.get_mut(&route) {
            suspended.probe_at = Instant::now() + SUSPENDED_FOR;
        }
    }

    pub(crate) fn is_suspended(&self, route: usize) -> bool {
        self.0.lock().suspended.contains_key(&route)
    }

    /// Whether routes are suspended.
    pub(crate) fn are_some_suspended(&self) -> bool {
        !self.0.lock().suspended.is_empty()
    }

    /// Has the suspended routes probed by the task that `start` starts, unless there is one. `target` is newer than that of the
    /// last call.
    pub(crate) fn keep_probing(&self, target: Arc<Target>, start: impl FnOnce() -> JoinHandle<()>) {
        let mut state = self.0.lock();
        let task = state.probing.take().map(|probing| probing.task);
        let task = task.filter(|task| !task.is_finished());
        let task = task.unwrap_or_else(|| AbortOnDropHandle::new(start()));
        state.probing = Some(Probing { target, task });
    }

    /// The store that the next probe asks, and its grant.
    pub(crate) fn target(&self) -> Option<Arc<Target>> {
        self.0.lock().probing.as_ref().map(|probing| probing.target.clone())
    }

    /// Forgets routes that the store has no more. Returns the route that is probed next, and when; `None` if none is suspended.
    pub(crate) fn next_probe(&self, ours: usize) -> Option<(usize, Instant)> {
        let mut state = self.0.lock();
        let all = ours * state.theirs.max(1);
        state.suspended.retain(|route, _| *route < all);
        state
            .suspended
            .iter()
            .map(|(route, suspended)| (*route, suspended.probe_at))
            .min_by_key(|(_, at)| *at)
    }
}

impl RoutesState {
    fn why(&self) -> String {
        let mut reasons: Vec<&str> =
            self.suspended.values().map(|suspended| suspended.why.as_str()).collect();
        reasons.sort_unstable();
        reasons.dedup();
        reasons.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_of_both_ends_is_used_before_any_pair_of_them_comes_again() {
        for (ours, theirs) in [(1, 1), (2, 4), (4, 2), (4, 8), (8, 4), (3, 3), (2, 3)] {
            let pairs: Vec<_> = (0..ours * theirs).map(|route| devices_of(route, ours, theirs)).collect();
            let first = &pairs[..ours.max(theirs)];
            let used = |which: fn(&(usize, usize)) -> usize| {
                first.iter().map(which).collect::<std::collections::BTreeSet<_>>().len()
            };
            assert_eq!((used(|pair| pair.0), used(|pair| pair.1)), (ours, theirs));
            let distinct: std::collections::BTreeSet<_> = pairs.iter().collect();
            assert_eq!(distinct.len(), ours * theirs, "each pair once: {pairs:?}");
        }
        assert_eq!(devices_of(3, 2, 4), (1, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_segment_that_no_device_reaches_is_not_asked_for_again_at_once() {
        let routes = Routes::default();
        assert!(routes.reaches_all());
        routes.suspend_segment(3, "memlock");
        assert!(!routes.reaches_all());
        assert_eq!(routes.lacks([1, 3].into_iter()), Some("memlock".to_owned()));
        assert_eq!(routes.lacks([1, 2].into_iter()), None);
        tokio::time::advance(SUSPENDED_FOR).await;
        assert_eq!(routes.lacks([3].into_iter()), None, "the store may have registered it");
    }

    #[tokio::test(start_paused = true)]
    async fn a_route_that_failed_is_suspended_until_a_probe_works_and_others_are_tried() {
        let routes = Routes::default();
        assert_eq!((routes.pick(2), routes.pick(2)), (Ok(0), Ok(1)));
        routes.learn(2);
        routes.suspend(0, "cable");
        assert_eq!((routes.pick(2), routes.pick(2)), (Ok(1), Ok(1)));
        routes.suspend(1, "switch");
        assert_eq!(routes.pick(2), Ok(2), "the other device of the store");
        routes.suspend(2, "switch");
        routes.suspend(3, "switch");
        assert_eq!(routes.pick(2), Err("cable; switch".to_owned()));
        tokio::time::advance(SUSPENDED_MOST).await;
        assert!(routes.any(2).is_err(), "no call finds out whether one works again");
        routes.resume(3);
        assert_eq!(routes.pick(2), Ok(3));
        assert!(!routes.is_suspended(3) && routes.is_suspended(2));
        routes.moved(2, 0);
        assert!(!routes.is_suspended(2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_route_that_fails_again_and_again_is_probed_less_often() {
        let routes = Routes::default();
        assert_eq!(routes.next_probe(1), None);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            routes.suspend(0, "cable");
            let (route, at) = routes.next_probe(1).unwrap();
            assert_eq!(route, 0);
            pauses.push((at - Instant::now()).as_secs());
            tokio::time::advance(at - Instant::now()).await;
        }
        assert_eq!(pauses, [5, 10, 20, 40, 60, 60]);
        routes.postpone_probe(0);
        let wait = || routes.next_probe(1).map(|(_, at)| at - Instant::now());
        assert_eq!(wait(), Some(SUSPENDED_FOR), "for the grant of the next call");
        routes.resume(0);
        routes.suspend(0, "cable");
        assert_eq!(wait(), Some(SUSPENDED_MOST), "no call's bytes have gone by it");
        routes.moved(0, 1);
        routes.suspend(0, "cable");
        assert_eq!(wait(), Some(SUSPENDED_FOR), "it had worked");
        routes.suspend(1, "of a device that the store has no more");
        assert_eq!(routes.next_probe(1).map(|(route, _)| route), Some(0));
        assert!(!routes.is_suspended(1));
    }
}
