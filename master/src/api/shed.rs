//! Load shedding: a master that is short of CPU time first refuses hellos, new watches and mounts.
//!
//! These calls come by the thousand at the same moment, after a failover or an outage, and they can come later. Raft,
//! heartbeats and the calls of clients that know their leader cannot. A master that spends its time on the former loses
//! its leadership and its stores, and then even more clients and stores look for a leader.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use metrics::Counter;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::bucket::{Bucket, Rate};
use crate::leader::Refusal;

/// Kinds of calls that may be shed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SheddableCall {
    Hello,
    Watch,
    Mount,
}

/// Wait of a task for a thread that shows a shortage of CPU time. A heartbeat of Raft is due every 50 ms, and followers
/// stand for election after 150 ms without one.
const STRAINED: Duration = Duration::from_millis(50);
/// Interval between two measurements of that wait.
const PROBE: Duration = Duration::from_millis(50);
/// Calls of one kind that are answered however strained the master is. They serve a whole fleet in some seconds, for a tenth of a
/// core. Without them, no client or store would find the leader on a machine that has other work.
const FLOOR: Rate = Rate { per_second: 400.0, burst: 100.0 };
/// Limit on mounts in the log's queue. Each is an entry, and the queue has room for 1,024 in all.
const MOST_MOUNTS: usize = 128;

/// Decides which calls to refuse.
pub(crate) struct Shedder {
    /// Measured wait on each runtime, in microseconds.
    lags: [Arc<AtomicU64>; 2],
    began: Instant,
    buckets: [Mutex<Bucket>; 3],
    refused: [Counter; 3],
    mounts: Arc<Semaphore>,
}

impl Shedder {
    pub(crate) fn new(refused: [Counter; 3]) -> Self {
        Self {
            lags: Default::default(),
            began: Instant::now(),
            buckets: [(); 3].map(|()| Mutex::new(Bucket::full(FLOOR, Duration::ZERO))),
            refused,
            mounts: Arc::new(Semaphore::new(MOST_MOUNTS)),
        }
    }

    /// Returns probes that measure without end how long tasks wait on the runtime that each is spawned on: that of the
    /// calls and that of Raft.
    pub(crate) fn probes(&self) -> [impl Future<Output = ()> + Send + use<>; 2] {
        self.lags.each_ref().map(|lag| probe(lag.clone()))
    }

    fn strained(&self) -> bool {
        let lag = self.lags.iter().map(|lag| lag.load(Ordering::Relaxed)).max().unwrap_or(0);
        Duration::from_micros(lag) >= STRAINED
    }

    /// Admits a call of this kind, or refuses it for lack of CPU time.
    pub(crate) fn admit(&self, kind: SheddableCall) -> Result<(), Refusal> {
        let taken = self.buckets[kind as usize].lock().take(FLOOR, self.began.elapsed()).is_ok();
        if taken || !self.strained() { Ok(()) } else { Err(self.refuse(kind)) }
    }

    /// Takes a place among the mounts that are under way.
    pub(crate) fn mount_slot(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        self.mounts.clone().try_acquire_owned().map_err(|_| self.refuse(SheddableCall::Mount))
    }

    fn refuse(&self, kind: SheddableCall) -> Refusal {
        self.refused[kind as usize].increment(1);
        let what = match kind {
            SheddableCall::Hello => "hellos",
            SheddableCall::Watch => "new watches",
            SheddableCall::Mount => "mounts",
        };
        Refusal::Shed { what }
    }
}

/// Measures how late a sleeping task wakes up, until it is dropped. The measured delay halves with each probe, so one
/// late wake-up is remembered for some tenths of a second.
async fn probe(lag: Arc<AtomicU64>) {
    loop {
        let due = Instant::now() + PROBE;
        tokio::time::sleep_until(due).await;
        let late = u64::try_from(due.elapsed().as_micros()).unwrap_or(u64::MAX);
        lag.store(late.max(lag.load(Ordering::Relaxed) / 2), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shedder() -> Shedder {
        Shedder::new([Counter::noop(), Counter::noop(), Counter::noop()])
    }

    fn late(shedder: &Shedder, runtime: usize, by: Duration) {
        shedder.lags[runtime].store(by.as_micros() as u64, Ordering::Relaxed);
    }

    fn admitted(shedder: &Shedder, kind: SheddableCall, calls: usize) -> usize {
        (0..calls).filter(|_| shedder.admit(kind).is_ok()).count()
    }

    #[test]
    fn a_master_with_time_answers_everybody_and_a_strained_one_a_few() {
        let shedder = shedder();
        assert_eq!(admitted(&shedder, SheddableCall::Hello, 5_000), 5_000);
        late(&shedder, 1, STRAINED);
        let few = admitted(&shedder, SheddableCall::Hello, 5_000);
        assert!(few < 1_000, "{few} of a burst: the bucket fills while this runs");
        assert!(admitted(&shedder, SheddableCall::Mount, 1) == 1, "each kind has its own floor");
        late(&shedder, 1, STRAINED / 2);
        assert_eq!(admitted(&shedder, SheddableCall::Hello, 5_000), 5_000);
    }

    #[test]
    fn mounts_leave_most_of_the_log_s_queue_to_others() {
        let shedder = shedder();
        let slots: Vec<_> = (0..MOST_MOUNTS).map(|_| shedder.mount_slot().unwrap()).collect();
        assert!(matches!(shedder.mount_slot(), Err(Refusal::Shed { .. })));
        drop(slots);
        assert!(shedder.mount_slot().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_wake_up_strains_for_a_moment() {
        let shedder = shedder();
        let [calls, _raft] = shedder.probes();
        let probe = tokio::spawn(calls);
        tokio::task::yield_now().await;
        tokio::time::advance(PROBE + 2 * STRAINED).await;
        tokio::task::yield_now().await;
        assert!(shedder.strained());
        for _ in 0..4 {
            tokio::time::advance(PROBE).await;
            tokio::task::yield_now().await;
        }
        assert!(!shedder.strained());
        probe.abort();
    }
}
