//! Probes of the ways of RDMA that failed. They go over connections of their own, in the background: no call waits to find out whether
//! a way works again.

use std::sync::{Arc, Weak};
use std::time::Duration;

use mc_types::Grant;
use tokio::time::{Instant, sleep_until, timeout};

use super::requests::{ByRdma, NoPair, PairedLink};
use super::ways::{LEFT, Target, Ways};
use crate::control::client::{Broken, Link};
use crate::control::wire::PROBE_LEN;

/// Longest wait of a probe for buffers. Calls come first.
const STAGING_WITHIN: Duration = Duration::from_secs(1);

/// Result of a probe of a way.
enum Probed {
    Works,
    Failed(String),
    /// Nothing: there were no buffers, or the store could not be asked, or refused the grant. The next call brings another one.
    Unclear,
}

/// Has the ways that failed probed, if there are any. The task runs on the runtime of the call that needed it first.
pub(crate) fn start(ways: &Arc<Ways>, by: &Arc<ByRdma>, target: impl FnOnce() -> Target) {
    if !ways.are_some_left() {
        return;
    }
    ways.keep_probing(Arc::new(target()), || {
        let (ways, by) = (Arc::downgrade(ways), by.clone());
        tokio::spawn(async move { run(&ways, by.ways(), |ways, way| probe(ways, by.clone(), way)).await })
    });
}

/// Probes the ways that are left, each at its time, until none is, a probe says nothing, or nobody has the ways any more.
async fn run<F: Future<Output = Probed>>(
    ways: &Weak<Ways>,
    ours: usize,
    probe: impl Fn(Arc<Ways>, usize) -> F,
) {
    loop {
        let Some((way, at)) = ways.upgrade().and_then(|ways| ways.next_probe(ours)) else { return };
        let now = Instant::now();
        if at > now {
            // A way that fails meanwhile is due after this time at the earliest, and this one may work again by then.
            sleep_until(at.min(now + LEFT)).await;
            continue;
        }
        let Some(ways) = ways.upgrade() else { return };
        match probe(ways.clone(), way).await {
            Probed::Works => ways.take_back(way),
            Probed::Failed(why) => ways.leave(way, &why),
            Probed::Unclear => {
                // Otherwise each call would start the next one at once.
                ways.put_off(way);
                return;
            }
        }
    }
}

/// Makes a pair over the way, beside a connection of its own, and lets bytes go by it.
async fn probe(ways: Arc<Ways>, by: Arc<ByRdma>, way: usize) -> Probed {
    let Some(target) = ways.target() else { return Probed::Unclear };
    let Target { address, options, hello, grant, patience } = &*target;
    let Ok(Grant { access, .. }) = Grant::peek(grant) else { return Probed::Unclear };
    let Ok(Ok(staging)) = timeout(STAGING_WITHIN, by.rdma.staging(PROBE_LEN)).await else {
        return Probed::Unclear;
    };
    // Its bytes are no sign of life for the calls.
    let moved = Arc::default();
    let connected = Link::connect(address, *hello, options.connect_timeout, &moved, options.sums);
    let Ok(link) = connected.await else { return Probed::Unclear };
    match PairedLink::new(link).probe(&by, &ways, way, (access, grant), (staging, *patience)).await {
        Ok(Ok(())) => Probed::Works,
        Ok(Err(NoPair::NoWay(why))) | Err(Broken::Rdma(why)) => Probed::Failed(why),
        Err(held @ Broken::Held(_)) => Probed::Failed(held.to_string()),
        Ok(Err(NoPair::Refused(_))) | Err(_) => Probed::Unclear,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use mc_types::SealedGrant;

    use super::*;
    use crate::TcpOptions;
    use crate::control::wire::Hello;

    /// Runs probes of one device with one; `outcomes` has that of each, and after them all work. Returns their number so far.
    fn probing(ways: &Arc<Ways>, outcomes: Vec<Probed>) -> (tokio::task::JoinHandle<()>, Arc<AtomicUsize>) {
        let (ways, count) = (Arc::downgrade(ways), Arc::new(AtomicUsize::new(0)));
        let (counted, outcomes) = (count.clone(), parking_lot::Mutex::new(outcomes.into_iter()));
        let probe = move |_: Arc<Ways>, _: usize| {
            counted.fetch_add(1, Ordering::SeqCst);
            std::future::ready(outcomes.lock().next().unwrap_or(Probed::Works))
        };
        (tokio::spawn(async move { run(&ways, 1, probe).await }), count)
    }

    #[tokio::test(start_paused = true)]
    async fn a_way_comes_back_after_the_first_probe_that_works_and_no_call_is_needed() {
        let ways = Arc::new(Ways::default());
        ways.leave(0, "cable");
        let failed = || Probed::Failed("still the cable".to_owned());
        let (task, count) = probing(&ways, vec![failed(), failed()]);
        assert!(ways.any(1).is_err());
        // Of the paused clock, which bounds a test that fails.
        timeout(Duration::from_secs(3600), task).await.unwrap().unwrap();
        assert_eq!((count.load(Ordering::SeqCst), ways.any(1)), (3, Ok(())));
    }

    #[tokio::test(start_paused = true)]
    async fn each_way_is_probed_in_its_own_time_and_none_that_calls_have_taken_back() {
        let ways = Arc::new(Ways::default());
        ways.learn(2);
        (0..5).for_each(|_| ways.leave(0, "cable"));
        let (task, count) = probing(&ways, Vec::new());
        tokio::task::yield_now().await;
        ways.leave(1, "switch");
        tokio::time::sleep(2 * LEFT).await;
        assert_eq!(count.load(Ordering::SeqCst), 1, "the first one waits for a minute");
        assert!(ways.is_left(0) && !ways.is_left(1));
        ways.moved(0, 1);
        task.await.unwrap();
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_says_nothing_waits_for_the_next_call() {
        let ways = Arc::new(Ways::default());
        ways.leave(0, "cable");
        let (task, count) = probing(&ways, vec![Probed::Unclear]);
        task.await.unwrap();
        assert_eq!((count.load(Ordering::SeqCst), ways.any(1)), (1, Err("cable".to_owned())));
        assert!(ways.next_probe(1).is_some_and(|(_, at)| at > Instant::now()), "not at once");
    }

    #[tokio::test(start_paused = true)]
    async fn probes_end_with_the_ways() {
        let ways = Arc::new(Ways::default());
        ways.leave(0, "cable");
        let (task, count) = probing(&ways, Vec::new());
        drop(ways);
        task.await.unwrap();
        assert_eq!(count.load(Ordering::SeqCst), 0);

        // The same for a task that the ways own, in the middle of a pause.
        let ways = Arc::new(Ways::default());
        ways.leave(0, "cable");
        let alive = Arc::new(());
        let held = alive.clone();
        let target = Target {
            address: String::new(),
            options: TcpOptions::default(),
            hello: Hello {
                versions: (1, 1),
                cluster: mc_types::ClusterId(1),
                store: mc_types::StoreId(1),
                epoch: mc_types::SegmentEpoch(1),
            },
            grant: SealedGrant::default(),
            patience: Duration::ZERO,
        };
        ways.keep_probing(Arc::new(target), || {
            tokio::spawn(async move {
                let _held = held;
                std::future::pending::<()>().await;
            })
        });
        assert_eq!(Arc::strong_count(&alive), 2);
        drop(ways);
        while Arc::strong_count(&alive) > 1 {
            tokio::task::yield_now().await;
        }
    }
}
