//! Calls about the cluster: hello, status, watch, members.

use std::sync::Arc;
use std::time::Duration;

use mc_index::{CLUSTER_VERSION, ReadPolicy, StoreView};
use mc_log::MasterNode;
use mc_proto::v1;
use mc_raft::{Applied, TransferError};
use mc_types::{NodeId, StoreId};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::Refusal;
use super::grants::{bytes, endpoints};
use crate::leader::{Coordinator, Leading, leader_of};

/// A watcher that has nothing to hear gets the same event again so often. Keep-alive notices dead connections; this is
/// for the watcher, whose view then is never older.
const WATCH_INTERVAL: Duration = Duration::from_secs(10);
/// The same from a leader that does not know right now whether it still leads.
const UNSURE_INTERVAL: Duration = Duration::from_millis(100);

/// Between two events about stores to one watcher, where there are few watchers.
const STORE_NEWS: Duration = Duration::from_millis(50);
/// Time that each watcher adds to that: ten thousand events a second, all watchers together, take a fifth of a core.
const STORE_NEWS_OF_ONE: Duration = Duration::from_micros(100);
/// Time that each store in each event adds.
const STORE_NEWS_OF_A_STORE: Duration = Duration::from_micros(2);
/// News are never older than this.
const LONGEST_STORE_NEWS: Duration = Duration::from_secs(2);
/// Most stores in one event but a watcher's first: a fleet that goes over to a new leader changes one by one, and each
/// watcher would be told of each.
const MOST_NEWS: usize = 64;

/// The time between two events about stores to one watcher. Stores that come and go again and again must not take the
/// leader's CPU; the first change after a pause is told at once.
fn store_news_interval(watchers: usize, stores: usize) -> Duration {
    let of = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let event = STORE_NEWS_OF_ONE + STORE_NEWS_OF_A_STORE * of(stores.min(MOST_NEWS));
    event.saturating_mul(of(watchers)).clamp(STORE_NEWS, LONGEST_STORE_NEWS)
}

/// Over how long so many watchers go over to another master: 2,500 connections a second are what a core makes easily.
fn watchers_spread_ms(watchers: usize) -> u32 {
    u32::try_from(watchers * 2 / 5).unwrap_or(u32::MAX).min(2_000)
}

/// State of the stores that a watcher has been told.
#[derive(Debug, Default)]
struct Told {
    leader: Option<v1::Leader>,
    /// The term whose leader told it of stores, and how many of the changes.
    stores: Option<(u64, u64)>,
    /// Stores of the last event.
    in_last: usize,
    /// There were more than went into the last event.
    more: bool,
}

/// Name and version of this process.
pub(crate) fn software() -> String {
    concat!("mc-master ", env!("CARGO_PKG_VERSION")).to_owned()
}

/// A leader as it travels.
pub(crate) fn leader_message(id: NodeId, node: &MasterNode, term: u64) -> v1::Leader {
    v1::Leader { node_id: bytes(&id.to_bytes()), address: node.client.clone(), term }
}

impl Coordinator {
    pub(crate) fn hello(&self) -> v1::HelloReply {
        v1::HelloReply {
            version_min: *mc_proto::VERSIONS.start(),
            version_max: *mc_proto::VERSIONS.end(),
            software: software(),
            cluster_id: bytes(&self.cluster.to_bytes()),
            node_id: bytes(&self.raft.node_id().to_bytes()),
            leader: self.leader(),
            masters: self.master_addresses(),
        }
    }

    /// This master's status; on the leader with the liveness of the stores.
    pub(crate) async fn status(&self) -> v1::StatusReply {
        let leading = self.lead_soon().await;
        self.status_as(leading.as_deref())
    }

    /// The same for the gauges and probes of this master, which are about itself: nobody reads the pool from them.
    pub(crate) fn own_status(&self) -> v1::StatusReply {
        self.status_as(self.on_duty().as_deref())
    }

    fn status_as(&self, leading: Option<&Leading>) -> v1::StatusReply {
        let view = self.raft.view();
        let now = self.raft.leadership().borrow().clone();
        // A leader that can't write may not hold the lease that makes it `leading`.
        let blocked = self.raft.blocked().map(|blocked| blocked.to_string());
        let no_puts = blocked.or_else(|| Some(leading.and_then(|_| self.short_of_room())?.to_string()));
        // The lock is not recursive: nothing in here may ask the index, or who leads, again.
        self.index.read(|applied| {
            let state = &applied.state;
            v1::StatusReply {
                cluster_id: bytes(&self.cluster.to_bytes()),
                node_id: bytes(&self.raft.node_id().to_bytes()),
                software: software(),
                role: view.role.to_owned(),
                term: view.term,
                committed: view.committed,
                applied: applied.last_applied.map_or(0, |id| id.index),
                keys: state.objects(),
                cluster_time_ms: leading.map_or(state.time(), Leading::now).0,
                masters: members(applied),
                stores: state.stores().map(|store| store_status(&store, leading)).collect(),
                puts_in_flight: state.puts_in_flight(),
                cluster_version: state.cluster_version(),
                cluster_version_max: CLUSTER_VERSION,
                pid: std::process::id(),
                waiting_for: self.waits_for(applied, &now),
                leader: leader_of(&now),
                no_puts: no_puts.unwrap_or_default(),
            }
        })
    }

    pub(crate) fn members(&self) -> Vec<v1::MemberStatus> {
        self.index.read(members)
    }

    fn master_addresses(&self) -> Vec<String> {
        self.members().into_iter().map(|member| member.client_address).collect()
    }

    /// Tells leader and store changes until the watcher hangs up or this master stops; to one that asks for the leader
    /// only, nothing of stores.
    pub(crate) fn watch(
        self: &Arc<Self>,
        leader_only: bool,
    ) -> ReceiverStream<Result<v1::WatchEvent, Status>> {
        let (events, stream) = mpsc::channel(2);
        let this = self.clone();
        tokio::spawn(async move {
            let mut leader = this.raft.leadership();
            let mut changes = (!leader_only).then(|| this.store_changes.subscribe());
            let mut told = Told::default();
            // Who leads is told at once, also where it would take a round trip to tell of the stores, too.
            let mut patient = false;
            loop {
                // Marked as seen before they are read: a change in between comes as the next event.
                leader.borrow_and_update();
                let mut unsure = false;
                let leading = match &mut changes {
                    None => None,
                    Some(changes) => {
                        changes.borrow_and_update();
                        // Every watcher of an unsure leader would ask for a quorum of its own: that is for the policy
                        // under which nothing else can tell.
                        let ask = patient && this.index.read_policy() == ReadPolicy::ReadIndex;
                        let leading = if ask { this.lead_soon().await } else { this.lead_now() };
                        // A leader that is not sure of itself at this moment has more to say shortly.
                        unsure = leading.is_none() && this.raft.view().role == "leader";
                        leading
                    }
                };
                let event = this.watch_event(&mut told, leading.as_deref());
                let watchers = this.store_changes.receiver_count();
                if events.send(Ok(event)).await.is_err() {
                    return;
                }
                let pause = store_news_interval(watchers, told.in_last);
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
                // That nobody leads is no news to act on: the next leader is, a moment later.
                let led = leader.wait_for(|now| told.leader != leader_of(now) && now.leader.is_some());
                patient = tokio::select! {
                    led = led => if led.is_err() { return } else { false },
                    changed = change => if changed { true } else { return },
                    () = tokio::time::sleep(if unsure { UNSURE_INTERVAL.max(pause) } else { WATCH_INTERVAL }) => true,
                    () = events.closed() => return,
                    () = this.stop.cancelled() => return,
                };
            }
        });
        ReceiverStream::new(stream)
    }

    fn watch_event(&self, told: &mut Told, leading: Option<&Leading>) -> v1::WatchEvent {
        let mut event = v1::WatchEvent {
            leader: self.leader(),
            cluster_id: bytes(&self.cluster.to_bytes()),
            masters: self.master_addresses(),
            spread_ms: watchers_spread_ms(self.store_changes.receiver_count()),
            ..Default::default()
        };
        told.leader.clone_from(&event.leader);
        // One that leads no longer has nothing more to tell of stores.
        (told.in_last, told.more) = (0, false);
        if let Some(leading) = leading {
            let seen = told.stores.filter(|(term, _)| *term == leading.term).map(|(_, seen)| seen);
            let news = leading.liveness.news(seen, MOST_NEWS);
            event.all_suspects = seen.is_none();
            let of = |(store, suspect): &(StoreId, bool)| v1::StoreStatus {
                store_id: bytes(&store.to_bytes()),
                state: if *suspect { "suspect" } else { "alive" }.to_owned(),
                ..Default::default()
            };
            event.stores = news.stores.iter().map(of).collect();
            told.stores = Some((leading.term, news.seen));
            (told.in_last, told.more) = (news.stores.len(), news.more);
        }
        event
    }

    /// The members, on the leader with how well they follow.
    pub(crate) async fn list_members(&self) -> Result<v1::ListMembersReply, Refusal> {
        self.lead().await?;
        let mut members = self.members();
        if let Some(roster) = self.raft.roster() {
            for member in &mut members {
                let Some(seen) = NodeId::from_bytes(&member.node_id).and_then(|id| roster.members.get(&id))
                else {
                    continue;
                };
                member.lag_entries = Some(seen.lag);
                member.silent_ms =
                    seen.heard.map(|heard| u64::try_from(heard.elapsed().as_millis()).unwrap_or(u64::MAX));
            }
        }
        Ok(v1::ListMembersReply { members, leader: self.leader() })
    }

    pub(crate) async fn transfer_leader(
        &self,
        request: &v1::TransferLeaderRequest,
    ) -> Result<v1::TransferLeaderReply, Refusal> {
        let to = match &request.to[..] {
            [] => None,
            id => Some(node_id(id)?),
        };
        self.lead().await?;
        self.hand_over(to).await?;
        Ok(v1::TransferLeaderReply { leader: self.leader() })
    }

    /// Hands leadership to `to`, or to the voter that has most of the log; returns once it is taken.
    pub(crate) async fn hand_over(&self, to: Option<NodeId>) -> Result<(), Refusal> {
        let taken = self.raft.transfer_leader(to).await;
        taken.map(drop).map_err(|error| match error {
            TransferError::NotLeader(_) => self.not_leader(),
            TransferError::NoVoter(_) | TransferError::Silent(_) | TransferError::Alone => {
                Refusal::Invalid(error.to_string())
            }
            TransferError::NotTaken { .. } | TransferError::Stopped(_) => {
                Refusal::Unknown(format!("leadership was not handed over: {error}"))
            }
        })
    }
}

/// A node id as it travels.
pub(crate) fn node_id(id: &[u8]) -> Result<NodeId, Refusal> {
    NodeId::from_bytes(id).ok_or_else(|| Refusal::Invalid(format!("a node id has 8 bytes, not {}", id.len())))
}

fn members(applied: &Applied) -> Vec<v1::MemberStatus> {
    let membership = applied.membership.membership();
    let voters: Vec<_> = membership.voter_ids().collect();
    membership
        .nodes()
        .map(|(id, node)| v1::MemberStatus {
            node_id: bytes(&id.to_bytes()),
            raft_address: node.raft.clone(),
            client_address: node.client.clone(),
            http_address: node.http.clone(),
            voter: voters.contains(id),
            ..Default::default()
        })
        .collect()
}

/// A store as it travels. Only a leader can tell whether it is alive.
fn store_status(store: &StoreView<'_>, leading: Option<&Leading>) -> v1::StoreStatus {
    // As it is offered: what a fresh look at its heartbeats would say, nobody has been told yet.
    let state = match leading.map(|leading| leading.is_suspect(store.store)) {
        Some(false) => "alive",
        Some(true) => "suspect",
        None => "unknown",
    };
    v1::StoreStatus {
        store_id: bytes(&store.store.to_bytes()),
        name: store.name.to_owned(),
        epoch: bytes(&store.epoch.to_bytes()),
        endpoints: endpoints(store),
        state: state.to_owned(),
        capacity_bytes: store.capacity,
        used_bytes: store.used,
        objects: store.objects,
        http_address: store.http.to_owned(),
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
        assert_eq!([0, 2, 1_000, 5_000, 1 << 40].map(watchers_spread_ms), [0, 0, 400, 2_000, 2_000]);
    }
}
