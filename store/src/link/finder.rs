//! Judges what masters say of the leader, and publishes whom to move to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mc_discovery::{
    Changed, Channels, ClusterIdentity, ClusterReport, HelloError, Leader, Listed, Phase, Search,
    SearchOptions, SearchOwner, Situation, Verdict, WatchUpdate, caller, drive, versions,
};
use mc_net::{ChannelOptions, Network};
use mc_proto::v1;
use mc_types::{ClusterId, HostPort};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::{info, warn};

use super::LinkTls;
use super::NextLeader;
use super::status::LinkStatus;

/// Silence after which a connection to a master is pinged. Watches and occasional hellos can wait that long to notice a
/// dead connection.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

const OPTIONS: SearchOptions = SearchOptions {
    software: SOFTWARE,
    pauses: (Duration::from_millis(50), Duration::from_secs(2)),
    head_start: Duration::from_millis(500),
    answer: Duration::from_millis(300),
    leader_answer: Duration::from_millis(300),
    resolve: Duration::from_secs(5),
    store_news: false,
};

/// Time without a leader after which the store logs which masters it waits for. An election is shorter.
const PATIENCE: Duration = Duration::from_secs(1);
/// Interval at which the store repeats that log line.
const REMIND: Duration = Duration::from_secs(10);
/// Name and version of this store in a hello.
const SOFTWARE: &str = concat!("mc-store ", env!("CARGO_PKG_VERSION"));

/// Owner of the search for the leader, which it publishes.
pub(crate) struct Finder {
    /// The list of masters, which may change.
    lists: watch::Receiver<Vec<HostPort>>,
    configured: Vec<HostPort>,
    identity: ClusterIdentity,
    /// Every known master: the list, and the masters that its members named.
    known: Arc<BTreeSet<String>>,
    status: Arc<LinkStatus>,
    leader: watch::Sender<Option<NextLeader>>,
    /// Leaders named by masters that refused a call.
    redirects: mpsc::Receiver<Leader>,
    /// Time before which no master is asked: a leader is known, and this store waits for its turn to connect, so that
    /// not all stores do so at once.
    calm_until: Instant,
    /// Each master's latest answer in words, for the log line that says why the store waits.
    heard: BTreeMap<String, String>,
    /// Foreign masters that were already reported.
    refused: BTreeMap<String, ClusterId>,
    keep_cluster: Box<dyn Fn(ClusterId) + Send>,
    tls: LinkTls,
    /// The present search: since when no leader has been heard, and when that was last logged.
    leaderless: Option<LeaderlessTime>,
}

struct LeaderlessTime {
    since: Instant,
    logged_at: Option<Instant>,
}

impl Finder {
    pub(crate) fn new(
        mut lists: watch::Receiver<Vec<HostPort>>,
        status: Arc<LinkStatus>,
        leader: watch::Sender<Option<NextLeader>>,
        redirects: mpsc::Receiver<Leader>,
        keep_cluster: Box<dyn Fn(ClusterId) + Send>,
        tls: LinkTls,
    ) -> Self {
        let configured = lists.borrow_and_update().clone();
        let list = as_written(&configured);
        Self {
            known: Arc::new(list.addresses.clone()),
            identity: ClusterIdentity::remembered(status.get().cluster, list),
            lists,
            configured,
            status,
            leader,
            redirects,
            calm_until: Instant::now(),
            heard: BTreeMap::new(),
            refused: BTreeMap::new(),
            keep_cluster,
            tls,
            leaderless: None,
        }
    }

    /// Searches until it is dropped.
    pub(crate) async fn run(self, network: Arc<dyn Network>) {
        let options = ChannelOptions { keep_alive: KEEP_ALIVE, ..ChannelOptions::default() };
        let channels = Arc::new(Channels::new(network, options));
        let search = Search::new(OPTIONS, Instant::now(), None);
        match drive(self, channels, Arc::default(), search).await {}
    }

    /// Replaces the list. Known masters stay known, because some of them may be up. If the store is looking for a
    /// leader, it asks the new masters first.
    fn relist(&mut self) {
        self.configured = self.lists.borrow_and_update().clone();
        let list = as_written(&self.configured);
        Arc::make_mut(&mut self.known).extend(list.addresses.iter().cloned());
        self.identity.listed(list);
    }

    fn show_known(&self) {
        self.status.update(|state| {
            if state.masters != self.known {
                state.masters = Arc::clone(&self.known);
            }
        });
    }

    /// Adds masters to those that are known.
    fn learn(&mut self, masters: impl IntoIterator<Item = String>) {
        for address in masters {
            if !self.known.contains(&address) {
                Arc::make_mut(&mut self.known).insert(address);
            }
        }
    }

    /// Judges what a master says. `told_to_all`: it came by a watch, which tells every store at the same moment.
    fn hear(&mut self, from: &str, report: ClusterReport, told_to_all: bool) {
        let Some(cluster) = report.cluster else {
            self.heard.insert(from.to_owned(), "has not formed a cluster yet".to_owned());
            return;
        };
        match self.identity.report(from, report.node, cluster) {
            Verdict::Ours => {}
            Verdict::Joined(cluster) => {
                info!(%cluster, master = from, "met the cluster");
                self.status.update(|state| state.cluster = Some(cluster));
                (self.keep_cluster)(cluster);
            }
            Verdict::Replaced { old, new } => {
                warn!(%old, %new, "most masters of the list report another cluster: going over to it");
                self.status.update(|state| {
                    state.cluster = Some(new);
                    state.mounted_at = None;
                });
                self.refused.clear();
                // The leader of the old cluster no longer counts, whatever its term was.
                self.leader.send_replace(None);
                self.known = Arc::new(self.identity.list().addresses.clone());
                (self.keep_cluster)(new);
            }
            Verdict::Foreign { ours, theirs, reports, needed } => {
                let text =
                    format!("belongs to cluster {theirs}, but this store belongs to cluster {ours}: refused");
                if self.refused.insert(from.to_owned(), theirs) != Some(theirs) {
                    tracing::error!(
                        master = from,
                        "master {text} until a majority of the list of masters reports it ({reports} of {needed} do); \
                         check that list"
                    );
                }
                self.heard.insert(from.to_owned(), text);
                return;
            }
        }
        self.tls.raise(report.tls_level);
        self.learn(report.masters);
        self.heard.insert(
            from.to_owned(),
            match &report.leader {
                Some(leader) => format!("names {} as leader of term {}", leader.address, leader.term),
                None => "knows no leader".to_owned(),
            },
        );
        if let Some(leader) = report.leader {
            self.believe(leader, told_to_all);
        }
    }

    fn believe(&mut self, leader: Leader, told_to_all: bool) {
        self.learn([leader.address.clone()]);
        let is_news = self.leader.send_if_modified(|believed| {
            let news = leader.supersedes(believed.as_ref().map(|believed| &believed.leader));
            if news {
                *believed = Some(NextLeader { leader, told_to_all });
            }
            news
        });
        let spread = self.status.get().spread;
        if is_news {
            // Ask nothing until the fleet has moved: the new leader is busy with that.
            self.calm_until = Instant::now() + spread.mul_f64(1.5);
        }
    }

    /// Logs which masters the store waits for: once, then every ten seconds.
    fn log_waiting(&mut self) {
        let Some(leaderless) = &mut self.leaderless else { return };
        let due = match leaderless.logged_at {
            None => leaderless.since.elapsed() >= PATIENCE,
            Some(at) => at.elapsed() >= REMIND,
        };
        if !due {
            return;
        }
        leaderless.logged_at = Some(Instant::now());
        let said = |address: &String| {
            let said = self.heard.get(address).map_or("has not answered yet", String::as_str);
            format!("{address} {said}")
        };
        let waiting = self.known.iter().map(said).collect::<Vec<_>>().join("; ");
        info!("no leader yet, waiting: {waiting}");
        self.status.update(|state| state.waiting_for = waiting);
    }
}

impl SearchOwner for Finder {
    fn situation(&mut self, now: Instant) -> Situation {
        let (phase, until) = match self.status.check_silence() {
            Err(off) => {
                self.leaderless = None;
                (Phase::Found, now + off)
            }
            Ok(()) if now < self.calm_until => (Phase::Resting, self.calm_until),
            Ok(()) => {
                self.leaderless.get_or_insert(LeaderlessTime { since: now, logged_at: None });
                self.log_waiting();
                (Phase::Searching, now + PATIENCE)
            }
        };
        self.show_known();
        let state = self.status.get();
        Situation {
            masters: Arc::clone(&self.known),
            leader: self.leader.borrow().as_ref().map(|believed| believed.leader.address.clone()),
            // The leader that the heartbeats went to: a known leader that the store has not moved to yet is not lost.
            lost: state.leader.map(|leader| leader.address),
            phase,
            spread: state.spread,
            // A watch names the cluster, so that a foreign master can refuse.
            may_watch: self.identity.ours().is_some(),
            until: Some(until),
        }
    }

    fn caller(&self) -> v1::Caller {
        caller(self.identity.ours(), None, None)
    }

    fn list(&self) -> Vec<HostPort> {
        self.configured.clone()
    }

    /// Takes over the resolved list, in which a name with several records becomes its addresses. It is ignored if another
    /// list than `configured`, of which it was made, has been taken over meanwhile: that one is resolved by itself.
    fn listed(&mut self, configured: &[HostPort], list: Listed) {
        if configured != self.configured {
            return;
        }
        for name in &self.configured {
            Arc::make_mut(&mut self.known).remove(&name.to_string());
        }
        Arc::make_mut(&mut self.known).extend(list.addresses.iter().cloned());
        self.identity.listed(list);
    }

    fn answered(&mut self, from: &str, _: Instant, answer: Result<ClusterReport, HelloError>) {
        match answer {
            Ok(report) => self.hear(from, report, false),
            Err(error) => {
                if !error.answered() {
                    self.identity.silent(from);
                }
                self.heard.insert(from.to_owned(), in_words(error));
            }
        }
    }

    fn watched(&mut self, from: &str, update: WatchUpdate) {
        self.hear(from, update.report, true);
    }

    fn watch_ended(&mut self, _: &str) {}

    async fn changed(&mut self) -> Changed {
        tokio::select! {
            Some(leader) = self.redirects.recv() => {
                self.believe(leader, true);
                Changed::Situation
            }
            Ok(()) = self.lists.changed() => {
                self.relist();
                Changed::List
            }
            else => std::future::pending().await,
        }
    }
}

/// Returns the list before any name in it was resolved.
fn as_written(configured: &[HostPort]) -> Listed {
    let addresses: BTreeSet<String> = configured.iter().map(ToString::to_string).collect();
    Listed { masters: addresses.len(), addresses }
}

/// Describes why a master did not name a leader, for the log line that says why the store waits.
fn in_words(error: HelloError) -> String {
    match error {
        HelloError::Busy(why) | HelloError::Refused(why) | HelloError::Silent(why) => why,
        HelloError::VersionSkew(theirs) => format!(
            "speaks protocol versions {theirs}, this store {}: upgrade the older side",
            versions(&mc_proto::VERSIONS, SOFTWARE)
        ),
    }
}

#[cfg(test)]
mod tests {
    use mc_types::{Clock, SegmentEpoch};

    use super::*;

    fn list(masters: &[&str]) -> Vec<HostPort> {
        masters.iter().map(|master| master.parse().unwrap()).collect()
    }

    #[tokio::test]
    async fn a_late_answer_for_the_list_before_changes_nothing() {
        let (before, after) = (list(&["old.example:1"]), list(&["new.example:1"]));
        let (lists, watched) = watch::channel(before.clone());
        let clock = Clock::from_fn(|| Duration::ZERO);
        let status = Arc::new(LinkStatus::new(clock, None, SegmentEpoch(1), Vec::new()));
        let ((leader, _), (_redirect, redirects)) = (watch::channel(None), mpsc::channel(1));
        let mut finder =
            Finder::new(watched, status, leader, redirects, Box::new(|_| {}), LinkTls::new(None, true));
        lists.send_replace(after.clone());
        finder.relist();
        finder.listed(&before, as_written(&list(&["192.0.2.1:1"])));
        assert_eq!(finder.identity.list().addresses, as_written(&after).addresses);
        assert!(finder.known.contains("new.example:1") && !finder.known.contains("192.0.2.1:1"));
        finder.listed(&after, as_written(&list(&["192.0.2.2:1"])));
        assert!(finder.known.contains("192.0.2.2:1") && !finder.known.contains("new.example:1"));
    }
}
