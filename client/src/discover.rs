//! The background tasks that find the leader: one for each master, which watches it while it leads or is the second one
//! that is watched; one above them, which asks who leads while nobody knows, and follows the list of masters and the
//! leader timeout.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use mc_discovery::{Backoff, Poller, Step};
use mc_proto::{
    VERSIONS, detail_of,
    v1::{HelloRequest, WatchEvent, WatchRequest},
};
use mc_types::{Code, StoreId};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::Request;

use crate::masters::{Beacon, Link, Masters};
use crate::refusal::SOFTWARE;

/// A hello that takes longer went to a master that is stopped, cut off or gone.
const HELLO_TIMEOUT: Duration = Duration::from_millis(300);
/// The same for the leader in office: one that has much to do is no better off with another connection.
const LEADER_TIMEOUT: Duration = Duration::from_millis(700);
/// Between two hellos while no leader is known, to whatever master.
const SEARCH: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How long an open watch is left to tell of the next leader before other masters are asked: most elections are over by
/// then, and it tells at once.
const HEAD_START: Duration = Duration::from_millis(600);
/// Between attempts to watch one master.
const WATCH_AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Between resolutions of the list while no leader is known.
const RESOLVE_AGAIN: Duration = Duration::from_secs(1);
/// Between two watches of one master that are opened as soon as it answers.
const HURRY: Duration = Duration::from_secs(1);

/// Finds leaders until `closed`.
pub(crate) async fn run(masters: Arc<Masters>, closed: CancellationToken) {
    closed.run_until_cancelled_owned(supervise(&masters)).await;
    masters.close();
}

async fn supervise(masters: &Arc<Masters>) {
    let mut beacon = masters.beacon.subscribe();
    // The leader is always watched; this permit is for one more master, which speaks up when the leader cannot.
    let second_watch = Arc::new(Semaphore::new(1));
    let open_watches = Arc::new(OpenWatches::default());
    let mut watches: BTreeMap<String, AbortOnDropHandle<()>> = BTreeMap::new();
    let mut resolve_at = Instant::now() + RESOLVE_AGAIN;
    let mut poller = Poller::new(SEARCH.0, SEARCH.1, Instant::now());
    let mut questions = JoinSet::new();
    let mut asked: HashMap<tokio::task::Id, String> = HashMap::new();
    let mut lookups = JoinSet::new();
    let mut searching = true;
    let mut last_leader: Option<String> = None;
    loop {
        let now = beacon.borrow_and_update().clone();
        watches.retain(|address, _| now.targets.contains(address));
        for address in now.targets.iter() {
            watches.entry(address.clone()).or_insert_with(|| {
                let (masters, address) = (Arc::clone(masters), address.clone());
                let (second, open) = (Arc::clone(&second_watch), Arc::clone(&open_watches));
                let observed = async move { observe(&masters, &address, &second, &open).await };
                AbortOnDropHandle::new(tokio::spawn(observed))
            });
        }
        if let Link::Leader(leader) = &now.link {
            last_leader = Some(leader.address.clone());
        }
        let found = matches!(now.link, Link::Leader(_)) && !now.doubted && now.all_tried;
        if !found && !searching {
            // That of the lost leader tells nothing more.
            let told = open_watches.0.lock().iter().any(|at| Some(at) != last_leader.as_ref());
            poller.begin(Instant::now(), if told { HEAD_START } else { Duration::ZERO });
        }
        searching = !found;
        let mut look_again = None;
        while searching && look_again.is_none() {
            match poller.step(Instant::now(), &now.targets, last_leader.as_deref()) {
                Step::Ask(address) => {
                    let question = questions.spawn(ask(Arc::clone(masters), address.clone()));
                    asked.insert(question.id(), address);
                }
                Step::Wait(until) => look_again = Some(until),
            }
        }
        let leaderless_until = masters.leaderless_until();
        tokio::select! {
            changed = beacon.changed() => if changed.is_err() { return },
            () = sleep_until(leaderless_until.unwrap_or(resolve_at)), if leaderless_until.is_some() => {
                masters.check_leader_timeout();
            }
            // Beside the search: a resolver may take its time.
            () = sleep_until(resolve_at), if !matches!(now.link, Link::Leader(_)) && lookups.is_empty() => {
                let masters = Arc::clone(masters);
                lookups.spawn(async move { masters.listed(masters.list.resolve().await) });
                resolve_at = Instant::now() + RESOLVE_AGAIN;
            }
            Some(_) = lookups.join_next() => {}
            // One that panicked has logged that; its master is asked again.
            Some(ended) = questions.join_next_with_id() => {
                let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                if let Some(address) = asked.remove(&id) {
                    poller.ended(&address);
                }
            }
            () = sleep_until(look_again.unwrap_or(resolve_at)), if look_again.is_some() => {}
        }
    }
}

/// Asks the master who leads.
async fn ask(masters: Arc<Masters>, address: String) {
    let asked = Instant::now();
    let hello = HelloRequest {
        version_min: *VERSIONS.start(),
        version_max: *VERSIONS.end(),
        software: SOFTWARE.to_owned(),
    };
    let Ok(mut line) = masters.channels.to(&address) else {
        return masters.silent(&address, asked);
    };
    let leads = matches!(masters.link(), Link::Leader(leader) if leader.address == address);
    let limit = if leads { LEADER_TIMEOUT } else { HELLO_TIMEOUT };
    let answer = within(limit, line.client.hello(hello)).await;
    let failed = || {
        // The next hello goes over a new connection: this one may be half open.
        masters.channels.replace(&address, &line);
        masters.silent(&address, asked);
    };
    match answer {
        Some(Ok(reply)) => {
            masters.greeted(&address, &reply.into_inner());
            masters.answered.send_replace(address.clone());
        }
        Some(Err(status)) => match detail_of(&status) {
            // It answers, and puts this off because it has too much to do.
            Some(detail) if detail.code == Code::ResourceExhausted as i32 => masters.busy(&address),
            Some(detail) if detail.code == Code::VersionSkew as i32 => {
                masters.skewed(&address, &detail.ours);
            }
            _ => failed(),
        },
        None => failed(),
    }
}

/// Runs `work` for up to `limit`, and waits for that in parts: a process that was starved of its processor finds the
/// time over, and gives what has arrived meanwhile its turn before it believes that nothing has.
async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    let over = async {
        for _ in 0..4 {
            sleep(limit / 4).await;
        }
    };
    tokio::select! {
        biased;
        done = work => Some(done),
        () = over => None,
    }
}

/// Watches the master while it leads or holds the second permit.
async fn observe(masters: &Masters, address: &str, second_watch: &Arc<Semaphore>, open: &OpenWatches) {
    let mut beacon = masters.beacon.subscribe();
    let mut again = Backoff::new(WATCH_AGAIN.0, WATCH_AGAIN.1);
    let mut answers = masters.answered.subscribe();
    let mut hurried = Instant::now();
    loop {
        let mut permit = None;
        tokio::select! {
            // The leader's watch leaves the second permit to others.
            biased;
            led = beacon.wait_for(|beacon| leads(beacon, address)) => if led.is_err() { return },
            got = Arc::clone(second_watch).acquire_owned() => permit = got.ok(),
        }
        // A new leader is met by every client at the same moment. Calls go there at once; the watch can come later.
        sleep(masters.spread().mul_f64(rand::random_range(0.0..1.0))).await;
        let began = Instant::now();
        watch_one(masters, address, &mut beacon, &mut permit, second_watch, open).await;
        drop(permit);
        if began.elapsed() > WATCH_AGAIN.1 {
            again.reset();
        }
        answers.mark_unchanged();
        tokio::select! {
            () = sleep(again.wait()) => {}
            // It has just come back, and may not know a leader yet: its watch tells sooner than the next question.
            () = async {
                answered(&mut answers, address).await;
                sleep_until(hurried + HURRY).await;
            } => hurried = Instant::now(),
        }
    }
}

/// Returns when the master at `address` answers a hello.
async fn answered(answers: &mut watch::Receiver<String>, address: &str) {
    loop {
        if answers.changed().await.is_err() {
            // The sender lives as long as the client, which ends this task.
            std::future::pending::<()>().await;
        }
        if *answers.borrow_and_update() == address {
            return;
        }
    }
}

/// The masters whose watches are open. Each master has one task that watches it.
#[derive(Default)]
struct OpenWatches(Mutex<BTreeSet<String>>);

/// Has a watch among the open ones until it is dropped.
struct Open<'a> {
    among: &'a OpenWatches,
    address: &'a str,
}

impl<'a> Open<'a> {
    fn new(among: &'a OpenWatches, address: &'a str) -> Self {
        among.0.lock().insert(address.to_owned());
        Self { among, address }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.among.0.lock().remove(self.address);
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
    open: &OpenWatches,
) {
    let opened = Instant::now();
    let Ok(mut line) = masters.channels.to(address) else { return };
    let request = Request::new(WatchRequest { caller: Some(masters.caller(None)), leader_only: false });
    let limit = if leads(&beacon.borrow(), address) { LEADER_TIMEOUT } else { HELLO_TIMEOUT };
    let Some(Ok(stream)) = within(limit, line.client.watch(request)).await else { return };
    let mut stream = stream.into_inner();
    let _open = Open::new(open, address);
    loop {
        tokio::select! {
            event = stream.message() => match event {
                Ok(Some(event)) => {
                    masters.watched(address, &event);
                    match event.all_suspects {
                        true => masters.avoid.hear_all(suspects(&event)),
                        false => masters.avoid.hear(store_states(&event)),
                    }
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

fn suspects(event: &WatchEvent) -> impl Iterator<Item = StoreId> {
    store_states(event).into_iter().filter_map(|(store, suspect)| suspect.then_some(store))
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
