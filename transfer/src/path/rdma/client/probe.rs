//! Probes of the routes of RDMA that failed. They go over connections of their own, in the background: no call waits to find out whether
//! a route works again.

use std::sync::{Arc, Weak};
use std::time::Duration;

use mc_types::Grant;
use tokio::time::{Instant, sleep_until, timeout};

use super::failure::RdmaFailure;
use super::pairing::{NoPair, PairedLink};
use super::process::RdmaClient;
use super::routes::{Routes, SUSPENDED_FOR, Target};
use crate::control::client::Link;
use crate::control::wire::PROBE_LEN;

/// Longest wait of a probe for buffers. Calls come first.
const STAGING_WITHIN: Duration = Duration::from_secs(1);

/// Result of a probe of a route.
enum Probed {
    Works,
    Failed(String),
    /// The probe says nothing: no buffer was free, the store could not be asked, or it refused the grant. The next call
    /// brings a new grant.
    Unclear,
}

/// Has the routes that failed probed, if there are any. The task runs on the runtime of the call that needed it first.
pub(crate) fn start(routes: &Arc<Routes>, client: &Arc<RdmaClient>, target: impl FnOnce() -> Target) {
    if !routes.are_some_suspended() {
        return;
    }
    routes.keep_probing(Arc::new(target()), || {
        let (routes, client) = (Arc::downgrade(routes), client.clone());
        let count = client.device_count();
        let probe = move |routes, route| probe(routes, client.clone(), route);
        tokio::spawn(async move { run(&routes, count, probe).await })
    });
}

/// Probes the suspended routes, each at its time, until none is, a probe says nothing, or nobody has the routes any more.
async fn run<F: Future<Output = Probed>>(
    routes: &Weak<Routes>,
    ours: usize,
    probe: impl Fn(Arc<Routes>, usize) -> F,
) {
    loop {
        let Some((route, at)) = routes.upgrade().and_then(|routes| routes.next_probe(ours)) else { return };
        let now = Instant::now();
        if at > now {
            // A route that fails meanwhile is due after this time at the earliest, and this one may work again by then.
            sleep_until(at.min(now + SUSPENDED_FOR)).await;
            continue;
        }
        let Some(routes) = routes.upgrade() else { return };
        match probe(routes.clone(), route).await {
            Probed::Works => routes.resume(route),
            Probed::Failed(why) => routes.suspend(route, &why),
            Probed::Unclear => {
                // Otherwise each call would start the next one at once.
                routes.postpone_probe(route);
                return;
            }
        }
    }
}

/// Makes a pair over the route, beside a connection of its own, and lets bytes go by it.
async fn probe(routes: Arc<Routes>, client: Arc<RdmaClient>, route: usize) -> Probed {
    let Some(target) = routes.target() else { return Probed::Unclear };
    let Target { address, options, hello, grant, patience } = &*target;
    let Ok(Grant { access, .. }) = Grant::peek(&grant.bytes) else { return Probed::Unclear };
    let Ok(Ok(staging)) = timeout(STAGING_WITHIN, client.rdma.staging(PROBE_LEN)).await else {
        return Probed::Unclear;
    };
    // Its bytes are no sign of life for the calls.
    let moved = Arc::default();
    let connected = Link::connect(address, *hello, options, &moved);
    // Dropped after the connection: to destroy it takes longer.
    let mut pair = None;
    let Ok(mut link) = connected.await else { return Probed::Unclear };
    let mut connection = PairedLink { link: &mut link, pair: &mut pair };
    match connection.probe(&client, &routes, route, (access, grant), (staging, *patience)).await {
        Ok(Ok(())) => Probed::Works,
        Ok(Err(NoPair::NoRoute(why))) | Err(RdmaFailure::Rdma(why) | RdmaFailure::Held(why)) => {
            Probed::Failed(why)
        }
        Ok(Err(NoPair::Refused(_))) | Err(RdmaFailure::Link(_)) => Probed::Unclear,
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
    fn probing(
        routes: &Arc<Routes>,
        outcomes: Vec<Probed>,
    ) -> (tokio::task::JoinHandle<()>, Arc<AtomicUsize>) {
        let (routes, count) = (Arc::downgrade(routes), Arc::new(AtomicUsize::new(0)));
        let (counted, outcomes) = (count.clone(), parking_lot::Mutex::new(outcomes.into_iter()));
        let probe = move |_: Arc<Routes>, _: usize| {
            counted.fetch_add(1, Ordering::SeqCst);
            std::future::ready(outcomes.lock().next().unwrap_or(Probed::Works))
        };
        (tokio::spawn(async move { run(&routes, 1, probe).await }), count)
    }

    #[tokio::test(start_paused = true)]
    async fn a_route_comes_back_after_the_first_probe_that_works_and_no_call_is_needed() {
        let routes = Arc::new(Routes::default());
        routes.suspend(0, "cable");
        let failed = || Probed::Failed("still the cable".to_owned());
        let (task, count) = probing(&routes, vec![failed(), failed()]);
        assert!(routes.any(1).is_err());
        // Of the paused clock, which bounds a test that fails.
        timeout(Duration::from_secs(3600), task).await.unwrap().unwrap();
        assert_eq!((count.load(Ordering::SeqCst), routes.any(1)), (3, Ok(())));
    }

    #[tokio::test(start_paused = true)]
    async fn each_route_is_probed_in_its_own_time_and_none_that_calls_have_taken_back() {
        let routes = Arc::new(Routes::default());
        routes.learn(2);
        (0..5).for_each(|_| routes.suspend(0, "cable"));
        let (task, count) = probing(&routes, Vec::new());
        tokio::task::yield_now().await;
        routes.suspend(1, "switch");
        tokio::time::sleep(2 * SUSPENDED_FOR).await;
        assert_eq!(count.load(Ordering::SeqCst), 1, "the first one waits for a minute");
        assert!(routes.is_suspended(0) && !routes.is_suspended(1));
        routes.moved(0, 1);
        task.await.unwrap();
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_says_nothing_waits_for_the_next_call() {
        let routes = Arc::new(Routes::default());
        routes.suspend(0, "cable");
        let (task, count) = probing(&routes, vec![Probed::Unclear]);
        task.await.unwrap();
        assert_eq!((count.load(Ordering::SeqCst), routes.any(1)), (1, Err("cable".to_owned())));
        assert!(routes.next_probe(1).is_some_and(|(_, at)| at > Instant::now()), "not at once");
    }

    #[tokio::test(start_paused = true)]
    async fn probes_end_with_the_routes() {
        let routes = Arc::new(Routes::default());
        routes.suspend(0, "cable");
        let (task, count) = probing(&routes, Vec::new());
        drop(routes);
        task.await.unwrap();
        assert_eq!(count.load(Ordering::SeqCst), 0);

        // The same for a task that the routes own, in the middle of a pause.
        let routes = Arc::new(Routes::default());
        routes.suspend(0, "cable");
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
        routes.keep_probing(Arc::new(target), || {
            tokio::spawn(async move {
                let _held = held;
                std::future::pending::<()>().await;
            })
        });
        assert_eq!(Arc::strong_count(&alive), 2);
        drop(routes);
        while Arc::strong_count(&alive) > 1 {
            tokio::task::yield_now().await;
        }
    }
}
