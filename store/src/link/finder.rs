//! Finds the leader: watches one master besides the leader, and asks the masters in turn while no leader is known.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mc_discovery::{
    Channels, ClusterIdentity, LastKnown, Leader, Line, Listed, Poller, Said, SecondWatch, Step, Unsaid,
    Verdict, Watch, WatchStep, caller, hello, versions,
};
use mc_net::{ChannelOptions, Network};
use mc_types::{ClusterId, HostPort};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tracing::{info, warn};

use super::Believed;
use super::status::LinkStatus;

/// Silence after which a connection to a master is pinged. Watches and occasional hellos can wait that long to notice a
/// dead connection.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// First and longest pause between questions to masters while no leader is known.
const POLL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// Time that a watch gets to report the next leader before masters are asked. An election takes as long.
const HEAD_START: Duration = Duration::from_millis(500);
/// Time limit of a master's answer.
const ANSWER: Duration = Duration::from_millis(300);
/// Time without a leader after which the store logs which masters it waits for. An election is shorter.
const PATIENCE: Duration = Duration::from_secs(1);
/// Interval at which the store repeats that log line.
const REMIND: Duration = Duration::from_secs(10);
/// Interval at which the names in the list are resolved again while no leader is known.
const RESOLVE: Duration = Duration::from_secs(5);

/// Name and version of this store in a hello.
const SOFTWARE: &str = concat!("mc-store ", env!("CARGO_PKG_VERSION"));

/// Answer of one master.
struct News {
    from: String,
    said: Result<Said, Unsaid>,
    /// Whether it came by a watch, which tells every store at the same moment.
    told_to_all: bool,
}

/// Looks for the leader and publishes it.
pub(crate) struct Finder {
    /// The list of masters, which may change.
    lists: watch::Receiver<Vec<HostPort>>,
    configured: Vec<HostPort>,
    last_known: Arc<LastKnown>,
    channels: Channels,
    identity: ClusterIdentity,
    /// Every known master: the list, and the masters that its members named.
    known: BTreeSet<String>,
    status: Arc<LinkStatus>,
    leader: watch::Sender<Option<Believed>>,
    poller: Poller,
    second_watch: SecondWatch,
    /// The task of the second watch.
    watching: Option<AbortHandle>,
    /// Time before which no master is asked: a leader is known, and the store waits for its turn to move to it.
    calm_until: Instant,
    /// Each master's latest answer in words, for the log line that says why the store waits.
    heard: BTreeMap<String, String>,
    /// Foreign masters that were already reported.
    refused: BTreeMap<String, ClusterId>,
    keep_cluster: Box<dyn Fn(ClusterId) + Send>,
    /// The present search: since when no leader has been heard, and when that was last logged.
    quiet: Option<Quiet>,
}

struct Quiet {
    since: Instant,
    said: Option<Instant>,
}

impl Finder {
    pub(crate) fn new(
        network: Arc<dyn Network>,
        mut lists: watch::Receiver<Vec<HostPort>>,
        status: Arc<LinkStatus>,
        leader: watch::Sender<Option<Believed>>,
        keep_cluster: Box<dyn Fn(ClusterId) + Send>,
    ) -> Self {
        let configured = lists.borrow_and_update().clone();
        let list = as_written(&configured);
        Self {
            known: list.addresses.clone(),
            identity: ClusterIdentity::remembered(status.get().cluster, list),
            lists,
            configured,
            last_known: Arc::default(),
            channels: Channels::new(
                network,
                ChannelOptions { keep_alive: KEEP_ALIVE, ..ChannelOptions::default() },
            ),
            status,
            leader,
            poller: Poller::new(POLL.0, POLL.1, Instant::now()),
            // A random start keeps the stores of a fleet from all watching the same master.
            second_watch: SecondWatch::new(rand::random_range(0..64)),
            watching: None,
            calm_until: Instant::now(),
            heard: BTreeMap::new(),
            refused: BTreeMap::new(),
            keep_cluster,
            quiet: None,
        }
    }

    /// Runs until it is dropped; `redirects` delivers leaders named by masters that refused a call.
    pub(crate) async fn run(mut self, mut redirects: mpsc::Receiver<Leader>) {
        let (news, mut heard) = mpsc::channel::<News>(64);
        let mut tasks = JoinSet::new();
        let mut resolved: Option<Instant> = None;
        loop {
            let look_again = match self.status.quiet() {
                Err(off) => {
                    self.quiet = None;
                    Instant::now() + off
                }
                Ok(()) if Instant::now() < self.calm_until => self.calm_until,
                Ok(()) => {
                    if self.quiet.is_none() {
                        let head_start = if self.second_watch.hears() { HEAD_START } else { Duration::ZERO };
                        self.poller.begin(Instant::now(), head_start);
                        self.quiet = Some(Quiet { since: Instant::now(), said: None });
                    }
                    if resolved.is_none_or(|at| at.elapsed() >= RESOLVE) {
                        let configured = self.configured.clone();
                        let last = Arc::clone(&self.last_known);
                        tasks.spawn(async move {
                            let list = Listed::resolve(&configured, &last).await;
                            Ended::Resolved { configured, list }
                        });
                        resolved = Some(Instant::now());
                    }
                    self.say_for_whom();
                    self.ask(&mut tasks, &news).min(Instant::now() + PATIENCE)
                }
            };
            self.keep_watch(&mut tasks, &news);
            self.show_known();
            tokio::select! {
                Some(news) = heard.recv() => self.hear(news),
                Some(leader) = redirects.recv() => self.believe(leader, true),
                Ok(()) = self.lists.changed() => {
                    self.relist();
                    resolved = None;
                }
                // A panic is already logged. The question of that task is not repeated; the other tasks go on.
                Some(Ok(ended)) = tasks.join_next(), if !tasks.is_empty() => match ended {
                    Ended::Asked { address, broken } => {
                        self.poller.ended(&address);
                        self.replace(&address, broken.as_ref());
                    }
                    Ended::Watched { address, lasted, broken } => {
                        self.second_watch.ended(&address, lasted);
                        self.replace(&address, broken.as_ref());
                    }
                    Ended::Resolved { configured, list } => self.listed(&configured, list),
                },
                () = tokio::time::sleep_until(look_again) => {}
            }
        }
    }

    /// Takes over another list. Masters known so far stay known: some of them may be up. Those that are new are asked
    /// first, if a leader is looked for.
    fn relist(&mut self) {
        self.configured = self.lists.borrow_and_update().clone();
        let list = as_written(&self.configured);
        self.known.extend(list.addresses.iter().cloned());
        self.identity.listed(list);
    }

    fn show_known(&self) {
        self.status.update(|state| {
            if *state.masters != self.known {
                state.masters = Arc::new(self.known.clone());
            }
        });
    }

    /// Takes over the resolved list, in which a name with several records becomes its addresses. It is ignored if another
    /// list than `configured`, of which it was made, has been taken over meanwhile: that one is resolved by itself.
    fn listed(&mut self, configured: &[HostPort], list: Listed) {
        if configured != self.configured {
            return;
        }
        for name in &self.configured {
            self.known.remove(&name.to_string());
        }
        self.known.extend(list.addresses.iter().cloned());
        self.identity.listed(list);
    }

    /// Asks the master whose turn it is, if it is time; returns when to look again.
    fn ask(&mut self, tasks: &mut JoinSet<Ended>, news: &mpsc::Sender<News>) -> Instant {
        let now = Instant::now();
        // The leader that the heartbeats went to: a known leader that the store has not moved to yet is not lost.
        let lost = self.status.get().leader.map(|leader| leader.address);
        loop {
            match self.poller.step(now, &self.known, lost.as_deref()) {
                Step::Wait(until) => return until,
                Step::Ask(address) => {
                    let line = self.channels.to(&address);
                    let news = news.clone();
                    tasks.spawn(async move {
                        let (said, broken) = match line {
                            Ok(mut line) => {
                                let said = hello(&mut line.client, SOFTWARE, ANSWER).await;
                                let broken = said.as_ref().is_err_and(|unsaid| !unsaid.answered());
                                (said, broken.then_some(line))
                            }
                            Err(error) => (Err(Unsaid::Silent(format!("not an address: {error}"))), None),
                        };
                        // Fails only when the finder is gone, and then the answer is not needed.
                        let _ = news.send(News { from: address.clone(), said, told_to_all: false }).await;
                        Ended::Asked { address, broken }
                    });
                }
            }
        }
    }

    /// Drops the connection to `address` if it is `broken`, so that the next call makes a new one.
    fn replace(&self, address: &str, broken: Option<&Line>) {
        if let Some(line) = broken {
            self.channels.replace(address, line);
        }
    }

    /// Keeps a watch on one master besides the leader, whose heartbeats are watch enough. It starts once the cluster is
    /// known: the watch names the cluster, so that a foreign master can refuse.
    fn keep_watch(&mut self, tasks: &mut JoinSet<Ended>, news: &mpsc::Sender<News>) {
        let Some(cluster) = self.identity.ours() else { return };
        let leader = self.leader.borrow().as_ref().map(|believed| believed.leader.address.clone());
        let turn = self.status.get().spread.mul_f64(rand::random_range(0.0..1.0));
        let step = self.second_watch.step(Instant::now(), leader.as_deref(), &self.known, turn);
        if step == WatchStep::Keep {
            return;
        }
        if let Some(watching) = self.watching.take() {
            watching.abort();
        }
        let WatchStep::Open { address, pause } = step else { return };
        let Ok(line) = self.channels.to(&address) else {
            return self.second_watch.ended(&address, Duration::ZERO);
        };
        let news = news.clone();
        self.watching = Some(tasks.spawn(async move {
            tokio::time::sleep(pause).await;
            let opened = Instant::now();
            let ended = watch_master(line.clone(), cluster, &address, &news).await;
            let broken = (!ended.answered()).then_some(line);
            Ended::Watched { address, lasted: opened.elapsed(), broken }
        }));
    }

    fn hear(&mut self, news: News) {
        let said = match news.said {
            Ok(said) => said,
            Err(unsaid) => {
                if !unsaid.answered() {
                    self.identity.silent(&news.from);
                }
                self.heard.insert(news.from, in_words(unsaid));
                return;
            }
        };
        let Some(cluster) = said.cluster else {
            self.heard.insert(news.from, "has not formed a cluster yet".to_owned());
            return;
        };
        let leads = |believed: &Believed| believed.leader.address == news.from;
        let leads = self.leader.borrow().as_ref().is_some_and(leads);
        self.second_watch.heard(&news.from, news.told_to_all, leads);
        match self.identity.report(&news.from, said.node, cluster) {
            Verdict::Ours => {}
            Verdict::Joined(cluster) => {
                info!(%cluster, master = news.from, "met the cluster");
                self.status.update(|state| state.cluster = Some(cluster));
                (self.keep_cluster)(cluster);
            }
            Verdict::Replaced { old, new } => {
                warn!(%old, %new, "most masters of the list report another cluster: going over to it");
                self.status.update(|state| {
                    state.cluster = Some(new);
                    state.mounted_at = None;
                });
                (self.keep_cluster)(new);
                self.refused.clear();
                // The leader of the old cluster no longer counts, whatever its term was.
                self.leader.send_replace(None);
                self.known = self.identity.list().addresses.clone();
            }
            Verdict::Foreign { ours, theirs, reports, needed } => {
                let text =
                    format!("belongs to cluster {theirs}, but this store belongs to cluster {ours}: refused");
                if self.refused.insert(news.from.clone(), theirs) != Some(theirs) {
                    tracing::error!(
                        master = news.from,
                        "master {text} until a majority of the list of masters reports it ({reports} of {needed} do); \
                         check that list"
                    );
                }
                self.heard.insert(news.from, text);
                return;
            }
        }
        self.known.extend(said.masters);
        self.heard.insert(
            news.from,
            match &said.leader {
                Some(leader) => format!("names {} as leader of term {}", leader.address, leader.term),
                None => "knows no leader".to_owned(),
            },
        );
        if let Some(leader) = said.leader {
            self.believe(leader, news.told_to_all);
        }
    }

    fn believe(&mut self, leader: Leader, told_to_all: bool) {
        self.known.insert(leader.address.clone());
        let is_news = self.leader.send_if_modified(|believed| {
            let news = leader.supersedes(believed.as_ref().map(|believed| &believed.leader));
            if news {
                *believed = Some(Believed { leader, told_to_all });
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
    fn say_for_whom(&mut self) {
        let Some(quiet) = &mut self.quiet else { return };
        let due = match quiet.said {
            None => quiet.since.elapsed() >= PATIENCE,
            Some(at) => at.elapsed() >= REMIND,
        };
        if !due {
            return;
        }
        quiet.said = Some(Instant::now());
        let said = |address: &String| {
            let said = self.heard.get(address).map_or("has not answered yet", String::as_str);
            format!("{address} {said}")
        };
        let waiting = self.known.iter().map(said).collect::<Vec<_>>().join("; ");
        info!("no leader yet, waiting: {waiting}");
        self.status.update(|state| state.waiting_for = waiting);
    }
}

/// Returns the list before any name in it was resolved.
fn as_written(configured: &[HostPort]) -> Listed {
    let addresses: BTreeSet<String> = configured.iter().map(ToString::to_string).collect();
    Listed { masters: addresses.len(), addresses }
}

/// A background task that ended: the master that it ran for, and its connection if that is broken.
enum Ended {
    Asked {
        address: String,
        broken: Option<Line>,
    },
    Watched {
        address: String,
        lasted: Duration,
        broken: Option<Line>,
    },
    /// The list of masters that was resolved, and its addresses.
    Resolved {
        configured: Vec<HostPort>,
        list: Listed,
    },
}

/// Forwards one master's leader changes to `news` until its stream ends; returns why it ended.
async fn watch_master(
    mut line: Line,
    cluster: ClusterId,
    address: &str,
    news: &mpsc::Sender<News>,
) -> Unsaid {
    let mut watch = match Watch::open(&mut line.client, caller(Some(cluster), None, None), true, ANSWER).await
    {
        Ok(watch) => watch,
        Err(unsaid) => return unsaid,
    };
    loop {
        let said = match watch.next().await {
            Ok(event) => Ok(event.said),
            Err(unsaid) => return unsaid,
        };
        if news.send(News { from: address.to_owned(), said, told_to_all: true }).await.is_err() {
            return Unsaid::Refused("the store is stopping".to_owned());
        }
    }
}

/// Describes why a master did not name a leader, for the log line that says why the store waits.
fn in_words(unsaid: Unsaid) -> String {
    match unsaid {
        Unsaid::Busy(why) | Unsaid::Refused(why) | Unsaid::Silent(why) => why,
        Unsaid::Skewed(theirs) => format!(
            "speaks protocol versions {theirs}, this store {}: upgrade the older side",
            versions(&mc_proto::VERSIONS, SOFTWARE)
        ),
    }
}

#[cfg(test)]
mod tests {
    use mc_net::TcpNetwork;
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
        let (leader, _) = watch::channel(None);
        let network = TcpNetwork::shared();
        let mut finder = Finder::new(network, watched, status, leader, Box::new(|_| {}));
        lists.send_replace(after.clone());
        finder.relist();
        finder.listed(&before, as_written(&list(&["192.0.2.1:1"])));
        assert_eq!(finder.identity.list().addresses, as_written(&after).addresses);
        assert!(finder.known.contains("new.example:1") && !finder.known.contains("192.0.2.1:1"));
        finder.listed(&after, as_written(&list(&["192.0.2.2:1"])));
        assert!(finder.known.contains("192.0.2.2:1") && !finder.known.contains("new.example:1"));
    }
}
