use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use mc_index::{Command, Op, Response, Settings};
use mc_log::{MasterNode, Proposal};
use mc_proto::v1;
use mc_raft::{Applied, Leadership, NotLeader, ProposeError, REMOVED_FIX, RaftNode, SharedIndex};
use mc_types::{Clock, ClusterId, NodeId};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Leading;
use super::admission::{Admission, Unwritten};
use crate::api::{Refusal, leader_message};
use crate::data_disk::DataDisk;
use crate::formation::Formation;
use crate::metrics::{LedBy, MasterMetrics, Proposed};

/// How long a proposal is waited for. A client's own deadline is usually shorter.
const PROPOSAL_TIMEOUT: Duration = Duration::from_secs(5);

/// The wait of an answer that can do without soft state.
const A_MOMENT: Duration = Duration::from_millis(100);

/// Message of a master that knows no leader.
const NO_LEADER: &str = "no leader is known: a majority of the masters must be running and reach each other";

/// Parts of a coordinator.
pub(crate) struct CoordinatorConfig {
    pub(crate) cluster: ClusterId,
    /// This master came to the cluster after it had formed, and empty.
    pub(crate) newcomer: bool,
    pub(crate) raft: RaftNode,
    pub(crate) seed: Settings,
    pub(crate) clock: Clock,
    pub(crate) disk: Arc<DataDisk>,
    pub(crate) formation: Arc<Formation>,
    pub(crate) metrics: Arc<MasterMetrics>,
    pub(crate) unwritten: Unwritten,
    pub(crate) stop: CancellationToken,
}

/// Serves calls: it has the replicated index, the way to change it, and the soft state of the term that this master
/// leads, if it leads one.
pub(crate) struct Coordinator {
    pub(crate) cluster: ClusterId,
    newcomer: bool,
    pub(crate) raft: RaftNode,
    pub(crate) index: SharedIndex,
    pub(crate) metrics: Arc<MasterMetrics>,
    /// Counts the changes of the stores' liveness, for the watchers.
    pub(crate) store_changes: watch::Sender<u64>,
    /// The settings that this master's flags ask for: a cluster that has none yet takes its first leader's.
    pub(crate) seed: Settings,
    clock: Clock,
    disk: Arc<DataDisk>,
    /// Meets other masters.
    pub(crate) formation: Arc<Formation>,
    leading: ArcSwapOption<Leading>,
    /// Taken to replace `leading`, so that one term has one soft state.
    begin: Mutex<()>,
    admission: Admission,
    /// Held while a setting is changed.
    pub(crate) configuring: tokio::sync::Mutex<()>,
    /// Ends open streams with this master.
    pub(crate) stop: CancellationToken,
}

impl Coordinator {
    pub(crate) fn new(config: CoordinatorConfig) -> Self {
        let CoordinatorConfig {
            cluster,
            newcomer,
            raft,
            seed,
            clock,
            disk,
            formation,
            metrics,
            unwritten,
            stop,
        } = config;
        Self {
            cluster,
            newcomer,
            index: raft.index().clone(),
            raft,
            seed,
            metrics,
            store_changes: watch::Sender::new(0),
            clock,
            disk,
            formation,
            leading: ArcSwapOption::empty(),
            begin: Mutex::new(()),
            admission: Admission::new(unwritten),
            configuring: tokio::sync::Mutex::default(),
            stop,
        }
    }

    /// The soft state of the term that this master leads, after a check that it still leads, as the cluster's read policy
    /// has it: what is read from the index after this returns is at least as new as everything acknowledged before it
    /// was called. Every answer that a caller gets from the index or from soft state begins here, or at one of the next
    /// two.
    pub(crate) async fn lead(&self) -> Result<Arc<Leading>, Refusal> {
        if let Some(leading) = self.lead_now() {
            return Ok(leading);
        }
        let term = self.raft.read_barrier().await.map_err(|not| refusal(&not))?;
        self.metrics.led(LedBy::Quorum);
        Ok(self.leading(term.0))
    }

    /// Like [`Self::lead`], without waiting: `None` when it takes a round trip to know, which under the policy
    /// `read-index` it always does.
    pub(crate) fn lead_now(&self) -> Option<Arc<Leading>> {
        let term = self.raft.try_lease()?;
        self.metrics.led(LedBy::Lease);
        Some(self.leading(term.0))
    }

    /// Like [`Self::lead`], for answers that would rather say less than wait long: `None` when this master does not lead,
    /// or does not know it in a moment.
    pub(crate) async fn lead_soon(&self) -> Option<Arc<Leading>> {
        if let Some(leading) = self.lead_now() {
            return Some(leading);
        }
        if self.raft.view().role != "leader" {
            return None;
        }
        tokio::time::timeout(A_MOMENT, self.lead()).await.ok()?.ok()
    }

    /// The soft state for what this master does unasked, by its lease under either read policy.
    ///
    /// A lease that lies, because a clock stood still, does no harm here. What is done from it is proposed, which only
    /// the leader of the newest term gets committed; or it changes soft state of a term that is over, from which no
    /// caller is answered without a check of its own.
    pub(crate) fn on_duty(&self) -> Option<Arc<Leading>> {
        self.raft.presumed_term().map(|term| self.leading(term.0))
    }

    fn leading(&self, term: u64) -> Arc<Leading> {
        if let Some(leading) = self.leading.load().as_ref().filter(|leading| leading.term == term) {
            return leading.clone();
        }
        let _begin = self.begin.lock();
        if let Some(leading) = self.leading.load().as_ref().filter(|leading| leading.term >= term) {
            // Of two terms the newer one stays: what the older decides does nothing in the log any more.
            return leading.clone();
        }
        let leading = self.index.read(|applied| {
            let state = &applied.state;
            let leading = Leading::begin(term, state.time(), state.settings(), self.clock.clone());
            leading.liveness.refresh(state.mounted().map(|(store, _)| store), leading.elapsed());
            Arc::new(leading)
        });
        self.leading.store(Some(leading.clone()));
        leading
    }

    /// Drops the soft state of a term that is over.
    pub(crate) fn step_down(&self) {
        let _begin = self.begin.lock();
        self.leading.store(None);
    }

    /// Proposes `op` with a stamp of this term and waits until it is applied here.
    ///
    /// # Errors
    /// All but `Unknown` are definite: nothing was done ([`RaftNode::propose`]).
    pub(crate) async fn propose(&self, leading: &Leading, op: Op) -> Result<Response, Refusal> {
        let kind = Proposed::from(&op);
        let bytes = Command { stamp: leading.stamp(), op }.encode();
        if bytes.len() > mc_types::MAX_COMMAND_BYTES {
            return Err(Refusal::Invalid(format!(
                "the request makes a log entry of {} bytes, the limit is {}: split the batch",
                bytes.len(),
                mc_types::MAX_COMMAND_BYTES
            )));
        }
        let in_flight =
            self.admission.admit(bytes.len()).inspect_err(|_| self.metrics.proposals_refused.increment(1))?;
        let proposed_at = self.clock.now();
        let proposed = self.raft.propose(Proposal(bytes));
        // It is in flight until Raft has answered, however soon the caller gives up.
        let write = tokio::spawn(async move {
            let answer = proposed.await;
            drop(in_flight);
            answer
        });
        let answer = match tokio::time::timeout(PROPOSAL_TIMEOUT, write).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => return Err(Refusal::Unknown("this master is stopping".into())),
            Err(_) => {
                return Err(Refusal::Unknown(format!(
                    "no majority of the masters confirmed the entry within {PROPOSAL_TIMEOUT:?}"
                )));
            }
        };
        match answer {
            Ok(response) => {
                self.metrics.committed(kind, self.clock.now().saturating_sub(proposed_at));
                match response {
                    Response::WrongTerm => Err(self.not_leader()),
                    response => Ok(response),
                }
            }
            Err(ProposeError::NotLeader) => Err(self.not_leader()),
            Err(ProposeError::Unknown(why)) => Err(Refusal::Unknown(why)),
        }
    }

    /// Refuses to start puts while the disk under the log is nearly full, here or at so many masters that an end of their
    /// logs would leave no majority.
    pub(crate) fn refuse_without_room(&self) -> Result<(), Refusal> {
        let Some(refusal) = self.short_of_room() else { return Ok(()) };
        self.metrics.puts_refused_by_disk.increment(1);
        Err(refusal)
    }

    /// Why a leader starts no puts, if it doesn't.
    pub(crate) fn short_of_room(&self) -> Option<Refusal> {
        if let Some(shortage) = self.disk.shortage() {
            let dir = self.disk.dir().to_owned();
            return Some(Refusal::DiskNearlyFull { node: self.raft.node_id(), dir, shortage });
        }
        let nodes = self.raft.nearly_full();
        (!nodes.is_empty()).then_some(Refusal::NoMajorityHasRoom { nodes })
    }

    /// The refusal that names whom this master believes to lead.
    pub(crate) fn not_leader(&self) -> Refusal {
        let Leadership { leader, term, .. } = self.raft.leadership().borrow().clone();
        // A master that refuses because it is not sure to lead does not send callers to itself.
        let leader = leader.filter(|(id, _)| *id != self.raft.node_id());
        refusal(&NotLeader { leader, term })
    }

    /// The cluster's settings, once this master has certainly applied what had changed them before it started.
    pub(crate) fn known_settings(&self) -> Option<Settings> {
        let Leadership { leader, term, .. } = self.raft.leadership().borrow().clone();
        leader?;
        let committed = self.raft.view().committed;
        self.index.read(|applied| {
            // An entry of the term that is led now lies after all that was committed in earlier ones.
            let last = applied.last_applied.filter(|last| last.leader_id.term == term)?;
            let all = last.index >= committed && applied.state.cluster_version() > 0;
            all.then(|| applied.state.settings().clone())
        })
    }

    /// Why this master is of no use to the cluster right now; empty when it is.
    pub(crate) fn waits_for(&self, applied: &Applied, now: &Leadership) -> String {
        // Newcomers alone are asked: a member that has restarted may not know its membership before it hears a leader.
        let is_member = || applied.membership.membership().get_node(&self.raft.node_id()).is_some();
        if self.newcomer && now.removed.is_none() && !is_member() {
            return format!(
                "this node is new to cluster {} and waits to be taken in by its leader (at another address than that of a \
                     member that is gone, with `mcctl members add`)",
                self.cluster
            );
        }
        match (&now.leader, now.removed) {
            (Some(_), _) => String::new(),
            (None, Some(at)) => format!(
                "this node is no member of cluster {} any more, as of log entry {at}: {REMOVED_FIX}",
                self.cluster
            ),
            (None, None) => NO_LEADER.to_owned(),
        }
    }

    /// Whom this master believes to lead.
    pub(crate) fn leader(&self) -> Option<v1::Leader> {
        leader_of(&self.raft.leadership().borrow())
    }

    /// Read leases that the current soft state remembers.
    pub(crate) fn read_leases(&self) -> usize {
        self.leading.load().as_ref().map_or(0, |leading| leading.lease_count())
    }
}

/// Whom it names, as it travels.
pub(crate) fn leader_of(now: &Leadership) -> Option<v1::Leader> {
    message_of(now.leader.as_ref(), now.term)
}

fn message_of(leader: Option<&(NodeId, MasterNode)>, term: u64) -> Option<v1::Leader> {
    leader.map(|(id, node)| leader_message(*id, node, term))
}

fn refusal(not: &NotLeader) -> Refusal {
    Refusal::NotLeader { leader: message_of(not.leader.as_ref(), not.term), term: not.term }
}
