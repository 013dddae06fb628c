//! The client's view of the masters, shared by the calls that use it and the tasks that keep it up to date.

mod discover;
mod list;
mod refusal;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mc_discovery::{
    Channels, ClusterIdentity, ClusterReport, Leader, LeaderView, Listed, MasterChannel, Verdict,
    WatchUpdate, Witness, caller,
};
use mc_net::{ChannelOptions, Network, Tls};
use mc_proto::v1::Caller;
use mc_types::{ClientId, ClusterId, NodeId, StoreId, TlsLevel};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;

pub(crate) use discover::discover;
pub(crate) use list::MasterList;
pub(crate) use refusal::Refusal;

use crate::config::Config;
use crate::metrics::Counters;

/// Keep-alive interval of idle connections. Calls notice sooner that a leader does not answer. The interval is for the
/// watch of another master; it is long because every client of a fleet has one.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Published view of the masters. Tasks and calls wait for a change of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MastersState {
    /// The leader, if one is known.
    pub(crate) leader: Option<Arc<Leader>>,
    /// Why no master can be used: each that has ever answered speaks another protocol version or belongs to another cluster.
    pub(crate) refusal: Option<Arc<Refusal>>,
    /// Since when no leader is known; `None` while one is.
    pub(crate) leaderless_since: Option<Instant>,
    /// Whether the leader is to be asked if it still leads: a call to it has waited long, or its watch broke.
    pub(crate) doubted: bool,
    /// Addresses of all masters to ask: those listed by the user, those reported by masters, and the leader's.
    pub(crate) targets: Arc<BTreeSet<String>>,
    /// Whether every listed master has answered or failed at least once.
    pub(crate) all_tried: bool,
}

/// News from masters for the rest of the client, beyond whom to call.
#[derive(Debug)]
pub(crate) enum Change {
    /// The new leader has another term, so the suspects of the last one no longer count.
    NewTerm,
    /// Most masters report another cluster, so everything known of the old one is void.
    NewCluster,
    /// The complete list of suspect stores.
    AllSuspects(Vec<StoreId>),
    /// Stores that changed, with whether they are suspect now.
    Stores(Vec<(StoreId, bool)>),
}

/// Receives changes. It is called while the view of the masters is locked, so it must not read that view.
pub(crate) trait Observer: std::fmt::Debug + Send + Sync {
    fn changed(&self, change: Change);

    /// Receives what is known of the masters after each change of it.
    fn published(&self, state: &MastersState);
}

/// State of the masters as this client knows it.
#[derive(Debug)]
pub(crate) struct Masters {
    pub(crate) list: MasterList,
    channels: Arc<Channels>,
    /// Certificates of this client, which are used with stores as far as the cluster says.
    tls: Option<Arc<Tls>>,
    /// How far the cluster insists on TLS, as a master of it said last.
    tls_level: Mutex<Option<TlsLevel>>,
    /// Runs the connections to masters.
    runtime: Handle,
    client_id: ClientId,
    counters: Arc<Counters>,
    observer: Box<dyn Observer>,
    pub(crate) state: watch::Sender<MastersState>,
    /// The leader that last answered a call, and when.
    last_answer: Mutex<Option<(Arc<Leader>, Instant)>>,
    /// Time in ms over which clients spread when they move to another master, as a watched master last reported it.
    spread_ms: AtomicU64,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    view: LeaderView,
    identity: ClusterIdentity,
    /// The user's list, resolved to addresses.
    listed: Listed,
    /// Addresses of the masters as masters of our cluster report them.
    learned: BTreeSet<String>,
    contacts: BTreeMap<String, Contact>,
    /// Whether a master of our cluster that speaks our protocol has ever answered.
    met_ours: bool,
    /// The last refusal, even if that master no longer answers.
    last_refusal: Option<Arc<Refusal>>,
    /// Term of the last leader, whose suspect stores this client avoids.
    judged_by: Option<u64>,
    /// Time from which the leader's silence counts; `None` while it is not doubted.
    doubted_since: Option<Instant>,
    leaderless_since: Option<Instant>,
}

/// Result of the last attempt to ask a master.
#[derive(Clone, Debug)]
enum Contact {
    /// Why it did not answer.
    Silent(String),
    Usable,
    Refused(Arc<Refusal>),
}

impl Masters {
    pub(crate) fn new(
        config: &Config,
        network: Arc<dyn Network>,
        list: MasterList,
        listed: Listed,
        counters: Arc<Counters>,
        observer: Box<dyn Observer>,
        runtime: Handle,
    ) -> Self {
        let options = ChannelOptions {
            connect_timeout: config.connect_timeout,
            call_timeout: None,
            keep_alive: KEEP_ALIVE,
        };
        let leaderless_since = Some(Instant::now());
        let state = MastersState {
            leader: None,
            refusal: None,
            leaderless_since,
            doubted: false,
            targets: Arc::new(listed.addresses.clone()),
            all_tried: false,
        };
        Self {
            list,
            tls: network.tls().cloned(),
            tls_level: Mutex::default(),
            channels: Arc::new(Channels::new(network, options)),
            runtime,
            client_id: ClientId::random(),
            counters,
            observer,
            state: watch::Sender::new(state),
            last_answer: Mutex::default(),
            spread_ms: AtomicU64::new(0),
            known: Mutex::new(Known {
                view: LeaderView::default(),
                identity: ClusterIdentity::new(config.cluster, listed.clone()),
                listed,
                learned: BTreeSet::new(),
                contacts: BTreeMap::new(),
                met_ours: false,
                last_refusal: None,
                judged_by: None,
                doubted_since: None,
                leaderless_since,
            }),
        }
    }

    /// Returns the channel to a master. Its connection belongs to the client's runtime, regardless of which thread
    /// opens it.
    ///
    /// # Errors
    /// When `address` is not a host and a port.
    pub(crate) fn channel(&self, address: &str) -> Result<MasterChannel, tonic::transport::Error> {
        let _context = self.runtime.enter();
        self.channels.get(address)
    }

    /// Makes the next call to a master use a new channel instead of `channel`.
    pub(crate) fn replace_channel(&self, address: &str, channel: &MasterChannel) {
        self.channels.replace(address, channel);
    }

    /// Returns the leader, if one is known.
    pub(crate) fn leader(&self) -> Option<Arc<Leader>> {
        self.state.borrow().leader.clone()
    }

    /// Returns the addresses of all masters that are known now.
    pub(crate) fn targets(&self) -> BTreeSet<String> {
        (*self.state.borrow().targets).clone()
    }

    pub(crate) fn cluster(&self) -> Option<ClusterId> {
        self.known.lock().identity.ours()
    }

    pub(crate) fn caller(&self, node: Option<NodeId>) -> Caller {
        caller(self.cluster(), node, Some(self.client_id))
    }

    /// Processes a master's answer to a hello.
    pub(crate) fn greeted(&self, address: &str, report: ClusterReport) {
        self.learn(|known| {
            if !known.belongs(self, address, &report) {
                return;
            }
            self.follow(report.tls_level);
            match (report.leader, report.node) {
                // Keep the address that answered here, whatever address the leader gives others.
                (Some(leader), Some(node)) if leader.node == node => {
                    if known.view.current().is_some_and(|current| current.same_term(&leader)) {
                        known.doubted_since = None;
                    }
                    known.offer(Leader { address: address.to_owned(), ..leader }, Witness::Leader);
                }
                (named, node) => {
                    // The master that we took for the leader says that it does not lead.
                    if let Some(current) = known.view.current().cloned()
                        && Some(current.node) == node
                    {
                        known.give_up(&current, Instant::now());
                    }
                    if let Some(leader) = named {
                        known.offer(leader, Witness::Other);
                    }
                }
            }
        });
    }

    /// Goes as far with TLS to stores as a master of our cluster says.
    ///
    /// Only a master that has shown its certificate is believed, since another one could make this client send objects in the
    /// clear. A client with certificates calls masters by TLS alone, unless its user has lowered the level.
    fn follow(&self, level: Option<TlsLevel>) {
        let Some(level) = level else { return };
        *self.tls_level.lock() = Some(level);
        if let Some(tls) = &self.tls
            && tls.level() == TlsLevel::Require
        {
            tls.set_level_to_stores(level);
        }
    }

    /// Returns how far the cluster insists on TLS, if a master has said so.
    pub(crate) fn tls_level(&self) -> Option<TlsLevel> {
        *self.tls_level.lock()
    }

    /// Returns whether this client has certificates.
    pub(crate) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns the time over which clients spread when they move to another master.
    pub(crate) fn spread(&self) -> Duration {
        Duration::from_millis(self.spread_ms.load(Ordering::Relaxed))
    }

    /// Processes an event of a watched master: who leads, which stores are suspect, and the spread of its watchers.
    pub(crate) fn watched(&self, address: &str, event: WatchUpdate) {
        let WatchUpdate { report, spread, stores, all_suspects } = event;
        self.spread_ms.store(u64::try_from(spread.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.learn(|known| {
            // Only a hello tells whether we speak the same protocol, so an event before the first hello is not used.
            let usable = match known.contacts.get(address) {
                None => false,
                Some(Contact::Refused(refusal)) => matches!(**refusal, Refusal::Cluster { .. }),
                Some(Contact::Silent(_) | Contact::Usable) => true,
            };
            if usable && known.belongs(self, address, &report) {
                self.follow(report.tls_level);
                if let Some(leader) = report.leader {
                    known.offer(leader, Witness::Other);
                }
            }
        });
        self.observer.changed(match all_suspects {
            true => Change::AllSuspects(
                stores.iter().filter(|(_, suspect)| *suspect).map(|(store, _)| *store).collect(),
            ),
            false => Change::Stores(stores),
        });
    }

    /// Records that a master refused a hello because it speaks only these protocol versions.
    pub(crate) fn skewed(&self, address: &str, theirs: &str) {
        let refusal = Refusal::Skew { address: address.to_owned(), theirs: theirs.to_owned() };
        self.learn(|known| known.refuse(address, refusal));
    }

    /// Records that a master is busy and postponed a hello: it is alive.
    pub(crate) fn busy(&self, address: &str) {
        self.learn(|known| {
            known
                .contacts
                .entry(address.to_owned())
                .or_insert_with(|| Contact::Silent("it is busy".to_owned()));
            if known.view.current().is_some_and(|current| current.address == address) {
                known.doubted_since = None;
            }
        });
    }

    /// Records that the leader has answered a call, whatever the answer.
    pub(crate) fn heard(&self, leader: &Arc<Leader>) {
        *self.last_answer.lock() = Some((Arc::clone(leader), Instant::now()));
    }

    /// Returns whether the leader has answered any call since then.
    ///
    /// One call may wait for long behind others, on this machine or the leader's, while the leader is well. So no call concludes from
    /// its own wait alone that there is no leader.
    pub(crate) fn has_heard(&self, leader: &Leader, since: Instant) -> bool {
        let last = self.last_answer.lock();
        last.as_ref().is_some_and(|(by, at)| *at >= since && by.same_term(leader))
    }

    /// Returns when the silence of a leader began that has not answered a message sent at `since`: not before its last answer to any
    /// call. Otherwise the slowest call of many would start the leader timeout at a time at which the leader was well.
    fn silent_since(&self, leader: &Leader, since: Instant) -> Instant {
        let last = self.last_answer.lock();
        last.as_ref().filter(|(by, _)| by.same_term(leader)).map_or(since, |(_, at)| since.max(*at))
    }

    /// Records that a master did not answer a hello that was sent at `asked` in time.
    pub(crate) fn silent(&self, address: &str, asked: Instant, why: String) {
        if let Some(leader) = self.leader()
            && leader.address == address
            && self.has_heard(&leader, asked)
        {
            // Only the hello is late: the leader answers other calls.
            return self.busy(address);
        }
        self.learn(|known| {
            known.contacts.insert(address.to_owned(), Contact::Silent(why));
            if let Some(since) = known.doubted_since
                && let Some(current) = known.view.current().cloned()
                && current.address == address
            {
                known.give_up(&current, self.silent_since(&current, since.min(asked)));
            }
        });
    }

    /// Records that `from` answered a call with NOT_LEADER, and who leads according to it.
    pub(crate) fn redirected(&self, from: &Leader, to: Option<Leader>) {
        self.learn(|known| {
            known.give_up(from, Instant::now());
            if let Some(leader) = to {
                known.offer(leader, Witness::Other);
            }
        });
    }

    /// Records that the leader's connection failed, or that another master answers at its address. `since` is when the
    /// call that found out was sent.
    pub(crate) fn lost(&self, leader: &Leader, since: Instant) {
        self.learn(|known| known.give_up(leader, self.silent_since(leader, since)));
    }

    /// Marks the leader as doubtful, because it did not answer a message sent at `since`. The search then asks it
    /// whether it still leads.
    pub(crate) fn doubt(&self, leader: &Leader, since: Instant) {
        self.learn(|known| {
            if known.view.current().is_some_and(|current| current.same_term(leader)) {
                known.doubted_since = Some(known.doubted_since.map_or(since, |before| before.min(since)));
            }
        });
    }

    /// Records that a master refused a call because it belongs to another cluster.
    pub(crate) fn foreign(&self, leader: &Leader, theirs: &str, since: Instant) {
        self.learn(|known| {
            if let Ok(reported) = theirs.parse::<ClusterId>() {
                known.identity_of(self, &leader.address, Some(leader.node), reported);
            }
            known.give_up(leader, self.silent_since(leader, since));
        });
    }

    /// Stores the list after it was resolved again.
    pub(crate) fn listed(&self, listed: Listed) {
        self.learn(|known| known.listed = listed);
    }

    /// Returns why the masters that were asked last can't be used; `None` if all of them can.
    pub(crate) fn failure(&self) -> Option<String> {
        let known = self.known.lock();
        let failure = |(address, heard): (&String, &Contact)| match heard {
            Contact::Silent(why) => Some(format!("{address}: {why}")),
            Contact::Refused(refusal) => Some(refusal.to_string()),
            Contact::Usable => None,
        };
        let failures: Vec<String> = known.contacts.iter().filter_map(failure).collect();
        (!failures.is_empty()).then(|| failures.join("; "))
    }

    /// Returns the refusal of a master of another cluster, unless the user or a majority of the list names ours.
    /// Without either the client cannot tell which cluster the user means.
    pub(crate) fn conflict(&self) -> Option<Arc<Refusal>> {
        let known = self.known.lock();
        if known.identity.is_settled() {
            return None;
        }
        known.contacts.values().find_map(|heard| match heard {
            Contact::Refused(refusal) if matches!(**refusal, Refusal::Cluster { .. }) => {
                Some(Arc::clone(refusal))
            }
            _ => None,
        })
    }

    /// Applies a change and publishes the new state to observer, beacon, counters and log.
    fn learn(&self, change: impl FnOnce(&mut Known)) {
        let mut known = self.known.lock();
        let before = known.view.current().cloned();
        change(&mut known);
        let list = known.list();
        known.identity.listed(list);
        let after = known.view.current().cloned();
        if let Some(leader) = &after
            && before.as_ref() != Some(leader)
        {
            known.doubted_since = None;
            known.leaderless_since = None;
            // Suspects stay valid if the same leader is found again; only a new term voids them.
            if known.judged_by.replace(leader.term) != Some(leader.term) {
                self.observer.changed(Change::NewTerm);
            }
            self.counters.leader_changes.one();
        }
        let targets: BTreeSet<String> = (known.listed.addresses.iter())
            .chain(&known.learned)
            .chain(after.as_ref().map(|leader| &leader.address))
            .cloned()
            .collect();
        let leader = known.leader(self.leader());
        let doubted = known.doubted_since.is_some();
        let all_tried = known.listed.addresses.iter().all(|address| known.contacts.contains_key(address));
        self.state.send_if_modified(|state| {
            let before = state.clone();
            if *state.targets != targets {
                state.targets = Arc::new(targets);
            }
            state.leader = leader;
            state.refusal = known.refusal();
            state.leaderless_since = known.leaderless_since;
            state.doubted = doubted;
            state.all_tried = all_tried;
            *state != before
        });
        let state = self.state.borrow().clone();
        self.observer.published(&state);
    }
}

impl Known {
    /// Records what a master says, and returns whether it may be used as one of our cluster.
    fn belongs(&mut self, masters: &Masters, address: &str, report: &ClusterReport) -> bool {
        // A master that waits for its cluster to form has no cluster id yet. It does no harm.
        if let Some(reported) = report.cluster {
            if !self.identity_of(masters, address, report.node, reported) {
                return false;
            }
            if !report.masters.is_empty() {
                self.learned = report.masters.iter().cloned().collect();
            }
        }
        self.contacts.insert(address.to_owned(), Contact::Usable);
        self.met_ours = true;
        true
    }

    /// Returns the list whose majority decides which cluster is ours. A list of one master is extended by the masters
    /// that this one reports, because one entry has no majority.
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
        address: &str,
        node: Option<NodeId>,
        reported: ClusterId,
    ) -> bool {
        match self.identity.report(address, node, reported) {
            Verdict::Ours | Verdict::Joined(_) => true,
            Verdict::Replaced { .. } => {
                tracing::warn!(cluster = %reported, "a majority of the masters reports this cluster: following it");
                self.view.forget();
                self.learned.clear();
                self.leaderless_since.get_or_insert_with(Instant::now);
                self.contacts.retain(|_, heard| !matches!(heard, Contact::Refused(_)));
                masters.observer.changed(Change::NewCluster);
                true
            }
            Verdict::Foreign { ours, .. } => {
                self.refuse(
                    address,
                    Refusal::Cluster { address: address.to_owned(), ours, theirs: reported },
                );
                false
            }
        }
    }

    fn refuse(&mut self, address: &str, refusal: Refusal) {
        let known =
            matches!(self.contacts.get(address), Some(Contact::Refused(before)) if **before == refusal);
        if !known {
            tracing::warn!("{refusal}");
            let refusal = Arc::new(refusal);
            self.last_refusal = Some(Arc::clone(&refusal));
            self.contacts.insert(address.to_owned(), Contact::Refused(refusal));
        }
    }

    fn offer(&mut self, leader: Leader, source: Witness) {
        self.view.offer(leader, source);
    }

    fn give_up(&mut self, leader: &Leader, since: Instant) {
        if self.view.give_up(leader) {
            self.doubted_since = None;
            self.leaderless_since = Some(since);
        }
    }

    /// Returns the leader in the same allocation as `before` if it is the same.
    fn leader(&self, before: Option<Arc<Leader>>) -> Option<Arc<Leader>> {
        let leader = self.view.current()?;
        before.filter(|before| **before == *leader).or_else(|| Some(Arc::new(leader.clone())))
    }

    /// No usable master has ever answered: the list is wrong, or this client is too old or too new for it.
    fn refusal(&self) -> Option<Arc<Refusal>> {
        self.last_refusal.clone().filter(|_| !self.met_ours)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use mc_net::TcpNetwork;

    use super::*;

    const LEADER: &str = "m:1";

    #[derive(Debug)]
    struct IgnoreChanges;

    impl Observer for IgnoreChanges {
        fn changed(&self, _: Change) {}
        fn published(&self, _: &MastersState) {}
    }

    /// Returns the state of a client that no master has answered yet.
    pub(crate) fn unmet(runtime: Handle) -> Arc<Masters> {
        let config = Config::default();
        let (list, listed) = (MasterList::parse(LEADER).unwrap(), Listed::of(LEADER, &[]));
        let counters = Arc::new(Counters::new());
        Arc::new(Masters::new(
            &config,
            TcpNetwork::shared(),
            list,
            listed,
            counters,
            Box::new(IgnoreChanges),
            runtime,
        ))
    }

    /// Returns the state of a client with a leader.
    pub(crate) fn led() -> (Arc<Masters>, Arc<Leader>) {
        let masters = unmet(Handle::current());
        let leader = Leader { node: NodeId(1), address: LEADER.to_owned(), term: 1 };
        let (node, cluster) = (Some(leader.node), Some(ClusterId(7)));
        let report = ClusterReport {
            cluster,
            node,
            leader: Some(leader.clone()),
            masters: Vec::new(),
            tls_level: None,
        };
        masters.greeted(LEADER, report);
        assert!(masters.leader().is_some());
        (masters, Arc::new(leader))
    }

    #[test]
    fn a_connection_belongs_to_the_clients_runtime_whatever_the_caller_has() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        assert!(unmet(runtime.handle().clone()).channel(LEADER).is_ok());
    }

    #[tokio::test]
    async fn a_late_hello_is_no_silence_of_a_leader_that_has_answered_a_call_since() {
        let (masters, leader) = led();
        let asked = Instant::now();
        masters.doubt(&leader, asked);
        masters.heard(&leader);
        masters.silent(LEADER, asked, "no answer in time".to_owned());
        assert!(masters.leader().is_some());
        masters.doubt(&leader, asked);
        masters.silent(LEADER, Instant::now() + Duration::from_nanos(1), "no answer in time".to_owned());
        assert!(masters.leader().is_none());
    }

    #[tokio::test]
    async fn the_time_without_a_leader_counts_from_the_last_answer_to_any_call() {
        type Lose = fn(&Masters, &Leader, Instant);
        let silent: Lose = |masters, leader, sent| {
            masters.doubt(leader, sent);
            let later = Instant::now() + Duration::from_nanos(1);
            masters.silent(LEADER, later, "no answer in time".to_owned());
        };
        let foreign: Lose = |masters, leader, sent| masters.foreign(leader, "", sent);
        for lose in [silent, Masters::lost, foreign] {
            let (masters, leader) = led();
            let sent = Instant::now();
            // Another call.
            masters.heard(&leader);
            let answered = masters.last_answer.lock().as_ref().map(|(_, at)| *at);
            lose(&masters, &leader, sent);
            assert_eq!(masters.state.borrow().leaderless_since, answered);
        }
    }

    #[tokio::test]
    async fn the_answer_of_an_earlier_leader_does_not_count() {
        let (masters, leader) = led();
        let sent = Instant::now();
        masters.heard(&Arc::new(Leader { term: 0, ..(*leader).clone() }));
        masters.lost(&leader, sent);
        assert_eq!(masters.state.borrow().leaderless_since, Some(sent));
    }
}
