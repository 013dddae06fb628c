//! Finds the leader: watches a master besides the leader, and asks one after the other while no leader is known.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mc_discovery::{Backoff, LastKnown, Listed, Poller, Step};
use mc_net::Network;
use mc_proto::v1;
use mc_types::{ClusterId, HostPort, NodeId};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tonic::Status;
use tracing::{info, warn};

use super::cluster::{Membership, Verdict};
use super::leaders::{Believed, Leader};
use super::masters::Masters;
use super::status::LinkStatus;

/// Between two questions to masters while no leader is known.
const POLL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// How long a watch is left to tell of the next leader before others are asked; an election takes as long.
const HEAD_START: Duration = Duration::from_millis(500);
/// A master that has not answered by then does not answer.
const ANSWER: Duration = Duration::from_millis(300);
/// How long until a watch that broke is opened again, at the next master. A store that is mounted is in no hurry: the
/// leader itself ends the heartbeats when it leads no longer, and with both gone there are questions.
const WATCH_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// A watch that lasted so long worked.
const WORKED: Duration = Duration::from_secs(5);
/// Between two watches that are opened at once, at a master that has just answered: one that comes and goes must not
/// void the pauses.
const HURRY: Duration = Duration::from_secs(1);
/// How long the store is without a leader before it says for whom it waits; an election is shorter.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often it says so again.
const REMIND: Duration = Duration::from_secs(10);
/// How often the names in the list are looked up again while no leader is known.
const RESOLVE: Duration = Duration::from_secs(5);

/// The answer of one master, or why there was none.
struct News {
    from: String,
    said: Result<Said, Unsaid>,
    /// By a watch, which tells every store at the same moment.
    told_to_all: bool,
}

/// Why a master did not say who leads.
struct Unsaid {
    why: String,
    /// It answers, and has too much to do for this question.
    busy: bool,
}

impl Unsaid {
    fn silent(why: impl Into<String>) -> Self {
        Self { why: why.into(), busy: false }
    }

    fn refused(status: &Status) -> Self {
        Self { why: mc_proto::reason_of(status), busy: mc_proto::detail_of(status).is_some() }
    }
}

/// A master's report of itself and of others.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) cluster: Option<ClusterId>,
    /// The master itself; a watch does not say.
    pub(crate) node: Option<NodeId>,
    pub(crate) leader: Option<Leader>,
    pub(crate) masters: Vec<String>,
}

/// Looks for the leader and publishes it.
pub(crate) struct Finder {
    configured: Vec<HostPort>,
    last_known: Arc<LastKnown>,
    masters: Masters,
    membership: Membership,
    /// Every master that is known: the list, and whom its members named.
    known: BTreeSet<String>,
    status: Arc<LinkStatus>,
    leader: watch::Sender<Option<Believed>>,
    poller: Poller,
    /// The master that is watched, or soon will be.
    watched: Option<(String, AbortHandle)>,
    /// That watch has told something.
    hears: bool,
    watch_pace: Backoff,
    next_watch: usize,
    /// A master that has just answered, while no watch tells anything: it is watched at once. It may not know a leader
    /// yet, and tells sooner than the next question.
    came_back: Option<String>,
    /// When a watch was last opened at once for that reason.
    hurried: Option<Instant>,
    /// Until then no master is asked: a leader is known, and the store's turn to go over to it comes.
    calm_until: Instant,
    /// Each master's latest answer in words, for the line that says for whom the store waits.
    heard: BTreeMap<String, String>,
    /// Foreign masters that were already reported.
    refused: BTreeMap<String, ClusterId>,
    keep_cluster: Box<dyn Fn(ClusterId) + Send>,
    /// Since when no leader has been heard, and when that was last said.
    quiet: Option<Quiet>,
}

struct Quiet {
    since: Instant,
    said: Option<Instant>,
}

impl Finder {
    pub(crate) fn new(
        network: Arc<dyn Network>,
        configured: Vec<HostPort>,
        status: Arc<LinkStatus>,
        leader: watch::Sender<Option<Believed>>,
        keep_cluster: Box<dyn Fn(ClusterId) + Send>,
    ) -> Self {
        let addresses: BTreeSet<String> = configured.iter().map(ToString::to_string).collect();
        let list = Listed { masters: addresses.len(), addresses };
        Self {
            known: list.addresses.clone(),
            membership: Membership::new(status.get().cluster, list),
            configured,
            last_known: Arc::default(),
            masters: Masters::new(network),
            status,
            leader,
            poller: Poller::new(POLL.0, POLL.1, Instant::now()),
            watched: None,
            hears: false,
            watch_pace: Backoff::new(WATCH_PAUSE.0, WATCH_PAUSE.1),
            came_back: None,
            hurried: None,
            calm_until: Instant::now(),
            // Not every store of a fleet watches the same master.
            next_watch: rand::random_range(0..64),
            heard: BTreeMap::new(),
            refused: BTreeMap::new(),
            keep_cluster,
            quiet: None,
        }
    }

    /// Runs until it is dropped; `redirects` brings leaders that a refusal named.
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
                        let head_start = if self.hears { HEAD_START } else { Duration::ZERO };
                        self.poller.begin(Instant::now(), head_start);
                        self.quiet = Some(Quiet { since: Instant::now(), said: None });
                    }
                    if resolved.is_none_or(|at| at.elapsed() >= RESOLVE) {
                        let configured = self.configured.clone();
                        let last = Arc::clone(&self.last_known);
                        tasks
                            .spawn(async move { Ended::Resolved(Listed::resolve(&configured, &last).await) });
                        resolved = Some(Instant::now());
                    }
                    self.say_for_whom();
                    self.ask(&mut tasks, &news).min(Instant::now() + PATIENCE)
                }
            };
            self.keep_watch(&mut tasks, &news);
            tokio::select! {
                Some(news) = heard.recv() => self.hear(news),
                Some(leader) = redirects.recv() => self.believe(leader, true),
                // A task that panicked has logged that; what it was for is not asked again, the others go on.
                Some(Ok(ended)) = tasks.join_next(), if !tasks.is_empty() => match ended {
                    Ended::Asked { address, answered } => {
                        self.poller.ended(&address);
                        if !answered {
                            self.masters.forget(&address);
                        }
                    }
                    Ended::Watched { address, lasted, answered } => {
                        self.watch_ended(&address, lasted, answered);
                    }
                    Ended::Resolved(list) => self.listed(list),
                },
                () = tokio::time::sleep_until(look_again) => {}
            }
        }
    }

    /// The names of the list were looked up: a name with several records becomes its addresses.
    fn listed(&mut self, list: Listed) {
        for name in &self.configured {
            self.known.remove(&name.to_string());
        }
        self.known.extend(list.addresses.iter().cloned());
        self.membership.listed(list);
    }

    /// Asks the master whose turn it is, if one may be asked now; when to look again.
    fn ask(&mut self, tasks: &mut JoinSet<Ended>, news: &mpsc::Sender<News>) -> Instant {
        let now = Instant::now();
        // The one that the heartbeats went to: a leader that is known and not yet gone over to is not lost.
        let lost = self.status.get().leader.map(|leader| leader.address);
        loop {
            match self.poller.step(now, &self.known, lost.as_deref()) {
                Step::Wait(until) => return until,
                Step::Ask(address) => {
                    let client = self.masters.client(&address);
                    let news = news.clone();
                    tasks.spawn(async move {
                        let said = match client {
                            Ok(mut client) => {
                                match tokio::time::timeout(ANSWER, client.hello(hello())).await {
                                    Ok(Ok(reply)) => read_hello(reply.get_ref()).map_err(Unsaid::silent),
                                    Ok(Err(status)) => Err(Unsaid::refused(&status)),
                                    Err(_) => Err(Unsaid::silent("no answer")),
                                }
                            }
                            Err(err) => Err(Unsaid::silent(format!("not an address: {err}"))),
                        };
                        let answered = said.as_ref().map_or_else(|unsaid| unsaid.busy, |_| true);
                        // The finder that would hear it may be gone; then nobody needs it.
                        let _ = news.send(News { from: address.clone(), said, told_to_all: false }).await;
                        Ended::Asked { address, answered }
                    });
                }
            }
        }
    }

    /// Keeps one master watched besides the leader, whose heartbeats are watch enough. It starts when the cluster is
    /// known: a watch names it, so that a foreign master can refuse.
    fn keep_watch(&mut self, tasks: &mut JoinSet<Ended>, news: &mpsc::Sender<News>) {
        let leader = self.leader.borrow().as_ref().map(|believed| believed.leader.address.clone());
        let may_hurry = self.hurried.is_none_or(|at| at.elapsed() >= HURRY);
        if let Some((address, watch)) = &self.watched {
            let better = !self.hears && may_hurry && self.came_back.is_some();
            if Some(address) != leader.as_ref() && !better {
                return;
            }
            watch.abort();
            (self.watched, self.hears) = (None, false);
        }
        let Some(cluster) = self.membership.known() else { return };
        let others: Vec<&String> =
            self.known.iter().filter(|address| Some(*address) != leader.as_ref()).collect();
        if others.is_empty() {
            return;
        }
        let came_back = match may_hurry {
            true => self.came_back.take().filter(|address| others.contains(&address)),
            false => None,
        };
        let at_once = came_back.is_some();
        if at_once {
            self.hurried = Some(Instant::now());
        }
        let address = came_back.unwrap_or_else(|| others[self.next_watch % others.len()].clone());
        self.next_watch = self.next_watch.wrapping_add(1);
        let Ok(client) = self.masters.client(&address) else { return };
        // Every store changes over at the same moment, when the master that it watched begins to lead.
        let mut pause =
            self.watch_pace.wait() + self.status.get().spread.mul_f64(rand::random_range(0.0..1.0));
        if at_once {
            pause = Duration::ZERO;
        }
        let news = news.clone();
        let watched = address.clone();
        let task = tasks.spawn(async move {
            tokio::time::sleep(pause).await;
            let opened = Instant::now();
            let answered = watch_master(client, cluster, &address, &news).await;
            Ended::Watched { address, lasted: opened.elapsed(), answered }
        });
        self.watched = Some((watched, task));
    }

    fn watch_ended(&mut self, address: &str, lasted: Duration, answered: bool) {
        if self.watched.as_ref().is_some_and(|(watched, _)| watched == address) {
            (self.watched, self.hears) = (None, false);
            if !answered {
                self.masters.forget(address);
            }
            if lasted >= WORKED {
                self.watch_pace.reset();
            }
        }
    }

    fn hear(&mut self, news: News) {
        let said = match news.said {
            Ok(said) => said,
            Err(Unsaid { why, busy }) => {
                if !busy {
                    self.membership.silent(&news.from);
                }
                self.heard.insert(news.from, why);
                return;
            }
        };
        let Some(cluster) = said.cluster else {
            self.heard.insert(news.from, "has not formed a cluster yet".to_owned());
            return;
        };
        self.hears |= news.told_to_all;
        // The leader, whose heartbeats are watch enough, is none to watch besides.
        let leads = |believed: &Believed| believed.leader.address == news.from;
        if !self.hears && !self.leader.borrow().as_ref().is_some_and(leads) {
            self.came_back = Some(news.from.clone());
        }
        match self.membership.report(&news.from, said.node, cluster) {
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
                // Whoever led the old cluster no longer counts, whatever its term was.
                self.leader.send_replace(None);
                self.known = self.membership.list().addresses.clone();
            }
            Verdict::Foreign { ours, theirs, reports, needed } => {
                let text =
                    format!("belongs to cluster {theirs}, but this store belongs to cluster {ours}: refused");
                if self.refused.insert(news.from.clone(), theirs) != Some(theirs) {
                    tracing::error!(
                        master = news.from,
                        "master {text} until a majority of --masters reports it ({reports} of {needed} do); \
                         check --masters"
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
            // Until the fleet has gone over: a leader that is busy with that needs no questions besides.
            self.calm_until = Instant::now() + spread.mul_f64(1.5);
        }
    }

    /// Says for whom the store waits: once, then every ten seconds.
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

/// A background task that ended, and for which master it ran.
enum Ended {
    Asked { address: String, answered: bool },
    Watched { address: String, lasted: Duration, answered: bool },
    Resolved(Listed),
}

/// Hears one master's stream of leader changes until it breaks; whether the master itself ended it, with a reason.
async fn watch_master(
    mut client: v1::master_client::MasterClient<tonic::transport::Channel>,
    cluster: ClusterId,
    address: &str,
    news: &mpsc::Sender<News>,
) -> bool {
    let (version_min, version_max) = (*mc_proto::VERSIONS.start(), *mc_proto::VERSIONS.end());
    let caller = v1::Caller {
        cluster_id: Bytes::copy_from_slice(&cluster.to_bytes()),
        version_min,
        version_max,
        ..v1::Caller::default()
    };
    let request = v1::WatchRequest { caller: Some(caller), leader_only: true };
    let mut stream = match tokio::time::timeout(ANSWER, client.watch(request)).await {
        Ok(Ok(stream)) => stream.into_inner(),
        Ok(Err(status)) => return mc_proto::detail_of(&status).is_some(),
        Err(_) => return false,
    };
    loop {
        // A master that is stopped rather than dead breaks the stream through the channel's keep-alive.
        let said = match stream.message().await {
            Ok(Some(event)) => Ok(read_event(event)),
            Ok(None) => return false,
            Err(status) => return mc_proto::detail_of(&status).is_some(),
        };
        if news.send(News { from: address.to_owned(), said, told_to_all: true }).await.is_err() {
            return true;
        }
    }
}

fn hello() -> v1::HelloRequest {
    v1::HelloRequest {
        version_min: *mc_proto::VERSIONS.start(),
        version_max: *mc_proto::VERSIONS.end(),
        software: concat!("mc-store ", env!("CARGO_PKG_VERSION")).to_owned(),
    }
}

pub(crate) fn read_event(event: v1::WatchEvent) -> Said {
    Said {
        cluster: ClusterId::from_bytes(&event.cluster_id),
        node: None,
        leader: Leader::read(event.leader.as_ref()),
        masters: event.masters,
    }
}

pub(crate) fn read_hello(reply: &v1::HelloReply) -> Result<Said, String> {
    let theirs = reply.version_min..=reply.version_max;
    if mc_proto::common_version(mc_proto::VERSIONS, theirs).is_none() {
        return Err(format!(
            "speaks protocol versions {} to {} ({}), this store speaks {} to {}: upgrade the older side",
            reply.version_min,
            reply.version_max,
            reply.software,
            mc_proto::VERSIONS.start(),
            mc_proto::VERSIONS.end()
        ));
    }
    Ok(Said {
        cluster: ClusterId::from_bytes(&reply.cluster_id),
        node: NodeId::from_bytes(&reply.node_id),
        leader: Leader::read(reply.leader.as_ref()),
        masters: reply.masters.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_that_speaks_no_common_version_is_refused_in_words() {
        let newer = mc_proto::VERSIONS.end() + 1;
        let reply = v1::HelloReply {
            version_min: newer,
            version_max: newer + 1,
            software: "mc-master 9.0.0".into(),
            ..v1::HelloReply::default()
        };
        let why = read_hello(&reply).unwrap_err();
        assert!(why.contains(&format!("versions {newer} to {} (mc-master 9.0.0)", newer + 1)), "{why}");
        assert!(why.contains("upgrade the older side"), "{why}");

        let common = v1::HelloReply { version_min: *mc_proto::VERSIONS.end(), ..reply };
        assert!(read_hello(&common).is_ok(), "it may speak newer ones besides");
    }
}
