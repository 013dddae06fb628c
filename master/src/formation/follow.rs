//! Addresses of the masters of a formed cluster: a master tells the others where it is, and believes where another one
//! is after it has reached it there.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::time::Duration;

use mc_log::MasterNode;
use mc_raft::AddressBook;
use mc_types::{ClusterId, HostPort, NodeId};

use super::{Formation, FormationError, PeerReply, PeerState, Plan, find_self};
use crate::config::{Entries, Expansion};

/// Pause between two rounds of calls to the other masters, while nobody leads or the cluster does not know this
/// master's addresses.
const ROUND: Duration = Duration::from_secs(1);

/// A master's view of its cluster, from its Raft.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterView {
    /// The members and their addresses, as they are replicated.
    pub(crate) members: BTreeMap<NodeId, MasterNode>,
    /// Whether a leader is known.
    pub(crate) led: bool,
}

impl Formation {
    /// Runs beside a master that has a cluster and keeps the addresses in `book` up to date:
    ///
    /// - It calls `Meet` at the listed addresses and at the known members. It does so once, and again as long as nobody
    ///   leads or the membership has other addresses for this master than its own. The masters that it calls learn its
    ///   addresses, and so does a cluster whose masters have all moved.
    /// - If a member says that it is elsewhere, it calls that address before it believes this.
    ///
    /// # Errors
    /// [`FormationError`], in the first round only: this master is in the list twice or not at all, or every listed address
    /// answers, and a master of another cluster and none of this one is there. Otherwise, or if this master is its
    /// cluster's only member, a warning is logged about each master of another cluster.
    pub(crate) async fn follow(
        &self,
        book: &AddressBook,
        view: impl Fn() -> ClusterView + Send,
    ) -> Result<Infallible, FormationError> {
        let Some(cluster) = self.service.cluster() else {
            return std::future::pending().await;
        };
        let mut follower = Follower { formation: self, book, cluster, complaints: BTreeSet::new() };
        let mut first = true;
        loop {
            let now = view();
            if first || follower.must_tell(&now) {
                follower.round(&now, first).await?;
                first = false;
            }
            tokio::select! {
                () = tokio::time::sleep(ROUND) => {}
                () = self.service.claimed.notified() => {
                    for (node, addresses) in self.service.take_claims() {
                        follower.consider(&view(), node, &addresses).await;
                    }
                }
            }
        }
    }
}

struct Follower<'a> {
    formation: &'a Formation,
    book: &'a AddressBook,
    cluster: ClusterId,
    /// Complaints that were logged; each is logged once.
    complaints: BTreeSet<String>,
}

impl Follower<'_> {
    /// Whether the other masters have to hear this one's addresses.
    fn must_tell(&self, now: &ClusterView) -> bool {
        let own = self.formation.service.addresses();
        let recorded = now.members.get(&self.formation.service.node());
        !now.led || own.is_some_and(|own| recorded.is_some_and(|recorded| *recorded != own))
    }

    async fn round(&mut self, now: &ClusterView, first: bool) -> Result<(), FormationError> {
        let listed = self.listed().await;
        let own = self.formation.own(listed.clone()).await;
        let me = self.formation.service.node();
        let elsewhere =
            now.members.keys().filter(|node| **node != me).filter_map(|node| self.book.get(*node));
        let elsewhere = elsewhere.filter_map(|node| HostPort::parse(&node.raft, 0).ok());
        let unlisted: Vec<_> = elsewhere.filter(|address| !listed.addresses.contains(address)).collect();
        let met = self.formation.meet_all(&own, &listed.addresses).await;
        let found = match find_self(&own, &met) {
            // Without a list, there is no entry to find.
            _ if listed.addresses.is_empty() => None,
            Ok(entry) => entry,
            Err(error) if first => return Err(error),
            // The flags were right at the start. If a name leads elsewhere since then, a healthy member goes on.
            Err(error) => {
                self.complain(error.to_string());
                None
            }
        };
        if let Some(entry) = found {
            self.formation.service.show_addresses(self.formation.config.advertise.at(&entry));
        }
        if let Some(addresses) = self.formation.service.addresses() {
            self.book.met(me, addresses);
        }
        if first {
            self.check_list(now, &met)?;
        }
        let others = self.formation.meet_all(&own, &unlisted).await;
        let answers = met.into_iter().chain(others).filter_map(|met| met.answer.ok());
        let ours = answers.filter(|answer| answer.formed && answer.cluster == Some(self.cluster));
        for answer in ours.collect::<Vec<_>>() {
            self.consider(now, answer.node, &answer.addresses).await;
        }
        Ok(())
    }

    /// Returns the listed addresses; none if a name does not resolve right now. The list serves only to find addresses
    /// here, so a healthy member goes on without it.
    async fn listed(&self) -> Entries {
        let Plan::Peers(list) = &self.formation.config.plan else { return Entries::default() };
        let Ok(Expansion::Entries(entries)) = list.expand(&self.formation.config.resolver).await else {
            return Entries::default();
        };
        self.formation.service.show_list(entries.addresses.clone());
        entries
    }

    /// Checks that the list is one of this cluster's masters.
    ///
    /// A master that is its cluster's only member needs no other one, as its own data proves. So it goes on beside masters of
    /// another cluster: after a rescue these may be the old ones, started again with their old data. An address that does not
    /// answer may be one of this cluster, which is about to start, too.
    fn check_list(&mut self, now: &ClusterView, met: &[PeerReply]) -> Result<(), FormationError> {
        let (ours, me) = (self.cluster, self.formation.service.instance());
        let others = met
            .iter()
            .filter_map(|met| Some((&met.address, met.answer.as_ref().ok()?)))
            .filter(|(_, answer)| answer.instance != me && answer.formed);
        let clusters: Vec<_> =
            others.filter_map(|(address, answer)| Some((address, answer.cluster?))).collect();
        let alone = now.members.keys().eq([&self.formation.service.node()]);
        let unanswered = met.iter().any(|met| met.answer.is_err());
        let goes_on = alone || unanswered || clusters.iter().any(|(_, theirs)| *theirs == ours);
        for (address, theirs) in clusters.into_iter().filter(|(_, theirs)| *theirs != ours) {
            let error = FormationError::Foreign { address: address.clone(), theirs, ours };
            if !goes_on {
                return Err(error);
            }
            self.complain(error.to_string());
        }
        Ok(())
    }

    /// Considers a claim that `node` is at `addresses`. It is believed if the node answers there.
    async fn consider(&mut self, now: &ClusterView, node: NodeId, addresses: &MasterNode) {
        let me = self.formation.service.node();
        let Some(recorded) = now.members.get(&node).filter(|_| node != me) else { return };
        let before = self.book.get(node).unwrap_or_else(|| recorded.clone());
        if before == *addresses {
            return;
        }
        let [there, here] = [&before, addresses].map(|node| self.meet_at(&node.raft));
        let (there, here) = futures::join!(there, here);
        let is_node = |answer: &PeerState| answer.node == node && answer.cluster == Some(self.cluster);
        let Some(here) = here.filter(is_node).filter(|answer| answer.addresses == *addresses) else { return };
        match there.filter(is_node) {
            Some(there) if there.instance != here.instance => self.complain(format!(
                "the masters at {} and {} both have node id {node}: a data directory was copied; empty the copy",
                before.raft, addresses.raft
            )),
            _ => {
                tracing::info!(%node, from = before.raft, to = addresses.raft, "a master has moved");
                self.book.met(node, addresses.clone());
            }
        }
    }

    async fn meet_at(&self, raft: &str) -> Option<PeerState> {
        self.formation.who_is_at(&HostPort::parse(raft, 0).ok()?).await.ok()
    }

    fn complain(&mut self, what: String) {
        if self.complaints.insert(what.clone()) {
            tracing::warn!("{what}");
        }
    }
}
