//! Finds the leader: watches two masters, and asks all of them while no leader is known.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mc_base::net::Network;
use mc_base::{ClusterId, HostPort};
use mc_proto::v1;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tracing::{info, warn};

use super::cluster::{Membership, Verdict};
use super::leaders::Leader;
use super::masters::{Masters, resolve};
use super::status::LinkStatus;

/// How often every master is asked while no leader is known.
const POLL: Duration = Duration::from_millis(50);
/// A master that has not answered by then does not answer.
const ANSWER: Duration = Duration::from_millis(300);
/// How long until a watch that broke is opened again, at the next master.
const WATCH_PAUSE: Duration = Duration::from_millis(100);
/// Watches that are kept open. Two, so that the loss of one master never leaves the store without news.
const WATCHES: usize = 2;
/// How long the store is without a leader before it says for whom it waits; an election is shorter.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often it says so again.
const REMIND: Duration = Duration::from_secs(10);
/// How often the names in the list are looked up again while no leader is known.
const RESOLVE: Duration = Duration::from_secs(5);

/// What one master said, or why it did not.
struct News {
    from: String,
    said: Result<Said, String>,
}

/// What masters say of themselves and of others.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) cluster: Option<ClusterId>,
    pub(crate) leader: Option<Leader>,
    pub(crate) masters: Vec<String>,
}

/// Looks for the leader and publishes it.
pub(crate) struct Finder {
    configured: Vec<HostPort>,
    masters: Masters,
    membership: Membership,
    /// Every master that is known: the list, and whom its members named.
    known: BTreeSet<String>,
    status: Arc<LinkStatus>,
    leader: watch::Sender<Option<Leader>>,
    /// Addresses with a question under way.
    asked: BTreeSet<String>,
    /// Addresses with a watch open or being opened.
    watched: BTreeSet<String>,
    next_watch: usize,
    /// What each master said last, in words, for the line that says for whom the store waits.
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
        leader: watch::Sender<Option<Leader>>,
        keep_cluster: Box<dyn Fn(ClusterId) + Send>,
    ) -> Self {
        let list: Vec<String> = configured.iter().map(ToString::to_string).collect();
        Self {
            known: list.iter().cloned().collect(),
            membership: Membership::new(status.get().cluster, list),
            configured,
            masters: Masters::new(network),
            status,
            leader,
            asked: BTreeSet::new(),
            watched: BTreeSet::new(),
            next_watch: 0,
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
        let mut tick = tokio::time::interval(POLL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut resolved: Option<Instant> = None;
        loop {
            tokio::select! {
                Some(news) = heard.recv() => self.hear(news),
                Some(leader) = redirects.recv() => self.believe(leader),
                // A task that panicked has logged that; what it was for is not asked again, the others go on.
                Some(Ok(ended)) = tasks.join_next(), if !tasks.is_empty() => match ended {
                    Ended::Asked(address) => drop(self.asked.remove(&address)),
                    Ended::Watched(address) => drop(self.watched.remove(&address)),
                    Ended::Resolved(list) => self.listed(list),
                },
                _ = tick.tick() => {
                    if self.status.quiet() {
                        if resolved.is_none_or(|at| at.elapsed() >= RESOLVE) {
                            let configured = self.configured.clone();
                            tasks.spawn(async move { Ended::Resolved(resolve(&configured).await) });
                            resolved = Some(Instant::now());
                        }
                        self.ask_everyone(&mut tasks, &news);
                        self.say_for_whom();
                    } else {
                        self.quiet = None;
                    }
                    self.keep_watches(&mut tasks, &news);
                }
            }
        }
    }

    /// The names of the list were looked up: a name with several records becomes its addresses.
    fn listed(&mut self, list: Vec<String>) {
        for name in &self.configured {
            self.known.remove(&name.to_string());
        }
        self.known.extend(list.iter().cloned());
        self.membership.listed(list);
    }

    fn ask_everyone(&mut self, tasks: &mut JoinSet<Ended>, news: &mpsc::Sender<News>) {
        for address in self.known.clone() {
            if !self.asked.insert(address.clone()) {
                continue;
            }
            let client = self.masters.client(&address);
            let news = news.clone();
            tasks.spawn(async move {
                let said = match client {
                    Ok(mut client) => match tokio::time::timeout(ANSWER, client.hello(hello())).await {
                        Ok(Ok(reply)) => read_hello(reply.get_ref()),
                        Ok(Err(status)) => Err(mc_proto::reason_of(&status)),
                        Err(_) => Err("no answer".to_owned()),
                    },
                    Err(err) => Err(format!("not an address: {err}")),
                };
                // The finder that would hear it may be gone; then nobody needs it.
                let _ = news.send(News { from: address.clone(), said }).await;
                Ended::Asked(address)
            });
        }
    }

    /// Watches start when the cluster is known: a watch names it, so that a foreign master can refuse.
    fn keep_watches(&mut self, tasks: &mut JoinSet<Ended>, news: &mpsc::Sender<News>) {
        let Some(cluster) = self.membership.known() else { return };
        let known: Vec<String> = self.known.iter().cloned().collect();
        for _ in 0..known.len() {
            if self.watched.len() >= WATCHES {
                return;
            }
            let address = known[self.next_watch % known.len()].clone();
            self.next_watch = self.next_watch.wrapping_add(1);
            if !self.watched.insert(address.clone()) {
                continue;
            }
            let client = self.masters.client(&address);
            let news = news.clone();
            tasks.spawn(async move {
                if let Ok(client) = client {
                    watch_master(client, cluster, &address, &news).await;
                }
                tokio::time::sleep(WATCH_PAUSE).await;
                Ended::Watched(address)
            });
        }
    }

    fn hear(&mut self, news: News) {
        let said = match news.said {
            Ok(said) => said,
            Err(why) => {
                self.membership.silent(&news.from);
                self.heard.insert(news.from, why);
                return;
            }
        };
        let Some(cluster) = said.cluster else {
            self.heard.insert(news.from, "has not formed a cluster yet".to_owned());
            return;
        };
        match self.membership.report(&news.from, cluster) {
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
                self.known = self.membership.list().iter().cloned().collect();
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
            self.believe(leader);
        }
    }

    fn believe(&mut self, leader: Leader) {
        self.known.insert(leader.address.clone());
        self.leader.send_if_modified(|believed| {
            let news = leader.supersedes(believed.as_ref());
            if news {
                *believed = Some(leader);
            }
            news
        });
    }

    /// Says for whom the store waits: once, then every ten seconds.
    fn say_for_whom(&mut self) {
        let quiet = self.quiet.get_or_insert_with(|| Quiet { since: Instant::now(), said: None });
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
    Asked(String),
    Watched(String),
    Resolved(Vec<String>),
}

/// Hears one master's stream of leader changes until it breaks.
async fn watch_master(
    mut client: v1::master_client::MasterClient<tonic::transport::Channel>,
    cluster: ClusterId,
    address: &str,
    news: &mpsc::Sender<News>,
) {
    let (version_min, version_max) = (*mc_proto::VERSIONS.start(), *mc_proto::VERSIONS.end());
    let caller = v1::Caller {
        cluster_id: Bytes::copy_from_slice(&cluster.to_bytes()),
        version_min,
        version_max,
        ..v1::Caller::default()
    };
    let request = v1::WatchRequest { caller: Some(caller) };
    let Ok(Ok(stream)) = tokio::time::timeout(ANSWER, client.watch(request)).await else { return };
    let mut stream = stream.into_inner();
    // A master that is stopped rather than dead breaks the stream through the channel's keep-alive.
    while let Ok(Some(event)) = stream.message().await {
        if news.send(News { from: address.to_owned(), said: Ok(read_event(event)) }).await.is_err() {
            return;
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
