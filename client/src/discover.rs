//! The background tasks that find the leader: one per master that asks it who leads while nobody knows, and keeps a
//! watch open on two of them; one above them that follows the list of masters and the leader timeout.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mc_base::StoreId;
use mc_proto::VERSIONS;
use mc_proto::v1::{HelloRequest, WatchEvent, WatchRequest};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::Request;

use crate::backoff::Backoff;
use crate::masters::{Beacon, Link, Masters};
use crate::refusal::SOFTWARE;

/// A hello that takes longer went to a master that is stopped, cut off or gone.
const HELLO_TIMEOUT: Duration = Duration::from_millis(300);
/// Between hellos to one master while no leader is known.
const SEARCH: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(50));
/// Between hellos to one master in local-only mode.
const LOCAL_ONLY_SEARCH: Duration = Duration::from_millis(100);
/// Between attempts to watch one master.
const WATCH_AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Between resolutions of the list while no leader is known.
const RESOLVE_AGAIN: Duration = Duration::from_secs(1);

/// Finds leaders until `closed`.
pub(crate) async fn run(masters: Arc<Masters>, closed: CancellationToken) {
    closed.run_until_cancelled_owned(supervise(&masters)).await;
    masters.close();
}

async fn supervise(masters: &Arc<Masters>) {
    let mut beacon = masters.beacon.subscribe();
    // The leader is always watched; this permit is for one more master, which speaks up when the leader cannot.
    let second_watch = Arc::new(Semaphore::new(1));
    let mut tasks: BTreeMap<String, AbortOnDropHandle<()>> = BTreeMap::new();
    let mut resolve_at = Instant::now() + RESOLVE_AGAIN;
    loop {
        let now = beacon.borrow_and_update().clone();
        tasks.retain(|address, _| now.targets.contains(address));
        for address in now.targets.iter() {
            tasks.entry(address.clone()).or_insert_with(|| {
                let follow = follow(Arc::clone(masters), address.clone(), Arc::clone(&second_watch));
                AbortOnDropHandle::new(tokio::spawn(follow))
            });
        }
        let leaderless_until = masters.leaderless_until();
        tokio::select! {
            changed = beacon.changed() => if changed.is_err() { return },
            () = sleep_until(leaderless_until.unwrap_or(resolve_at)), if leaderless_until.is_some() => {
                masters.check_leader_timeout();
            }
            () = sleep_until(resolve_at), if !matches!(now.link, Link::Leader(_)) => {
                masters.listed(masters.list.resolve().await);
                resolve_at = Instant::now() + RESOLVE_AGAIN;
            }
        }
    }
}

/// Everything about one master.
async fn follow(masters: Arc<Masters>, address: String, second_watch: Arc<Semaphore>) {
    tokio::join!(ask(&masters, &address), observe(&masters, &address, &second_watch));
}

/// Asks the master who leads while nobody knows, or while the leader is doubted.
async fn ask(masters: &Masters, address: &str) {
    let mut beacon = masters.beacon.subscribe();
    let mut pace = Backoff::new(SEARCH.0, SEARCH.1);
    let mut client = None;
    let mut tried = false;
    loop {
        let now = beacon.borrow_and_update().clone();
        if tried && !now.doubted && matches!(now.link, Link::Leader(_)) {
            pace.reset();
            if beacon.changed().await.is_err() {
                return;
            }
            continue;
        }
        tried = true;
        let asked = Instant::now();
        let hello = HelloRequest {
            version_min: *VERSIONS.start(),
            version_max: *VERSIONS.end(),
            software: SOFTWARE.to_owned(),
        };
        let answer = match client.take().map_or_else(|| masters.channels.fresh(address), Ok) {
            Ok(mut fresh) => match timeout(HELLO_TIMEOUT, fresh.hello(hello)).await {
                Ok(Ok(reply)) => {
                    client = Some(fresh);
                    Some(reply.into_inner())
                }
                // The next hello goes over a new connection: this one may be half open.
                _ => None,
            },
            Err(_) => None,
        };
        match answer {
            Some(reply) => masters.greeted(address, &reply),
            None => masters.silent(address, asked),
        }
        let wait = match masters.link() {
            Link::Searching | Link::Leader(_) => pace.next(),
            Link::LocalOnly | Link::Refused(_) | Link::Closed => LOCAL_ONLY_SEARCH,
        };
        // What this answer changed wakes everybody; only the pace decides when the same master is asked again.
        if !matches!(masters.link(), Link::Leader(_)) || masters.beacon.borrow().doubted {
            sleep(wait).await;
        }
    }
}

/// Watches the master while it leads or holds the second permit.
async fn observe(masters: &Masters, address: &str, second_watch: &Arc<Semaphore>) {
    let mut beacon = masters.beacon.subscribe();
    let mut again = Backoff::new(WATCH_AGAIN.0, WATCH_AGAIN.1);
    loop {
        let mut permit = None;
        tokio::select! {
            led = beacon.wait_for(|beacon| leads(beacon, address)) => if led.is_err() { return },
            got = Arc::clone(second_watch).acquire_owned() => permit = got.ok(),
        }
        let opened = Instant::now();
        watch_one(masters, address, &mut beacon, &mut permit, second_watch).await;
        drop(permit);
        if opened.elapsed() > WATCH_AGAIN.1 {
            again.reset();
        }
        sleep(again.next()).await;
    }
}

fn leads(beacon: &Beacon, address: &str) -> bool {
    matches!(&beacon.link, Link::Leader(leader) if leader.address == address)
}

/// One watch stream, from its opening to its end.
async fn watch_one(
    masters: &Masters,
    address: &str,
    beacon: &mut watch::Receiver<Beacon>,
    permit: &mut Option<OwnedSemaphorePermit>,
    second_watch: &Arc<Semaphore>,
) {
    let opened = Instant::now();
    let Ok(mut client) = masters.channels.fresh(address) else { return };
    let request = Request::new(WatchRequest { caller: Some(masters.caller(None)) });
    let Ok(Ok(stream)) = timeout(HELLO_TIMEOUT, client.watch(request)).await else { return };
    let mut stream = stream.into_inner();
    loop {
        tokio::select! {
            event = stream.message() => match event {
                Ok(Some(event)) => {
                    masters.watched(address, &event);
                    masters.avoid.hear(store_states(&event));
                }
                // A leader that hangs up may be gone: ask at once rather than at the next call.
                _ => {
                    if let Link::Leader(leader) = masters.link() && leader.address == address {
                        masters.doubt(&leader, Instant::now().max(opened));
                    }
                    return;
                }
            },
            changed = beacon.changed() => {
                if changed.is_err() {
                    return;
                }
                if leads(&beacon.borrow_and_update(), address) {
                    *permit = None;
                } else if permit.is_none() {
                    let Ok(free) = Arc::clone(second_watch).try_acquire_owned() else { return };
                    *permit = Some(free);
                }
            }
        }
    }
}

/// Stores that the event judges, and whether they are suspect.
pub(crate) fn store_states(event: &WatchEvent) -> Vec<(StoreId, bool)> {
    let judged = event.stores.iter().filter_map(|store| {
        let suspect = match store.state.as_str() {
            "suspect" => true,
            "alive" => false,
            _ => return None,
        };
        Some((StoreId::from_bytes(&store.store_id)?, suspect))
    });
    judged.collect()
}
