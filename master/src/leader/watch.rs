//! News for clients and stores that watch: who leads, where the masters are, and which stores are suspect.

use std::sync::Arc;
use std::time::Duration;

use mc_index::ReadPolicy;
use mc_types::StoreId;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::leader::members::MemberState;
use crate::leader::services::Services;
use crate::leader::term::{KnownLeader, Leading};

/// Time between two checks of the members. Watchers hear of a master that moved with up to this delay.
const MEMBERS_INTERVAL: Duration = Duration::from_millis(500);

/// Time after which a watcher gets the same event again if there is no news, so that its view is never older than that.
/// It is not for finding dead connections; keep-alive does that.
const WATCH_INTERVAL: Duration = Duration::from_secs(10);
/// The same time from a leader that is unsure at this moment whether it still leads.
const UNSURE_INTERVAL: Duration = Duration::from_millis(100);

/// Shortest time between two store events to one watcher.
const STORE_NEWS: Duration = Duration::from_millis(50);
/// Time that each watcher adds to that. All watchers together then get ten thousand events a second, which take a fifth
/// of a core.
const STORE_NEWS_OF_ONE: Duration = Duration::from_micros(100);
/// Time that each store in an event adds for each watcher.
const STORE_NEWS_OF_A_STORE: Duration = Duration::from_micros(2);
/// Longest time between two events about stores to one watcher.
const LONGEST_STORE_NEWS: Duration = Duration::from_secs(2);
/// Most stores in one event, except a watcher's first. A fleet that goes over to a new leader changes one store at a
/// time, and each watcher would be told of each.
const MOST_NEWS: usize = 64;

/// Returns the time between two store events to one watcher. It keeps stores that come and go again and again from
/// taking the leader's CPU. The first change after a pause is sent at once.
fn store_news_interval(watchers: usize, stores: usize) -> Duration {
    let of = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let event = STORE_NEWS_OF_ONE + STORE_NEWS_OF_A_STORE * of(stores.min(MOST_NEWS));
    event.saturating_mul(of(watchers)).clamp(STORE_NEWS, LONGEST_STORE_NEWS)
}

/// Time that each watcher adds to the period over which all watchers go over to another master. A core makes 2,500
/// connections a second easily.
const WATCHER_SPREAD: Duration = Duration::from_micros(400);
/// Longest such period.
const LONGEST_WATCHER_SPREAD: Duration = Duration::from_secs(2);

/// Period over which `watchers` watchers go over to another master.
fn watchers_spread(watchers: usize) -> Duration {
    WATCHER_SPREAD.saturating_mul(u32::try_from(watchers).unwrap_or(u32::MAX)).min(LONGEST_WATCHER_SPREAD)
}

/// Tells all watchers when members come, go or move, until this master stops. They have to know the others' addresses
/// before the next one moves.
pub(crate) async fn tell_of_members(services: Arc<Services>) {
    while services.coordinator.pause(MEMBERS_INTERVAL).await {
        let now = client_addresses(&services);
        services.addresses.send_if_modified(|told| {
            let changed = *told != now;
            *told = now;
            changed
        });
    }
}

fn client_addresses(services: &Services) -> Vec<String> {
    let members = services.coordinator.read(MemberState::of);
    members.into_iter().map(|member| member.addresses.client).collect()
}

/// Leader and store changes that a watcher has been told.
#[derive(Debug, Default)]
struct WatcherProgress {
    leader: Option<KnownLeader>,
    /// Term whose leader told the watcher about stores, and how many of its changes the watcher has been told.
    stores: Option<(u64, u64)>,
    /// Number of stores in the last event.
    in_last: usize,
    /// Whether there were more changes than went into the last event.
    more: bool,
}

/// News for one watcher.
pub(crate) struct WatchEvent {
    pub(crate) leader: Option<KnownLeader>,
    /// Client addresses of all members.
    pub(crate) masters: Vec<String>,
    /// Period over which the watchers go over to another master.
    pub(crate) spread: Duration,
    /// Stores, each with whether it is suspect.
    pub(crate) stores: Vec<(StoreId, bool)>,
    /// Whether `stores` are all suspects; otherwise they are changes.
    pub(crate) all_suspects: bool,
}

/// Reports leader and store changes until the watcher hangs up, this master stops, or the time `lasts` is over. With
/// `leader_only`, reports nothing about stores.
pub(crate) fn watch(
    services: Arc<Services>,
    leader_only: bool,
    lasts: Option<Duration>,
) -> mpsc::Receiver<WatchEvent> {
    let (events, stream) = mpsc::channel(2);
    tokio::spawn(async move {
        let over = over(lasts);
        tokio::pin!(over);
        let coordinator = &services.coordinator;
        let mut leader = services.raft.leadership();
        let mut changes = (!leader_only).then(|| services.stores.changes());
        let mut members = services.addresses.subscribe();
        let mut told = WatcherProgress::default();
        // Report the leader at once, even if the state of the stores takes another round trip.
        let mut patient = false;
        loop {
            // Marked as seen before they are read: a change in between comes as the next event.
            leader.borrow_and_update();
            members.borrow_and_update();
            let mut unsure = false;
            let leading = match &mut changes {
                None => None,
                Some(changes) => {
                    changes.borrow_and_update();
                    // Each watcher would cost an unsure leader a quorum round trip. So ask only under the read policy
                    // that has no lease.
                    let ask = patient && coordinator.read_policy() == ReadPolicy::ReadIndex;
                    let leading = if ask { coordinator.lead_soon().await } else { coordinator.lead_now() };
                    // A leader that is unsure at this moment has more to say shortly.
                    unsure = leading.is_none() && coordinator.is_leader();
                    leading
                }
            };
            let event = told.next(&services, leading.as_deref());
            if events.send(event).await.is_err() {
                return;
            }
            let pause = store_news_interval(services.stores.watchers(), told.in_last);
            let (next_at, more) = (Instant::now() + pause, told.more);
            let change = async {
                match &mut changes {
                    Some(changes) => {
                        let changed = more || changes.changed().await.is_ok();
                        tokio::time::sleep_until(next_at).await;
                        changed
                    }
                    None => std::future::pending().await,
                }
            };
            // The loss of a leader is no news to act on; the next leader is, a moment later.
            let led =
                leader.wait_for(|now| now.leader.is_some() && told.leader != KnownLeader::in_force(now));
            patient = tokio::select! {
                led = led => if led.is_err() { return } else { false },
                changed = change => if changed { true } else { return },
                changed = members.changed() => if changed.is_ok() { true } else { return },
                () = tokio::time::sleep(if unsure { UNSURE_INTERVAL.max(pause) } else { WATCH_INTERVAL }) => true,
                () = events.closed() => return,
                () = coordinator.stopped() => return,
                () = &mut over => return,
            };
        }
    });
    stream
}

/// Returns when so much time is over.
pub(crate) async fn over(lasts: Option<Duration>) {
    match lasts {
        Some(lasts) => tokio::time::sleep(lasts).await,
        None => std::future::pending().await,
    }
}

impl WatcherProgress {
    /// Returns the next event for the watcher, and records it as sent.
    fn next(&mut self, services: &Services, leading: Option<&Leading>) -> WatchEvent {
        let mut event = WatchEvent {
            leader: services.coordinator.leader(),
            masters: client_addresses(services),
            spread: watchers_spread(services.stores.watchers()),
            stores: Vec::new(),
            all_suspects: false,
        };
        self.leader.clone_from(&event.leader);
        // A master that no longer leads has nothing more to tell about stores.
        (self.in_last, self.more) = (0, false);
        if let Some(leading) = leading {
            let seen = self.stores.filter(|(term, _)| *term == leading.term).map(|(_, seen)| seen);
            let news = leading.liveness.news(seen, MOST_NEWS);
            self.stores = Some((leading.term, news.seen));
            (self.in_last, self.more) = (news.stores.len(), news.more);
            (event.stores, event.all_suspects) = (news.stores, seen.is_none());
        }
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_of_stores_are_bounded_however_many_watch() {
        assert_eq!(store_news_interval(3, MOST_NEWS), STORE_NEWS);
        for watchers in [1_000, 5_000, 15_000] {
            for stores in [0, 1, MOST_NEWS, 1_000] {
                let a_second = watchers as f64 / store_news_interval(watchers, stores).as_secs_f64();
                assert!(a_second <= 10_100.0, "{watchers}, {stores}: {a_second}");
                assert!(a_second * stores.min(MOST_NEWS) as f64 <= 500_000.0, "{watchers}, {stores}");
            }
        }
        assert_eq!(store_news_interval(usize::MAX, usize::MAX), LONGEST_STORE_NEWS);
    }

    #[test]
    fn few_watchers_go_over_at_once_and_many_within_two_seconds() {
        assert_eq!(
            [0, 1_000, 5_000, 1 << 40].map(watchers_spread),
            [0, 400, 2_000, 2_000].map(Duration::from_millis)
        );
    }
}
