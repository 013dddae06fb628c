use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use mc_log::MasterNode;
use mc_net::Network;
use mc_proto::VERSIONS;
use mc_proto::v1::MeetRequest;
use mc_types::{ClusterId, HostPort, NodeId};
use tokio::time::Instant;

use super::accept::Founding;
use super::meet::{self, Dialer};
use super::{
    Advertise, Decision, FormationError, FormationService, FormingReason, Invitation, OwnState, PeerReply,
    PeerState, decide, find_self,
};
use crate::config::{Entries, Expansion, PeerList, Resolver};
use crate::data_dir::{Belonging, IdentityFile};

/// Pause between two rounds of meetings.
const ROUND: Duration = Duration::from_millis(200);
/// Pause before another founding after a refused one: each attempt is a write to every peer's disk.
const REFOUND: Duration = Duration::from_secs(1);
/// Time after which an unchanged reason for waiting is logged again.
const REPEAT: Duration = Duration::from_secs(10);

/// How an empty master gets a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// No flag is given, so the node must have data.
    Restart,
    /// `--single`: form a cluster of one.
    Single,
    /// `--peers`: form or join a cluster with these masters.
    Peers(PeerList),
}

/// Settings of formation.
#[derive(Clone)]
pub(crate) struct FormationConfig {
    /// `--single` or `--peers`.
    pub(crate) plan: Plan,
    /// How others reach this node.
    pub(crate) advertise: Advertise,
    /// Network for connections.
    pub(crate) network: Arc<dyn Network>,
    /// Resolver of names.
    pub(crate) resolver: Resolver,
}

/// How this node came to its cluster. Only a founder initializes Raft; the others start it uninitialized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Formed {
    /// This node founded the cluster and all have accepted: initialize Raft with these members.
    Founder {
        /// The new cluster.
        cluster: ClusterId,
        /// Every master of it, this one included.
        members: BTreeMap<NodeId, MasterNode>,
    },
    /// This node accepted a founding, which the founder now completes.
    Member(ClusterId),
    /// The cluster exists and does not know this node yet: its leader may take the node in.
    Newcomer(ClusterId),
    /// This node already had data.
    Restarted(ClusterId),
}

impl Formed {
    /// Id of the cluster.
    #[must_use]
    pub(crate) fn cluster(&self) -> ClusterId {
        match self {
            Self::Founder { cluster, .. }
            | Self::Member(cluster)
            | Self::Newcomer(cluster)
            | Self::Restarted(cluster) => *cluster,
        }
    }
}

/// Asking side of formation: calls the other masters.
pub(crate) struct Formation {
    pub(super) service: Arc<FormationService>,
    pub(super) config: FormationConfig,
    dialer: Dialer,
}

impl Formation {
    /// Creates both sides of formation. `has_raft_state` says whether the Raft log holds anything: a vote, an entry or
    /// a snapshot.
    #[must_use]
    pub(crate) fn new(identity: IdentityFile, has_raft_state: bool, config: FormationConfig) -> Self {
        let service = FormationService::new(identity, has_raft_state, config.network.tls().cloned());
        match &config.plan {
            Plan::Peers(list) => {
                if let Some(entry) = config.advertise.entry(list.listed()) {
                    service.show_addresses(config.advertise.at(entry));
                }
            }
            Plan::Single => service.show_addresses(config.advertise.alone()),
            // Its place in a list is not known, so it shows only the host that `--advertise` names.
            Plan::Restart if config.advertise.host.is_some() => {
                service.show_addresses(config.advertise.alone());
            }
            Plan::Restart => {}
        }
        let dialer = Dialer::new(Arc::clone(&config.network));
        Self { service: Arc::new(service), config, dialer }
    }

    /// Returns the answering side. It must be served on the Raft address while [`Self::run`] runs, because a node also
    /// calls itself there.
    #[must_use]
    pub(crate) fn service(&self) -> Arc<FormationService> {
        Arc::clone(&self.service)
    }

    /// Brings this node into a cluster and returns how: at once if it has data, otherwise as the module docs say. The
    /// reasons for waiting are logged when they change and every ten seconds, and shown by
    /// [`FormationService::waiting`].
    ///
    /// # Errors
    /// [`FormationError`], when waiting would not help.
    pub(crate) async fn run(&self) -> Result<Formed, FormationError> {
        if let Some(formed) = self.restarted().await? {
            return Ok(formed);
        }
        let formed = match &self.config.plan {
            Plan::Restart => return Err(FormationError::NoPeers),
            Plan::Single => self.alone().await?,
            Plan::Peers(list) => self.rounds(list).await?,
        };
        self.service.show_waiting(None);
        match &formed {
            Formed::Founder { cluster, members } => {
                tracing::info!(%cluster, members = members.len(), "formed a cluster");
            }
            Formed::Newcomer(cluster) => tracing::info!(
                %cluster,
                "the cluster is already formed; this node is new and waits to be taken in by its leader"
            ),
            Formed::Member(cluster) | Formed::Restarted(cluster) => {
                tracing::info!(%cluster, "joined a cluster");
            }
        }
        Ok(formed)
    }

    /// Lets a node with data go on where it was. Fails for a node that has lost a part of its data.
    async fn restarted(&self) -> Result<Option<Formed>, FormationError> {
        let service = &self.service;
        let (belonging, was_formed) =
            service.with_identity(|identity| (identity.belonging(), identity.formed())).await;
        if !service.has_state() {
            if was_formed {
                let cluster = belonging.map(|it| it.cluster).unwrap_or_default().to_string();
                return Err(FormationError::LogLost { node: service.node(), cluster });
            }
            return Ok(None);
        }
        let belonging = belonging.ok_or(FormationError::IdentityLost)?;
        service.record_formed().await?;
        service.bind(Some(belonging), belonging).await?;
        Ok(Some(Formed::Restarted(belonging.cluster)))
    }

    /// Founds a cluster of one. A death before Raft has written leaves a cluster id that binds nobody.
    async fn alone(&self) -> Result<Formed, FormationError> {
        loop {
            let was = self.service.with_identity(|identity| identity.belonging()).await;
            if let Some(Belonging { cluster, founder: None }) = was {
                return Err(FormationError::SingleOfCluster(cluster));
            }
            let (cluster, node) = (ClusterId::random(), self.service.node());
            if self.service.bind(was, Belonging { cluster, founder: Some(node) }).await? {
                let members = BTreeMap::from([(node, self.config.advertise.alone())]);
                return Ok(Formed::Founder { cluster, members });
            }
        }
    }

    async fn rounds(&self, list: &PeerList) -> Result<Formed, FormationError> {
        let mut waiting = Waiting::default();
        loop {
            let reasons = match self.round(list).await? {
                Round::Formed(formed) => return Ok(formed),
                Round::Wait(reasons) => reasons,
            };
            waiting.say(&self.service, &reasons);
            let refused = reasons.iter().any(|reason| matches!(reason, FormingReason::Refused(..)));
            tokio::select! {
                () = tokio::time::sleep(if refused { REFOUND } else { ROUND }) => {}
                () = self.service.stirred.notified() => {}
            }
        }
    }

    async fn round(&self, list: &PeerList) -> Result<Round, FormationError> {
        let entries = match list.expand(&self.config.resolver).await? {
            Expansion::Entries(entries) => entries,
            Expansion::Incomplete(why) => return Ok(Round::Wait(vec![FormingReason::List(why)])),
        };
        self.service.show_list(entries.addresses.clone());
        let own = self.own(entries).await;
        if let Some(belonging) = own.belonging
            && own.called == Some(belonging.cluster)
        {
            // A Raft call for this node's id came from the cluster whose founding it has accepted, so all have
            // accepted.
            return self.join(&own, belonging).await;
        }
        let met = self.meet_all(&own, &own.list.addresses).await;
        if let Some(entry) = find_self(&own, &met)? {
            self.service.show_addresses(self.config.advertise.at(&entry));
        }
        match decide(&own, &met) {
            Decision::Wait(reasons) => Ok(Round::Wait(reasons)),
            Decision::Fatal(error) => Err(error),
            Decision::Join(belonging) => self.join(&own, belonging).await,
            Decision::Found { members, invitations } => self.found(&own, members, &invitations).await,
        }
    }

    pub(super) async fn own(&self, list: Entries) -> OwnState {
        OwnState {
            instance: self.service.instance(),
            node: self.service.node(),
            belonging: self.service.with_identity(|identity| identity.belonging()).await,
            called: self.service.called(),
            list,
            advertise: self.config.advertise.clone(),
            versions: VERSIONS,
        }
    }

    /// Calls `Meet` at all `addresses` at once, except the one that `--advertise` names as this node: it may not be
    /// reachable from inside.
    pub(super) async fn meet_all(&self, own: &OwnState, addresses: &[HostPort]) -> Vec<PeerReply> {
        let me = own.advertise.entry(addresses);
        let others = addresses.iter().filter(|address| Some(*address) != me);
        join_all(others.map(|address| self.meet(own, address))).await
    }

    /// Calls `Meet` at one address: says who this node is and returns who is there.
    pub(super) async fn meet(&self, own: &OwnState, address: &HostPort) -> PeerReply {
        let request = MeetRequest {
            instance: meet::bytes(&own.instance.0.to_be_bytes()),
            node_id: meet::bytes(&own.node.to_bytes()),
            cluster_id: own.belonging.map(|it| meet::bytes(&it.cluster.to_bytes())).unwrap_or_default(),
            formed: self.service.has_state(),
            peers: own.list.addresses.iter().map(ToString::to_string).collect(),
            addresses: self.service.addresses().as_ref().map(meet::to_wire),
            version_min: *VERSIONS.start(),
            version_max: *VERSIONS.end(),
            software: env!("CARGO_PKG_VERSION").into(),
        };
        PeerReply { address: address.clone(), answer: self.dialer.meet(address, request).await }
    }

    /// Asks which node is at a Raft address. A leader does so before it takes a master in.
    ///
    /// # Errors
    /// Says why no master answered.
    pub(crate) async fn who_is_at(&self, raft: &HostPort) -> Result<PeerState, String> {
        let own = self.own(Entries::default()).await;
        self.meet(&own, raft).await.answer
    }

    async fn join(&self, own: &OwnState, belonging: Belonging) -> Result<Round, FormationError> {
        if !self.service.bind(own.belonging, belonging).await? {
            // A founding was accepted since the round began, so the round's answers are out of date.
            return Ok(Round::Wait(Vec::new()));
        }
        let cluster = belonging.cluster;
        Ok(Round::Formed(match belonging.founder {
            Some(_) => Formed::Member(cluster),
            None => Formed::Newcomer(cluster),
        }))
    }

    /// Makes one attempt to found, with a new cluster id. Since no id is tried twice, the receivers' compare-and-set is
    /// exact.
    async fn found(
        &self,
        own: &OwnState,
        members: BTreeMap<NodeId, MasterNode>,
        invitations: &[Invitation],
    ) -> Result<Round, FormationError> {
        let cluster = ClusterId::random();
        let founding = Founding {
            cluster,
            from: own.node,
            to: own.node,
            members: members.keys().copied().collect(),
            replaces: own.belonging.map(|it| it.cluster),
        };
        // This node's own acceptance must be on disk before any other node hears the id.
        if self.service.accept(founding).await?.is_some() {
            return Ok(Round::Wait(Vec::new()));
        }
        let asked = invitations.iter().map(|invitation| async {
            let answer = self.dialer.found(invitation, cluster, own.node, &members).await;
            answer.err().map(|why| FormingReason::Refused(invitation.address.clone(), why))
        });
        let refused: Vec<FormingReason> = join_all(asked).await.into_iter().flatten().collect();
        if !refused.is_empty() {
            return Ok(Round::Wait(refused));
        }
        let belonging = Belonging { cluster, founder: Some(own.node) };
        // Fails if this node has accepted another founding meanwhile, which is then the later one.
        if !self.service.bind(Some(belonging), belonging).await? {
            return Ok(Round::Wait(Vec::new()));
        }
        Ok(Round::Formed(Formed::Founder { cluster, members }))
    }
}

enum Round {
    Formed(Formed),
    /// Meet again. No reasons mean that the answers were out of date, and that the last logged reasons still hold.
    Wait(Vec<FormingReason>),
}

/// The last logged reasons for waiting, and when they were logged.
#[derive(Default)]
struct Waiting {
    said: Option<(String, Instant)>,
}

impl Waiting {
    fn say(&mut self, service: &FormationService, reasons: &[FormingReason]) {
        if reasons.is_empty() {
            return;
        }
        let text = reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        service.show_waiting(Some(text.clone()));
        let repeats = self.said.as_ref().is_some_and(|(said, at)| *said == text && at.elapsed() < REPEAT);
        if !repeats {
            tracing::info!("waiting: {text}");
            self.said = Some((text, Instant::now()));
        }
    }
}
