//! Background tasks that find the leader.
//!
//! Each master has a task that watches it while it leads, or while it is the second master that is watched. A
//! supervisor asks masters for the leader while none is known, and follows the list of masters and the leader timeout.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use mc_discovery::{Backoff, Poller, Step, Unsaid, Watch, hello};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use super::refusal::SOFTWARE;
use super::{Masters, MastersState};

/// Time limit of a hello. A master that takes longer is stopped, cut off or gone.
const HELLO_TIMEOUT: Duration = Duration::from_millis(300);
/// Time limit of a hello to the current leader. It is longer, because another connection does not help a busy leader.
const LEADER_TIMEOUT: Duration = Duration::from_millis(700);
/// Shortest and longest pause between two hellos to any masters while no leader is known.
const SEARCH: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Time in which an open watch may report the next leader before other masters are asked. Most elections end sooner,
/// and a watch reports the result at once.
const HEAD_START: Duration = Duration::from_millis(600);
/// Shortest and longest pause between attempts to watch one master.
const WATCH_AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Pause between resolutions of the list while no leader is known.
const RESOLVE_AGAIN: Duration = Duration::from_secs(1);
/// Minimum time between two watches of one master that are opened early because it answered.
const HURRY: Duration = Duration::from_secs(1);

/// Keeps looking for the leader.
pub(crate) async fn discover(masters: &Arc<Masters>) {
    let mut beacon = masters.state.subscribe();
    // The leader is always watched. This permit is for one more master, which reports the change when the leader
    // cannot.
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
        if let Some(leader) = &now.leader {
            last_leader = Some(leader.address.clone());
        }
        let found = now.leader.is_some() && !now.doubted && now.all_tried;
        if !found && !searching {
            // The watch of the lost leader reports nothing more.
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
        tokio::select! {
            changed = beacon.changed() => if changed.is_err() { return },
            // The lookup runs beside the search, because a resolver may be slow.
            () = sleep_until(resolve_at), if now.leader.is_none() && lookups.is_empty() => {
                let masters = Arc::clone(masters);
                lookups.spawn(async move { masters.listed(masters.list.resolve().await) });
                resolve_at = Instant::now() + RESOLVE_AGAIN;
            }
            Some(_) = lookups.join_next() => {}
            // A task that panicked has logged it; its master is asked again.
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

/// Asks a master who leads, and records its answer.
async fn ask(masters: Arc<Masters>, address: String) {
    let asked = Instant::now();
    let mut line = match masters.line(&address) {
        Ok(line) => line,
        Err(_) => return masters.silent(&address, asked, "it is not an address".to_owned()),
    };
    let leads = masters.leader().is_some_and(|leader| leader.address == address);
    let limit = if leads { LEADER_TIMEOUT } else { HELLO_TIMEOUT };
    match hello(&mut line.client, SOFTWARE, limit).await {
        Ok(said) => {
            masters.greeted(&address, said);
            masters.answered.send_replace(address.clone());
        }
        Err(Unsaid::Busy(_)) => masters.busy(&address),
        Err(Unsaid::Skewed(theirs)) => {
            masters.skewed(&address, &theirs);
            masters.answered.send_replace(address.clone());
        }
        Err(Unsaid::Refused(why) | Unsaid::Silent(why)) => {
            // Use a new connection for the next hello: this one may be half open.
            masters.renew(&address, &line);
            masters.silent(&address, asked, why);
        }
    }
}

/// Watches the master while it leads or holds the second permit.
async fn observe(masters: &Masters, address: &str, second_watch: &Arc<Semaphore>, open: &OpenWatches) {
    let mut beacon = masters.state.subscribe();
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
        // All clients learn of a new leader at once, so they spread their watches. Their calls go there without delay.
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
            // The master has just come back and may not know a leader yet. Its watch reports one sooner than the next
            // hello.
            () = async {
                answered(&mut answers, address).await;
                sleep_until(hurried + HURRY).await;
            } => hurried = Instant::now(),
        }
    }
}

/// Waits until the master at `address` answers a hello.
async fn answered(answers: &mut watch::Receiver<String>, address: &str) {
    loop {
        if answers.changed().await.is_err() {
            // The sender lives as long as the client, and the client's end stops this task.
            std::future::pending::<()>().await;
        }
        if *answers.borrow_and_update() == address {
            return;
        }
    }
}

/// Addresses of the masters whose watches are open. Each master has only one watching task.
#[derive(Default)]
struct OpenWatches(Mutex<BTreeSet<String>>);

/// Guard that lists a watch among the open ones until it is dropped.
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

fn leads(state: &MastersState, address: &str) -> bool {
    state.leader.as_ref().is_some_and(|leader| leader.address == address)
}

/// Runs one watch stream from its opening to its end.
async fn watch_one(
    masters: &Masters,
    address: &str,
    beacon: &mut watch::Receiver<MastersState>,
    permit: &mut Option<OwnedSemaphorePermit>,
    second_watch: &Arc<Semaphore>,
    open: &OpenWatches,
) {
    let opened = Instant::now();
    let Ok(mut line) = masters.line(address) else { return };
    let limit = if leads(&beacon.borrow(), address) { LEADER_TIMEOUT } else { HELLO_TIMEOUT };
    let caller = masters.caller(None);
    let Ok(mut watch) = Watch::open(&mut line.client, caller, false, limit).await else { return };
    let _open = Open::new(open, address);
    loop {
        tokio::select! {
            event = watch.next() => match event {
                Ok(event) => masters.watched(address, event),
                // A leader that closes its watch may be gone: ask it now instead of at the next call.
                Err(_) => {
                    if let Some(leader) = masters.leader() && leader.address == address {
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
