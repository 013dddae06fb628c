//! The link's life: sessions with one leader after the other, until it is asked to stop.

use std::sync::Arc;
use std::time::Duration;

use mc_discovery::Backoff;
use mc_net::Network;
use mc_types::{ClusterId, ClusterTime};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing::{error, info, warn};

use super::finder::Finder;
use super::leaders::{Believed, Leader};
use super::masters::fresh_client;
use super::session::{End, Session, knows, unmount};
use super::status::LinkStatus;
use super::{Identity, Lent, LinkConfig, Served};

/// How long until a leader that did not answer is tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// How long until a leader that refused this store is asked again.
const REFUSED_RETRY: Duration = Duration::from_secs(1);
/// A session that lasted so long worked.
const WORKED: Duration = Duration::from_secs(5);

/// Follows the leader until `stop` fires: with a time, the memory is unmounted within it.
pub(crate) async fn run(config: LinkConfig, mut stop: oneshot::Receiver<Duration>) {
    let LinkConfig { masters, network, lent, identity, served, status, keep_cluster } = config;
    let (leader, leaders) = watch::channel(None);
    let (redirect, redirects) = mpsc::channel(8);
    let finder = Finder::new(network.clone(), masters, status.clone(), leader, keep_cluster);
    let _finder = Background(tokio::spawn(finder.run(redirects)));
    let mut following = Following {
        network,
        lent,
        served,
        status,
        identity,
        cluster: None,
        mounted: false,
        leaders,
        redirect,
        pace: Backoff::new(RETRY.0, RETRY.1),
        followed: None,
        said: None,
    };
    let within = tokio::select! {
        () = following.follow() => None,
        within = &mut stop => within.ok(),
    };
    if let Some(within) = within
        // Also when no mount was answered: one may be under way.
        && following.cluster.is_some()
        && tokio::time::timeout(within, following.unmount()).await.is_err()
    {
        warn!("no leader took the unmount within {within:?}: the masters will find out by the silence");
    }
}

/// A task that ends with its owner.
struct Background(JoinHandle<()>);

impl Drop for Background {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Following {
    network: Arc<dyn Network>,
    lent: Lent,
    served: Arc<dyn Served>,
    status: Arc<LinkStatus>,
    identity: Identity,
    /// The cluster that was told of this epoch.
    cluster: Option<ClusterId>,
    /// A leader of the present cluster has mounted the present epoch.
    mounted: bool,
    leaders: watch::Receiver<Option<Believed>>,
    redirect: mpsc::Sender<Leader>,
    /// Between tries with leaders.
    pace: Backoff,
    /// The leader of the last session.
    followed: Option<Leader>,
    /// The last trouble that was logged, so that each is logged once.
    said: Option<String>,
}

impl Following {
    async fn follow(&mut self) {
        loop {
            let Believed { leader, told_to_all } = self.next_leader().await;
            if told_to_all && !self.wait_for_my_turn(&leader).await {
                continue;
            }
            let cluster = self.status.get().cluster;
            self.status.update(|state| state.leader = Some(leader.clone()));
            let end = match self.go_over(&leader, cluster).await {
                Ok(()) => self.session(&leader).await,
                Err(end) => Some(end),
            };
            // Without an end, a newer leader is known.
            let Some(end) = end else { continue };
            match end {
                End::NotLeader(other) => {
                    if let Some(other) = other {
                        self.redirected(other);
                    }
                    // Cut short when the redirect is news. It ended the streams of all stores at once.
                    self.pause_between_tries(true).await;
                }
                End::Broken(why) => {
                    self.say(format!("lost the leader {}: {why}; looking for the next", leader.address));
                    let again = !self.pace.is_first();
                    self.pause_between_tries(again).await;
                }
                End::Busy => self.pause_between_tries(true).await,
                End::Refused(why) => {
                    let text = format!("the leader {} refuses this store: {why}", leader.address);
                    self.status.update(|state| state.waiting_for.clone_from(&text));
                    if self.said.as_ref() != Some(&text) {
                        error!("{text}");
                        self.said = Some(text);
                    }
                    self.pause(REFUSED_RETRY).await;
                }
                End::Dead => {
                    warn!(
                        epoch = %self.identity.epoch,
                        leader = leader.address,
                        "the masters gave this memory up while the store was out of reach: what it held is lost; \
                         offering it again"
                    );
                    self.status.update(|state| state.dead_epochs += 1);
                    self.register_anew().await;
                }
            }
        }
    }

    /// Makes sure that this epoch is one that `cluster` may have, before its leader is told of it.
    ///
    /// A cluster that knows this epoch without having been told was rescued from the disk of a master of the old one, and its
    /// index names this memory. Its log goes on far above what the old cluster can have reached, so the fence goes on, too,
    /// and grants of the old cluster are refused by its id. Where the old cluster had used bytes again after the rescued
    /// disk's last entry, they are another object's than the index says: the reader's checksum finds that, as docs/operations.md
    /// says. Rescue after rescue it is the same.
    ///
    /// A rescued cluster's time goes on far above the old one's, too. One whose time is behind did not come of the one that is
    /// left: it is an older one, or was rescued beside it, and the fence would refuse its grants. It and any other cluster
    /// get the memory under a new epoch and key: the old masters know the present one's.
    async fn go_over(&mut self, leader: &Leader, cluster: Option<ClusterId>) -> Result<(), End> {
        if self.cluster.is_some() && self.cluster != cluster {
            let client = fresh_client(&self.network, &leader.address)
                .map_err(|err| End::Broken(format!("not an address: {err}")))?;
            let known = knows(client, &self.lent, &self.status, leader, self.identity.epoch).await?;
            let left_at = self.status.get().cluster_time;
            if known.is_some_and(|now| now > left_at) {
                info!(epoch = %self.identity.epoch, "the new cluster was rescued from the old one: this memory is kept");
                self.mounted = true;
            } else {
                if known.is_some() {
                    warn!(
                        epoch = %self.identity.epoch,
                        "the other cluster knows this memory and did not come of the one that is left: what it holds is lost"
                    );
                }
                self.register_anew().await;
            }
            // Of a cluster that does not know this memory, the time is learned with the mount.
            self.status.update(|state| state.cluster_time = known.unwrap_or(ClusterTime(0)));
        }
        self.cluster = cluster;
        Ok(())
    }

    /// After a failover every store hears of the new leader at the same moment. They go over to it spread over the time
    /// that the last leader named for that; the new one believes them meanwhile. False when a newer one is known.
    async fn wait_for_my_turn(&mut self, leader: &Leader) -> bool {
        let spread = self.status.get().spread;
        if spread.is_zero() || self.followed.as_ref().is_none_or(|followed| followed.same_reign(leader)) {
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

    async fn next_leader(&mut self) -> Believed {
        loop {
            if let Some(leader) = self.leaders.borrow_and_update().clone() {
                return leader;
            }
            if self.leaders.changed().await.is_err() {
                // The finder has ended, which it does only with this link.
                std::future::pending::<()>().await;
            }
        }
    }

    /// One session; `None` when it was left because a newer leader is known.
    async fn session(&mut self, leader: &Leader) -> Option<End> {
        let client = match fresh_client(&self.network, &leader.address) {
            Ok(client) => client,
            Err(err) => return Some(End::Broken(format!("not an address: {err}"))),
        };
        let status = self.status.clone();
        let mounts = status.get().mounts;
        let session = Session {
            lent: &self.lent,
            identity: self.identity,
            status: &status,
            served: &*self.served,
            leader,
            client,
        };
        let started = status.now();
        if self.followed.as_ref().is_none_or(|followed| !followed.same_reign(leader)) {
            self.pace.reset();
        }
        self.followed = Some(leader.clone());
        let end = tokio::select! {
            end = session.run(self.mounted) => Some(end),
            changed = self.leaders.changed() => match changed {
                Ok(()) => None,
                Err(_) => std::future::pending().await,
            },
        };
        let state = status.get();
        self.mounted |= state.mounts > mounts;
        if state.mounted_at.is_some_and(|at| at >= started + WORKED) {
            // The next trouble is news. A leader that takes a store up and loses it again and again has too much to do.
            self.said = None;
            self.pace.reset();
        }
        end
    }

    /// The same memory under a new epoch and key.
    async fn register_anew(&mut self) {
        let identity = Identity::draw();
        self.identity = identity;
        self.mounted = false;
        self.status.update(|state| {
            state.epoch = identity.epoch;
            state.mounted_at = None;
        });
        self.served.register(identity).await;
    }

    /// The first try after a session that worked comes soon; the ones after that are spread like the rest of the fleet's.
    /// `with_all`: other stores try again as well, and this one takes a place among them.
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
                // Seen by the next look.
                self.leaders.mark_changed();
            }
        }
    }

    /// The finder decides whether that is news. It hears it from its watches, too, so a full queue loses nothing.
    fn redirected(&self, leader: Leader) {
        let _ = self.redirect.try_send(leader);
    }

    fn say(&mut self, text: String) {
        if self.said.as_ref() != Some(&text) {
            warn!("{text}");
            self.said = Some(text);
        }
    }

    /// Takes the memory back, at whoever leads; returns when that is done or refused for good.
    async fn unmount(&mut self) {
        loop {
            let Believed { leader, .. } = self.next_leader().await;
            let ended = match fresh_client(&self.network, &leader.address) {
                Ok(client) => unmount(client, &self.lent, &self.status, &leader, self.identity.epoch).await,
                Err(err) => Err(End::Broken(err.to_string())),
            };
            match ended {
                Ok(()) => return info!(epoch = %self.identity.epoch, leader = leader.address, "unmounted"),
                Err(End::Dead) => return,
                Err(End::Refused(why)) => return warn!("the leader {} refuses: {why}", leader.address),
                Err(End::NotLeader(Some(other))) => {
                    self.redirected(other);
                }
                Err(End::NotLeader(None) | End::Broken(_) | End::Busy) => {}
            }
            let time = self.pace.wait();
            self.pause(time).await;
        }
    }
}
