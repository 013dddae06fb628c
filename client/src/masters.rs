//! The client's view of the masters, shared by the calls that use it and the tasks that find it out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mc_discovery::Listed;
use mc_net::ChannelOptions;
use mc_proto::{
    VERSIONS, common_version,
    v1::{Caller, HelloReply, Leader, WatchEvent},
};
use mc_types::{ClientId, ClusterId, NodeId};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::avoid::AvoidList;
use crate::cache::LocalCache;
use crate::channels::Channels;
use crate::embedded::Embedded;
use crate::identity::{Identity, Verdict};
use crate::leader::{LeaderAt, LeaderView, Source};
use crate::list::MasterList;
use crate::metrics::Counters;
use crate::options::Builder;
use crate::publish::Unpublished;
use crate::refusal::Refusal;

/// Keep-alive of idle connections. Calls find out sooner by themselves that a leader does not answer; this is for the
/// watch of another master, and every client of a fleet has one.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// A slip of a master must not keep a client without a watch.
const LONGEST_SPREAD_MS: u64 = 5_000;

/// Whom to call.
#[derive(Clone, Debug)]
pub(crate) enum Link {
    /// No leader is known, and the leader timeout has not passed.
    Searching,
    /// This one leads.
    Leader(Arc<LeaderAt>),
    /// No leader has answered for the leader timeout.
    LocalOnly,
    /// Every master that ever answered is one that this client cannot or must not use.
    Refused(Arc<Refusal>),
    /// The client was closed.
    Closed,
}

/// Signals that the tasks and the pending calls follow.
#[derive(Clone, Debug)]
pub(crate) struct Beacon {
    pub(crate) link: Link,
    /// A call to the leader has waited long, or its watch broke: it is asked whether it still leads.
    pub(crate) doubted: bool,
    /// Addresses to know about.
    pub(crate) targets: Arc<BTreeSet<String>>,
    /// Every listed master has answered or failed to at least once.
    pub(crate) all_tried: bool,
}

#[derive(Debug)]
pub(crate) struct Masters {
    pub(crate) list: MasterList,
    pub(crate) channels: Channels,
    pub(crate) client_id: ClientId,
    pub(crate) leader_timeout: Duration,
    pub(crate) avoid: AvoidList,
    pub(crate) cache: LocalCache,
    /// The memory of this process's own store, if it runs one.
    pub(crate) embedded: Option<Embedded>,
    /// Local puts that are to be published, if any are.
    pub(crate) unpublished: Option<Unpublished>,
    pub(crate) counters: Counters,
    pub(crate) beacon: watch::Sender<Beacon>,
    /// The master that last answered a hello.
    pub(crate) answered: watch::Sender<String>,
    /// Over how long clients go over to another master, as one last said.
    spread_ms: AtomicU64,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    view: LeaderView,
    identity: Identity,
    /// The user's list, resolved.
    listed: Listed,
    /// The masters, as those of our cluster report them.
    learned: BTreeSet<String>,
    heard: BTreeMap<String, Heard>,
    /// A master of our cluster that speaks our protocol has answered, now or earlier.
    met_ours: bool,
    /// The last refusal, whether that master still answers or not.
    last_refusal: Option<Arc<Refusal>>,
    /// The last leader's term: the stores that it calls suspect are.
    judged_by: Option<u64>,
    /// Since when the leader's silence counts, while it is doubted.
    doubted_since: Option<Instant>,
    leaderless_since: Option<Instant>,
    local_only: bool,
    closed: bool,
}

/// Result of the last try to ask a master.
#[derive(Clone, Debug)]
enum Heard {
    Silence,
    Usable,
    Refused(Arc<Refusal>),
}

impl Masters {
    pub(crate) fn new(builder: &Builder, list: MasterList, listed: Listed) -> Self {
        let options = ChannelOptions {
            connect_timeout: builder.connect_timeout,
            call_timeout: None,
            keep_alive: KEEP_ALIVE,
        };
        let beacon = Beacon {
            link: Link::Searching,
            doubted: false,
            targets: Arc::new(listed.addresses.clone()),
            all_tried: false,
        };
        Self {
            list,
            channels: Channels::new(Arc::clone(&builder.network), options),
            client_id: ClientId::random(),
            leader_timeout: builder.leader_timeout,
            avoid: AvoidList::new(),
            cache: LocalCache::new(builder.local_cache),
            embedded: builder.embedded.clone().map(|(store, segments)| Embedded::new(store, segments)),
            unpublished: builder.publish_local.then(Unpublished::default),
            counters: Counters::new(),
            beacon: watch::Sender::new(beacon),
            answered: watch::Sender::new(String::new()),
            spread_ms: AtomicU64::new(0),
            known: Mutex::new(Known {
                view: LeaderView::default(),
                identity: Identity::new(builder.cluster),
                listed,
                learned: BTreeSet::new(),
                heard: BTreeMap::new(),
                met_ours: false,
                last_refusal: None,
                judged_by: None,
                doubted_since: None,
                leaderless_since: Some(Instant::now()),
                local_only: false,
                closed: false,
            }),
        }
    }

    pub(crate) fn link(&self) -> Link {
        self.beacon.borrow().link.clone()
    }

    /// Drops what this client has and knows of a key's object.
    pub(crate) fn forget(&self, key: &[u8]) {
        self.cache.remove(key);
        if let Some(embedded) = &self.embedded {
            embedded.forget(key);
        }
    }

    /// Addresses of all masters that are known now.
    pub(crate) fn targets(&self) -> BTreeSet<String> {
        (*self.beacon.borrow().targets).clone()
    }

    pub(crate) fn cluster(&self) -> Option<ClusterId> {
        self.known.lock().identity.ours()
    }

    pub(crate) fn caller(&self, node: Option<NodeId>) -> Caller {
        Caller {
            cluster_id: self.cluster().map_or_else(Default::default, |id| id.to_bytes().to_vec().into()),
            node_id: node.map_or_else(Default::default, |id| id.to_bytes().to_vec().into()),
            client_id: self.client_id.to_bytes().to_vec().into(),
            version_min: *VERSIONS.start(),
            version_max: *VERSIONS.end(),
        }
    }

    /// A master answered a hello.
    pub(crate) fn greeted(&self, address: &str, reply: &HelloReply) {
        self.learn(|known| {
            let theirs = reply.version_min..=reply.version_max;
            if common_version(VERSIONS, theirs.clone()).is_none() {
                known.refuse(address, Refusal::skew(address, &theirs, &reply.software));
                return;
            }
            let node = NodeId::from_bytes(&reply.node_id);
            if !known.belongs(self, address, node, &reply.cluster_id, &reply.masters) {
                return;
            }
            let named = reply.leader.as_ref().and_then(LeaderAt::read);
            match (named, node) {
                // Its own address is the one that answered here, whatever it calls itself to others.
                (Some(leader), Some(node)) if leader.node == node => {
                    if known.view.current().is_some_and(|current| current.same_reign(&leader)) {
                        known.doubted_since = None;
                    }
                    known.offer(LeaderAt { address: address.to_owned(), ..leader }, Source::Itself);
                }
                (named, node) => {
                    // Whom we took for the leader says that it is not.
                    if let Some(current) = known.view.current().cloned()
                        && Some(current.node) == node
                    {
                        known.give_up(&current, Instant::now());
                    }
                    if let Some(leader) = named {
                        known.offer(leader, Source::Other);
                    }
                }
            }
        });
    }

    /// Over how long clients go over to another master, so that they do not do it all at once.
    pub(crate) fn spread(&self) -> Duration {
        Duration::from_millis(self.spread_ms.load(Ordering::Relaxed))
    }

    /// A watched master says who leads.
    pub(crate) fn watched(&self, address: &str, event: &WatchEvent) {
        self.spread_ms.store(u64::from(event.spread_ms).min(LONGEST_SPREAD_MS), Ordering::Relaxed);
        self.learn(|known| {
            // A hello comes first: it is what tells whether we speak the same protocol.
            let usable = match known.heard.get(address) {
                None => false,
                Some(Heard::Refused(refusal)) => matches!(**refusal, Refusal::Cluster { .. }),
                Some(Heard::Silence | Heard::Usable) => true,
            };
            if usable
                && known.belongs(self, address, None, &event.cluster_id, &event.masters)
                && let Some(leader) = event.leader.as_ref().and_then(LeaderAt::read)
            {
                known.offer(leader, Source::Other);
            }
        });
    }

    /// A master refused a hello, because it speaks only these versions.
    pub(crate) fn skewed(&self, address: &str, theirs: &str) {
        let refusal = Refusal::Skew { address: address.to_owned(), theirs: theirs.to_owned() };
        self.learn(|known| known.refuse(address, refusal));
    }

    /// A master put a hello off: it lives and has no time.
    pub(crate) fn busy(&self, address: &str) {
        self.learn(|known| {
            known.heard.entry(address.to_owned()).or_insert(Heard::Silence);
            if known.view.current().is_some_and(|current| current.address == address) {
                known.doubted_since = None;
            }
        });
    }

    /// A master did not answer a hello in time. `asked` is when it was sent.
    pub(crate) fn silent(&self, address: &str, asked: Instant) {
        self.learn(|known| {
            known.heard.insert(address.to_owned(), Heard::Silence);
            if let Some(since) = known.doubted_since
                && let Some(current) = known.view.current().cloned()
                && current.address == address
            {
                known.give_up(&current, since.min(asked));
            }
        });
    }

    /// `from` answered a call with NOT_LEADER.
    pub(crate) fn redirected(&self, from: &LeaderAt, to: Option<&Leader>) {
        self.learn(|known| {
            known.give_up(from, Instant::now());
            if let Some(leader) = to.and_then(LeaderAt::read) {
                known.offer(leader, Source::Other);
            }
        });
    }

    /// The leader's connection failed, or it is not who it was. `since` is when the call was sent that found out.
    pub(crate) fn lost(&self, leader: &LeaderAt, since: Instant) {
        self.learn(|known| known.give_up(leader, since));
    }

    /// The leader has not answered something sent at `since`: ask it whether it lives.
    pub(crate) fn doubt(&self, leader: &LeaderAt, since: Instant) {
        self.learn(|known| {
            if known.view.current().is_some_and(|current| current.same_reign(leader)) {
                known.doubted_since = Some(known.doubted_since.map_or(since, |before| before.min(since)));
            }
        });
    }

    /// A master refused a call because it belongs to another cluster.
    pub(crate) fn foreign(&self, leader: &LeaderAt, theirs: &str, since: Instant) {
        self.learn(|known| {
            if let Ok(reported) = theirs.parse::<ClusterId>() {
                let list = known.list();
                known.identity_of(self, &list, &leader.address, Some(leader.node), reported);
            }
            known.give_up(leader, since);
        });
    }

    /// The list was resolved again.
    pub(crate) fn listed(&self, listed: Listed) {
        self.learn(|known| known.listed = listed);
    }

    /// When local-only mode begins if no leader is found before; `None` while there is one, or once it has begun.
    pub(crate) fn leaderless_until(&self) -> Option<Instant> {
        let known = self.known.lock();
        known.leaderless_since.filter(|_| !known.local_only).map(|since| since + self.leader_timeout)
    }

    /// The leader timeout may have passed.
    pub(crate) fn check_leader_timeout(&self) {
        let now = Instant::now();
        self.learn(|known| {
            known.local_only |=
                known.leaderless_since.is_some_and(|since| now >= since + self.leader_timeout);
        });
    }

    pub(crate) fn close(&self) {
        self.learn(|known| known.closed = true);
    }

    /// A listed master of another cluster, while ours is not that of the list's majority either: nobody can tell which
    /// one the user means.
    pub(crate) fn conflict(&self) -> Option<Arc<Refusal>> {
        let known = self.known.lock();
        if known.identity.is_settled(&known.list()) {
            return None;
        }
        known.heard.values().find_map(|heard| match heard {
            Heard::Refused(refusal) if matches!(**refusal, Refusal::Cluster { .. }) => {
                Some(Arc::clone(refusal))
            }
            _ => None,
        })
    }

    /// Changes what is known and tells everybody who follows what came of it.
    fn learn(&self, change: impl FnOnce(&mut Known)) {
        let mut known = self.known.lock();
        let before = known.view.current().cloned();
        let was_local_only = known.local_only;
        change(&mut known);
        let after = known.view.current().cloned();
        if let Some(leader) = &after
            && before.as_ref() != Some(leader)
        {
            known.doubted_since = None;
            known.leaderless_since = None;
            known.local_only = false;
            // The one that said so goes on saying it.
            if known.judged_by.replace(leader.term) != Some(leader.term) {
                self.avoid.forget_suspects();
            }
            self.counters.leader_changes.one();
        }
        let targets: BTreeSet<String> = (known.listed.addresses.iter())
            .chain(&known.learned)
            .chain(after.as_ref().map(|leader| &leader.address))
            .cloned()
            .collect();
        let link = known.link(&self.beacon.borrow().link);
        let doubted = known.doubted_since.is_some();
        let all_tried = known.listed.addresses.iter().all(|address| known.heard.contains_key(address));
        self.beacon.send_if_modified(|beacon| {
            let changed = beacon.doubted != doubted
                || beacon.all_tried != all_tried
                || *beacon.targets != targets
                || !beacon.link.is_same(&link);
            if *beacon.targets != targets {
                beacon.targets = Arc::new(targets);
            }
            beacon.link = link;
            beacon.doubted = doubted;
            beacon.all_tried = all_tried;
            changed
        });
        if known.local_only != was_local_only && !known.closed {
            if known.local_only {
                self.counters.local_only_entries.one();
                tracing::warn!(
                    timeout_ms = u64::try_from(self.leader_timeout.as_millis()).unwrap_or(u64::MAX),
                    "no leader answers: local-only mode, gets answer from what is kept or lies here and puts stay in the local cache"
                );
            } else if let Some(leader) = &after {
                tracing::info!(
                    address = leader.address,
                    term = leader.term,
                    "leader found: left local-only mode"
                );
            }
        }
    }
}

impl Known {
    /// Whether the master at `address` is of our cluster; takes in what it says either way.
    fn belongs(
        &mut self,
        masters: &Masters,
        address: &str,
        node: Option<NodeId>,
        cluster: &[u8],
        learned: &[String],
    ) -> bool {
        // A master that waits for its cluster to form has no id yet; it is of no use and no harm.
        if let Some(reported) = ClusterId::from_bytes(cluster) {
            let list = self.list();
            if !self.identity_of(masters, &list, address, node, reported) {
                return false;
            }
            if !learned.is_empty() {
                self.learned = learned.iter().filter(|address| !address.is_empty()).cloned().collect();
            }
        }
        self.heard.insert(address.to_owned(), Heard::Usable);
        self.met_ours = true;
        true
    }

    /// The list that decides by majority. A list of one is no list to take a majority of: it is widened by what its
    /// master said the masters are.
    fn list(&self) -> Listed {
        let Listed { addresses, masters } = &self.listed;
        match masters {
            1 => Listed { addresses: addresses | &self.learned, masters: self.learned.len().max(1) },
            _ => self.listed.clone(),
        }
    }

    fn identity_of(
        &mut self,
        masters: &Masters,
        list: &Listed,
        address: &str,
        node: Option<NodeId>,
        reported: ClusterId,
    ) -> bool {
        match self.identity.report(list, address, node, reported) {
            Verdict::Ours => true,
            Verdict::Replaced => {
                tracing::warn!(cluster = %reported, "a majority of the masters reports this cluster: following it");
                self.view.forget();
                self.learned.clear();
                self.leaderless_since.get_or_insert_with(Instant::now);
                self.heard.retain(|_, heard| !matches!(heard, Heard::Refused(_)));
                masters.cache.clear();
                masters.embedded.iter().for_each(Embedded::clear);
                if let Some(unpublished) = &masters.unpublished {
                    unpublished.forget(&masters.counters);
                }
                true
            }
            Verdict::Foreign { ours } => {
                self.refuse(
                    address,
                    Refusal::Cluster { address: address.to_owned(), ours, theirs: reported },
                );
                false
            }
        }
    }

    fn refuse(&mut self, address: &str, refusal: Refusal) {
        let known = matches!(self.heard.get(address), Some(Heard::Refused(before)) if **before == refusal);
        if !known {
            tracing::warn!("{refusal}");
            let refusal = Arc::new(refusal);
            self.last_refusal = Some(Arc::clone(&refusal));
            self.heard.insert(address.to_owned(), Heard::Refused(refusal));
        }
    }

    fn offer(&mut self, leader: LeaderAt, source: Source) {
        self.view.offer(leader, source);
    }

    fn give_up(&mut self, leader: &LeaderAt, since: Instant) {
        if self.view.give_up(leader) {
            self.doubted_since = None;
            self.leaderless_since = Some(since);
        }
    }

    fn link(&self, before: &Link) -> Link {
        if self.closed {
            return Link::Closed;
        }
        if let Some(leader) = self.view.current() {
            return match before {
                Link::Leader(known) if **known == *leader => before.clone(),
                _ => Link::Leader(Arc::new(leader.clone())),
            };
        }
        match &self.last_refusal {
            // Nobody else has ever answered: the list is wrong, or this client too old or too new for it.
            Some(refusal) if !self.met_ours => Link::Refused(Arc::clone(refusal)),
            _ if self.local_only => Link::LocalOnly,
            _ => Link::Searching,
        }
    }
}

impl Link {
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Leader(a), Self::Leader(b)) => a == b,
            (Self::Refused(a), Self::Refused(b)) => a == b,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}
