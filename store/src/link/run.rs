//! Runs the link: one session with a leader after the other, until it is asked to stop.

use std::sync::Arc;
use std::time::Duration;

use mc_discovery::{Backoff, Leader};
use mc_net::{ChannelOptions, Network};
use mc_proto::v1::master_client::MasterClient;
use mc_types::{ClusterId, ClusterTime};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Channel;
use tracing::{Instrument as _, error, info, warn};

use super::finder::Finder;
use super::keys::Keys;
use super::session::{Replies, Session, SessionEnd, knows, unmount};
use super::status::LinkStatus;
use super::{LinkConfig, LinkTls, NextLeader, Registration, Served, StoreInfo};

/// First and longest pause before a leader that did not answer is tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// Pause before a leader that refused this store is asked again.
const REFUSED_RETRY: Duration = Duration::from_secs(1);
/// Time for which a session must last to count as one that worked.
const WORKED: Duration = Duration::from_secs(5);

/// Follows the leader until `stop` fires. If `stop` sends a duration, unmounts the memory within it.
pub(crate) async fn run(config: LinkConfig, mut stop: oneshot::Receiver<Duration>) {
    let LinkConfig { masters, network, tls, info, registration, announced, served, status, keep_cluster } =
        config;
    let (leader, leaders) = watch::channel(None);
    let (redirect, redirects) = mpsc::channel(8);
    let finder = Finder::new(masters, status.clone(), leader, redirects, keep_cluster, tls.clone());
    let _finder = AbortOnDropHandle::new(tokio::spawn(finder.run(network.clone()).in_current_span()));
    let keys = Keys::of(registration, status.now());
    if let Some(announced) = announced {
        status.update(|state| state.cluster_time = announced.time);
    }
    let mut following = Following {
        network,
        tls,
        info,
        served,
        status,
        registration,
        keys,
        cluster: announced.and_then(|announced| announced.cluster),
        mounted: false,
        written: announced.map(|announced| announced.order),
        leaders,
        redirect,
        pace: Backoff::new(RETRY.0, RETRY.1),
        followed: None,
        last_logged: None,
    };
    let within = tokio::select! {
        () = following.follow() => None,
        within = &mut stop => within.ok(),
    };
    if let Some(within) = within
        // Even if no mount was answered: one may be under way.
        && following.cluster.is_some()
        && tokio::time::timeout(within, following.unmount()).await.is_err()
    {
        warn!(
            "no leader confirmed the unmount within {within:?}: the masters will drop this store when its \
               heartbeats stay away"
        );
    }
}

/// Returns a client on a new connection, so that a leader that is reached again after trouble is not called over the
/// connection that was in trouble.
fn fresh_client(
    network: &Arc<dyn Network>,
    address: &str,
) -> Result<MasterClient<Channel>, tonic::transport::Error> {
    network.channel(address, ChannelOptions::default()).map(MasterClient::new)
}

struct Following {
    network: Arc<dyn Network>,
    tls: LinkTls,
    info: StoreInfo,
    served: Arc<dyn Served>,
    status: Arc<LinkStatus>,
    registration: Registration,
    keys: Keys,
    /// Cluster to whose leader this epoch was announced.
    cluster: Option<ClusterId>,
    /// Whether a leader of the present cluster has mounted the present epoch.
    mounted: bool,
    /// Highest order of a write before this process, or this cluster, was there, for memory that outlives its process. An index whose
    /// mount is not of a higher one is older than that memory.
    written: Option<u64>,
    leaders: watch::Receiver<Option<NextLeader>>,
    redirect: mpsc::Sender<Leader>,
    /// Pauses between tries with leaders.
    pace: Backoff,
    /// The leader of the last session.
    followed: Option<Leader>,
    /// The last trouble that was logged, so that each is logged once.
    last_logged: Option<String>,
}

impl Following {
    async fn follow(&mut self) {
        loop {
            let NextLeader { leader, told_to_all } = self.next_leader().await;
            if told_to_all && !self.wait_for_my_turn(&leader).await {
                continue;
            }
            let cluster = self.status.get().cluster;
            self.status.update(|state| state.leader = Some(leader.clone()));
            let end = match self.go_over(&leader, cluster).await {
                Ok(()) => self.session(&leader).await,
                Err(end) => Some(end),
            };
            // `None`: the session was left because another master leads.
            let Some(end) = end else { continue };
            match end {
                SessionEnd::NotLeader(other) => {
                    if let Some(other) = other {
                        self.redirected(other);
                    }
                    // The change of the leader ended the streams of all stores at once. The pause is cut short if the
                    // redirect names a new leader.
                    self.pause_between_tries(true).await;
                }
                SessionEnd::Broken(why) => {
                    self.log_once(format!("lost the leader {}: {why}; looking for the next", leader.address));
                    let again = !self.pace.is_first();
                    self.pause_between_tries(again).await;
                }
                SessionEnd::Closed => self.pause_between_tries(!self.pace.is_first()).await,
                SessionEnd::Busy => self.pause_between_tries(true).await,
                // Memory that another process has left: its segments are not those that the masters know.
                SessionEnd::Misfit(why) if self.written.is_some() && !self.mounted => {
                    self.lose(&leader, &why).await;
                }
                SessionEnd::Refused(why) | SessionEnd::Misfit(why) => {
                    let text = format!("the leader {} refuses this store: {why}", leader.address);
                    self.status.update(|state| state.waiting_for.clone_from(&text));
                    if self.last_logged.as_ref() != Some(&text) {
                        error!("{text}");
                        self.last_logged = Some(text);
                    }
                    self.pause(REFUSED_RETRY).await;
                }
                SessionEnd::Behind { order: 0 } => {
                    self.lose(&leader, "the leader is of a build that takes up no memory of another process")
                        .await;
                }
                SessionEnd::Behind { .. } => {
                    let why = "the index of the masters is older than this memory, as if it was restored from a copy";
                    self.lose(&leader, why).await;
                }
                SessionEnd::Dead(why) => {
                    let dropped = "the masters dropped this memory while the store was out of reach";
                    self.lose(&leader, if why.is_empty() { dropped } else { &why }).await;
                }
            }
        }
    }

    /// Decides whether the memory keeps its epoch under `cluster`, before it is announced to the cluster's leader.
    ///
    /// A cluster that knows this epoch without having been told was rescued from the disk of a master of the old
    /// cluster, and its index names this memory. Its log continues far above any index that the old cluster can have
    /// reached. So the fence stays valid, and grants of the old cluster are refused by their cluster id. The old
    /// cluster may have reused bytes after the last entry on the rescued disk; they hold another object than the index
    /// says, and the reader's checksum detects that (see docs/operations/rescue.md). All this holds for one rescue after
    /// another, too.
    ///
    /// A rescued cluster's time also continues far above the old one's. A cluster whose time is behind was not rescued
    /// from the cluster that the store leaves: it is older, or was rescued beside it, and the fence would refuse its
    /// grants. Such a cluster, and any other, gets the memory under a new epoch and key, because the old masters know
    /// the present key.
    async fn go_over(&mut self, leader: &Leader, cluster: Option<ClusterId>) -> Result<(), SessionEnd> {
        if self.cluster.is_some() && self.cluster != cluster {
            let client = fresh_client(&self.network, &leader.address)
                .map_err(|err| SessionEnd::Broken(format!("not an address: {err}")))?;
            let known = knows(client, &self.info, &self.status, leader, self.registration.epoch).await?;
            let left_at = self.status.get().cluster_time;
            if known.is_some_and(|now| now > left_at) {
                info!(epoch = %self.registration.epoch, "the new cluster was rescued from the old one: this memory is kept");
                // Its index may know an earlier process of this store, an earlier key and other segments.
                (self.mounted, self.written) = (false, self.served.highest_order());
            } else {
                if known.is_some() {
                    warn!(
                        epoch = %self.registration.epoch,
                        "the other cluster knows this memory, but was not rescued from the cluster that is left: \
                         what it holds is lost"
                    );
                }
                self.register_anew().await;
            }
            // A rescued cluster may lack a segment that was mounted last, and have one that was unmounted. Reads of the
            // latter are refused until it is unmounted there, too.
            self.status.forget_mounted();
            // A cluster that does not know this memory tells its time with the mount.
            self.status.update(|state| state.cluster_time = known.unwrap_or(ClusterTime(0)));
        }
        self.cluster = cluster;
        self.served.announce(cluster);
        Ok(())
    }

    /// Waits for this store's turn to move to `leader`; returns false if a newer leader is known first.
    ///
    /// After a failover every store hears of the new leader at the same moment. The stores spread their moves over the
    /// time that the last leader named, and the new leader believes them meanwhile.
    async fn wait_for_my_turn(&mut self, leader: &Leader) -> bool {
        let spread = self.status.get().spread;
        if spread.is_zero() || self.followed.as_ref().is_none_or(|followed| followed.same_term(leader)) {
            return true;
        }
        let turn = spread.mul_f64(rand::random_range(0.0..1.0));
        tokio::select! {
            () = sleep(turn) => true,
            changed = self.leaders.changed() => {
                if changed.is_err() {
                    std::future::pending::<()>().await;
                }
                self.leaders.mark_changed();
                false
            }
        }
    }

    async fn next_leader(&mut self) -> NextLeader {
        loop {
            if let Some(leader) = self.leaders.borrow_and_update().clone() {
                return leader;
            }
            if self.leaders.changed().await.is_err() {
                // The finder ends only with this link.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Runs one session; returns `None` if it was left because another master leads.
    async fn session(&mut self, leader: &Leader) -> Option<SessionEnd> {
        let client = match fresh_client(&self.network, &leader.address) {
            Ok(client) => client,
            Err(err) => return Some(SessionEnd::Broken(format!("not an address: {err}"))),
        };
        let status = self.status.clone();
        let mounts = status.get().mounts;
        let replies = Replies::default();
        let session = Session {
            info: &self.info,
            registration: self.registration,
            written: self.written,
            keys: &self.keys,
            status: &status,
            served: &*self.served,
            tls: &self.tls,
            leader,
            client,
            replies: &replies,
        };
        let started = status.now();
        if self.followed.as_ref().is_none_or(|followed| !followed.same_term(leader)) {
            self.pace.reset();
        }
        self.followed = Some(leader.clone());
        let running = session.run(self.mounted);
        tokio::pin!(running);
        let end = loop {
            tokio::select! {
                end = &mut running => break Some(end),
                changed = self.leaders.changed() => {
                    if changed.is_err() {
                        std::future::pending::<()>().await;
                    }
                    let next = self.leaders.borrow_and_update().as_ref().map(|next| next.leader.clone());
                    // A rescued cluster may have the same node at the same address, and counts its own terms.
                    let is_ours = status.get().cluster == self.cluster;
                    let Some(next) = next.filter(|next| is_ours && replies.keep_session(leader, next)) else {
                        break None;
                    };
                    if next.node == leader.node && next.address == leader.address {
                        status.update(|state| state.leader = Some(next.clone()));
                        self.followed = Some(next);
                        // Pauses that grew while it did not lead are over.
                        self.pace.reset();
                    }
                }
            }
        };
        let state = status.get();
        self.mounted |= state.mounts > mounts;
        if state.mounted_at.is_some_and(|at| at >= started + WORKED) {
            // The session worked, so the next trouble is logged again and the pauses start over. A shorter one does not
            // count: a leader that takes up a store and loses it again and again has too much to do.
            self.last_logged = None;
            self.pace.reset();
        }
        // It was let go, and comes back at once.
        if end == Some(SessionEnd::Closed) && state.mounted_at.is_some_and(|at| at >= started) {
            self.pace.reset();
        }
        end
    }

    /// Gives up what this memory holds, and offers it again.
    async fn lose(&mut self, leader: &Leader, why: &str) {
        warn!(
            epoch = %self.registration.epoch,
            leader = leader.address,
            "{why}: what this memory held is lost; offering it again"
        );
        self.status.update(|state| state.dead_epochs += 1);
        self.register_anew().await;
    }

    /// Serves the same memory under a new epoch and key.
    async fn register_anew(&mut self) {
        let registration = Registration::draw();
        (self.registration, self.keys) = (registration, Keys::of(registration, self.status.now()));
        (self.mounted, self.written) = (false, None);
        self.status.update(|state| {
            state.epoch = registration.epoch;
            state.mounted_at = None;
        });
        self.served.register(registration).await;
    }

    /// Pauses before the next try.
    ///
    /// The first try after a session that worked comes soon; later ones are spread like those of the rest of the fleet.
    /// `with_all`: other stores try again as well, so this one waits for a random part of the spread.
    async fn pause_between_tries(&mut self, with_all: bool) {
        let spread = match with_all {
            true => self.status.get().spread.mul_f64(rand::random_range(0.0..1.0)),
            false => Duration::ZERO,
        };
        let time = self.pace.wait() + spread;
        self.pause(time).await;
    }

    async fn pause(&mut self, time: Duration) {
        tokio::select! {
            () = sleep(time) => {}
            changed = self.leaders.changed() => {
                if changed.is_err() {
                    std::future::pending::<()>().await;
                }
                // Leave the change for `next_leader` to see.
                self.leaders.mark_changed();
            }
        }
    }

    /// Reports a redirect to the finder, which decides whether it is news. A full queue loses nothing: the finder also
    /// hears of leaders from its watches.
    fn redirected(&self, leader: Leader) {
        let _ = self.redirect.try_send(leader);
    }

    fn log_once(&mut self, text: String) {
        if self.last_logged.as_ref() != Some(&text) {
            warn!("{text}");
            self.last_logged = Some(text);
        }
    }

    /// Unmounts the memory at the present leader; returns when that is done or refused for good.
    async fn unmount(&mut self) {
        loop {
            let NextLeader { leader, .. } = self.next_leader().await;
            let ended = match fresh_client(&self.network, &leader.address) {
                Ok(client) => {
                    unmount(client, &self.info, &self.status, &leader, self.registration.epoch).await
                }
                Err(err) => Err(SessionEnd::Broken(err.to_string())),
            };
            match ended {
                Ok(()) => {
                    return info!(epoch = %self.registration.epoch, leader = leader.address, "unmounted");
                }
                Err(SessionEnd::Dead(_)) => return,
                Err(SessionEnd::Refused(why) | SessionEnd::Misfit(why)) => {
                    return warn!("the leader {} refuses: {why}", leader.address);
                }
                Err(SessionEnd::NotLeader(Some(other))) => {
                    self.redirected(other);
                }
                Err(
                    SessionEnd::NotLeader(None)
                    | SessionEnd::Closed
                    | SessionEnd::Behind { .. }
                    | SessionEnd::Broken(_)
                    | SessionEnd::Busy,
                ) => {}
            }
            let time = self.pace.wait();
            self.pause(time).await;
        }
    }
}
