use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use mc_index::{
    AUDIT_SINCE, AuditedCall, Op, ReadPolicy, Request, Security, Settings, allocation_order, known_from,
};
use mc_log::{LogId, Proposal};
use mc_raft::{
    Applied, LeaderTransferError, Leadership, NotLeader, ProposeError, REMOVED_FIX, RaftNode, RaftView,
    SharedIndex,
};
use mc_types::{Clock, ClusterId, NodeId};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::admission::{Admission, Unwritten};
use super::call;
use super::readiness::ReadinessInput;
use super::{KnownLeader, Leading, Refusal};
use crate::data_dir::DataDisk;
use crate::metrics::{LedBy, MasterMetrics, Proposed};

/// Longest wait for a proposal. A client's own deadline is usually shorter.
const PROPOSAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest wait for the soft state in an answer that can do without it.
const A_MOMENT: Duration = Duration::from_millis(100);

/// Message of a master that knows no leader.
const NO_LEADER: &str = "no leader is known: a majority of the masters must be running and reach each other";

/// Parts of a coordinator.
pub(crate) struct CoordinatorConfig {
    pub(crate) cluster: ClusterId,
    /// Whether this master joined the cluster empty, after the cluster had formed.
    pub(crate) newcomer: bool,
    /// Whether the log syncs entries. If it does not, a loss of power can take the end of it from a majority.
    pub(crate) synced: bool,
    pub(crate) raft: Arc<RaftNode>,
    pub(crate) clock: Clock,
    pub(crate) disk: Arc<DataDisk>,
    pub(crate) metrics: Arc<MasterMetrics>,
    pub(crate) unwritten: Unwritten,
    pub(crate) stop: CancellationToken,
}

/// State of a master at one moment, for display.
pub(crate) struct StatusView<'a> {
    pub(crate) raft: RaftView,
    pub(crate) applied: &'a Applied,
    /// Soft state, if this master leads.
    pub(crate) leading: Option<&'a Leading>,
    pub(crate) leader: Option<KnownLeader>,
    /// Why this master cannot serve the cluster right now; empty if it can.
    pub(crate) waiting_for: String,
    /// Why this leader starts no puts; empty if it does.
    pub(crate) no_puts: String,
}

/// The replicated index, the way to change it, and the soft state of the term that this master leads, if any.
pub(crate) struct Coordinator {
    cluster: ClusterId,
    newcomer: bool,
    synced: bool,
    raft: Arc<RaftNode>,
    index: SharedIndex,
    metrics: Arc<MasterMetrics>,
    clock: Clock,
    disk: Arc<DataDisk>,
    leading: ArcSwapOption<Leading>,
    /// Held while `leading` is replaced, so that one term has one soft state.
    begin: Mutex<()>,
    admission: Admission,
    /// Ends with this master.
    stop: CancellationToken,
}

/// Returns the lowest order that an allocation after `last` can have.
///
/// The order of the term's first index would not do: where indexes exceed 2^32, as after each rescue, allocations of earlier terms
/// have higher orders than that.
fn begins_after(last: Option<LogId>) -> u64 {
    last.map_or(0, |last| allocation_order(last.leader_id.term, last.index).saturating_add(1))
}

impl Coordinator {
    pub(crate) fn new(config: CoordinatorConfig) -> Self {
        let CoordinatorConfig { cluster, newcomer, synced, raft, clock, disk, metrics, unwritten, stop } =
            config;
        Self {
            cluster,
            newcomer,
            synced,
            index: raft.index().clone(),
            raft,
            metrics,
            clock,
            disk,
            leading: ArcSwapOption::empty(),
            begin: Mutex::new(()),
            admission: Admission::new(unwritten),
            stop,
        }
    }

    /// The cluster that this master belongs to.
    pub(crate) fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Passes the index, as far as it is applied here, to `look`. The lock is not recursive: `look` must not read it again.
    #[track_caller]
    pub(crate) fn read<R>(&self, look: impl FnOnce(&Applied) -> R) -> R {
        self.index.read(look)
    }

    /// Access settings, as far as they are applied here.
    pub(crate) fn security(&self) -> Security {
        self.index.security().borrow().clone()
    }

    /// How a read makes sure that this master still leads.
    pub(crate) fn read_policy(&self) -> ReadPolicy {
        self.index.read_policy()
    }

    /// Index of the last entry that this master knows to be committed.
    pub(crate) fn committed(&self) -> u64 {
        self.raft.view().committed
    }

    /// Whether this master takes itself for the leader. It may be unsure at this moment: see [`Self::on_duty`].
    pub(crate) fn is_leader(&self) -> bool {
        self.raft.view().role == "leader"
    }

    /// Sleeps for `span`; returns false if this master stops meanwhile.
    pub(crate) async fn pause(&self, span: Duration) -> bool {
        tokio::select! {
            () = self.stop.cancelled() => false,
            () = tokio::time::sleep(span) => true,
        }
    }

    /// Waits until this master stops.
    pub(crate) async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// Whether this master stops.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Returns the soft state of the term that this master leads, after checking that it still leads.
    ///
    /// The cluster's read policy says how to check. An index read after this returns is at least as new as everything
    /// acknowledged before the call. Every answer to a caller from the index or from soft state begins with this
    /// method, [`Self::lead_now`] or [`Self::lead_soon`].
    pub(crate) async fn lead(&self) -> Result<Arc<Leading>, Refusal> {
        if let Some(leading) = self.lead_now() {
            return Ok(leading);
        }
        let term = self.raft.read_barrier().await.map_err(Refusal::from)?;
        self.metrics.calls.led(LedBy::Quorum);
        Ok(self.leading(term.0))
    }

    /// Like [`Self::lead`], without waiting. `None` if the check takes a round trip, as it always does under the policy
    /// `read-index`.
    pub(crate) fn lead_now(&self) -> Option<Arc<Leading>> {
        let term = self.raft.try_lease()?;
        self.metrics.calls.led(LedBy::Lease);
        Some(self.leading(term.0))
    }

    /// Like [`Self::lead`], for answers that prefer to say less over waiting long. `None` if this master does not lead,
    /// or cannot tell within 100 ms.
    pub(crate) async fn lead_soon(&self) -> Option<Arc<Leading>> {
        if let Some(leading) = self.lead_now() {
            return Some(leading);
        }
        if !self.is_leader() {
            return None;
        }
        tokio::time::timeout(A_MOMENT, self.lead()).await.ok()?.ok()
    }

    /// Returns the soft state for work that this master does unasked. Relies on the lease under either read policy.
    ///
    /// A lease that is wrong because a clock stood still does no harm here. Such work either proposes an entry, and
    /// only the leader of the newest term gets entries committed. Or it changes soft state of a term that is over, and
    /// no caller is answered from that without a check of its own.
    pub(crate) fn on_duty(&self) -> Option<Arc<Leading>> {
        self.raft.presumed_term().map(|term| self.leading(term.0))
    }

    fn leading(&self, term: u64) -> Arc<Leading> {
        if let Some(leading) = self.leading.load().as_ref().filter(|leading| leading.term == term) {
            return leading.clone();
        }
        let _begin = self.begin.lock();
        if let Some(leading) = self.leading.load().as_ref().filter(|leading| leading.term >= term) {
            // The newer term's soft state stays: decisions of an older term have no effect in the log any more.
            return leading.clone();
        }
        let leading = self.index.read(|applied| {
            let state = &applied.state;
            let mut leading = Leading::begin(term, state.time(), state.settings(), self.clock.clone());
            leading.known_from = begins_after(applied.last_applied);
            leading.liveness.refresh(state.mounted().map(|(store, _)| store), leading.elapsed());
            Arc::new(leading)
        });
        self.leading.store(Some(leading.clone()));
        leading
    }

    /// Returns the order of the first allocation whose place no entry that was lost can have given away.
    ///
    /// Without syncs an election may follow a loss of power that took the end of the log from a majority. So only the
    /// allocations are known that were made since `leading` began.
    pub(crate) fn known_from(&self, leading: &Leading, applied: &Applied) -> u64 {
        let latest = applied.last_applied.map_or(0, |last| allocation_order(last.leader_id.term, last.index));
        let rescued = known_from(latest);
        if self.synced { rescued } else { rescued.max(leading.known_from) }
    }

    /// Drops the soft state of a term that is over.
    pub(crate) fn step_down(&self) {
        let _begin = self.begin.lock();
        self.leading.store(None);
    }

    /// Whether `leading` is the soft state of the term that this master presumes to lead. A store's stream can outlive
    /// a term and then still holds that term's.
    pub(crate) fn is_on_duty(&self, leading: &Leading) -> bool {
        self.on_duty().is_some_and(|current| std::ptr::eq(&*current, leading))
    }

    /// Proposes a request with a stamp of this term, waits until it is applied here, and returns its answer. Its entry names the
    /// call that asks for it ([`audited`](super::audited)).
    ///
    /// # Errors
    /// All but `Unknown` are definite: nothing was done ([`RaftNode::propose`]).
    pub(crate) async fn propose<A>(&self, leading: &Leading, request: &Request<A>) -> Result<A, Refusal> {
        self.propose_in_order(leading, request).await.map(|(answer, _)| answer)
    }

    /// [`Self::propose`], which also returns the order of an allocation by the entry.
    pub(crate) async fn propose_in_order<A>(
        &self,
        leading: &Leading,
        request: &Request<A>,
    ) -> Result<(A, u64), Refusal> {
        let command = request.encode(&leading.stamp());
        // A tick changes nothing by itself.
        let call = if matches!(request.op(), Op::Tick) { None } else { self.audited_call() };
        let command = call.map_or_else(|| command.clone(), |call| call.put_before(&command));
        self.propose_command(request, command).await
    }

    /// Logs the call that asks for a change which no entry of the index makes.
    pub(crate) async fn log_call(&self, leading: &Leading) -> Result<(), Refusal> {
        let Some(call) = self.audited_call() else { return Ok(()) };
        let tick = Request::tick();
        let command = call.put_before(&tick.encode(&leading.stamp()));
        self.propose_command(&tick, command).await.map(|(answer, _)| answer)
    }

    /// Returns the call that this task works on, where all masters can read entries that name it.
    fn audited_call(&self) -> Option<AuditedCall> {
        let call = call::present()?;
        let version = self.read(|applied| applied.state.cluster_version());
        (version >= AUDIT_SINCE).then_some(call)
    }

    async fn propose_command<A>(&self, request: &Request<A>, bytes: Bytes) -> Result<(A, u64), Refusal> {
        let kind = Proposed::from(request.op());
        if bytes.len() > mc_types::MAX_COMMAND_BYTES {
            return Err(Refusal::Invalid(format!(
                "the request makes a log entry of {} bytes, the limit is {}: split the batch",
                bytes.len(),
                mc_types::MAX_COMMAND_BYTES
            )));
        }
        let in_flight = self
            .admission
            .admit(bytes.len())
            .inspect_err(|_| self.metrics.calls.proposals_refused.increment(1))?;
        let proposed_at = self.clock.now();
        let proposed = self.raft.propose(Proposal(bytes));
        // The proposal counts as in flight until Raft has answered, however soon the caller gives up.
        let write = tokio::spawn(async move {
            let answer = proposed.await;
            drop(in_flight);
            answer
        });
        let written = match tokio::time::timeout(PROPOSAL_TIMEOUT, write).await {
            Ok(Ok(written)) => written,
            Ok(Err(_)) => return Err(Refusal::Unknown("this master is stopping".into())),
            Err(_) => {
                return Err(Refusal::Unknown(format!(
                    "no majority of the masters confirmed the entry within {PROPOSAL_TIMEOUT:?}"
                )));
            }
        };
        match written {
            Ok((log_id, response)) => {
                self.metrics.committed(kind, self.clock.now().saturating_sub(proposed_at));
                let answer = request.answer(response).ok_or_else(|| self.not_leader())?;
                Ok((answer, allocation_order(log_id.leader_id.term, log_id.index)))
            }
            Err(ProposeError::NotLeader) => Err(self.not_leader()),
            Err(ProposeError::Unknown(why)) => Err(Refusal::Unknown(why)),
        }
    }

    /// Refuses to start puts while disks under the log are nearly full: this master's, or those of so many others that
    /// losing them would leave no majority.
    pub(crate) fn refuse_without_room(&self) -> Result<(), Refusal> {
        let Some(refusal) = self.short_of_room() else { return Ok(()) };
        self.metrics.puts.refused_by_disk.increment(1);
        Err(refusal)
    }

    /// Returns the reason why this leader starts no puts, if there is one.
    pub(crate) fn short_of_room(&self) -> Option<Refusal> {
        if let Some(shortage) = self.disk.shortage() {
            let dir = self.disk.dir().to_owned();
            return Some(Refusal::DiskNearlyFull { node: self.raft.node_id(), dir, shortage });
        }
        let nodes = self.raft.nearly_full();
        (!nodes.is_empty()).then_some(Refusal::NoMajorityHasRoom { nodes })
    }

    /// Returns the refusal that names the master that this one believes to lead.
    pub(crate) fn not_leader(&self) -> Refusal {
        let Leadership { leader, term, .. } = self.raft.leadership().borrow().clone();
        // A master that refuses because it is not sure to lead does not send callers to itself.
        let leader = leader.filter(|(id, _)| *id != self.raft.node_id());
        NotLeader { leader, term }.into()
    }

    /// Hands leadership to `to`, or to the voter that has most of the log. Returns once that master leads.
    pub(crate) async fn hand_over(&self, to: Option<NodeId>) -> Result<(), Refusal> {
        let taken = self.raft.transfer_leader(to).await;
        taken.map(drop).map_err(|error| match error {
            LeaderTransferError::NotLeader(_) => self.not_leader(),
            LeaderTransferError::NoVoter(_) | LeaderTransferError::Silent(_) | LeaderTransferError::Alone => {
                Refusal::Invalid(error.to_string())
            }
            LeaderTransferError::NotTaken { .. } | LeaderTransferError::Stopped(_) => {
                Refusal::Unknown(format!("leadership was not handed over: {error}"))
            }
        })
    }

    /// Passes a view of this moment to `show`, with the soft state if this master leads.
    pub(crate) fn status_view<R>(
        &self,
        leading: Option<&Leading>,
        show: impl FnOnce(StatusView<'_>) -> R,
    ) -> R {
        let raft = self.raft.view();
        let now = self.raft.leadership().borrow().clone();
        // A leader that cannot write may not hold its lease, and then `leading` is `None`.
        let blocked = self.raft.blocked().map(|blocked| blocked.to_string());
        let no_puts = blocked.or_else(|| Some(leading.and_then(|_| self.short_of_room())?.to_string()));
        // The lock is not recursive: nothing in here may read the index or the leadership again.
        self.index.read(|applied| {
            show(StatusView {
                raft,
                applied,
                leading,
                leader: KnownLeader::in_force(&now),
                waiting_for: self.waits_for(applied, &now),
                no_puts: no_puts.unwrap_or_default(),
            })
        })
    }

    /// Returns the state of this master that decides whether it is ready.
    pub(crate) fn readiness_input(&self) -> ReadinessInput {
        let now = self.raft.leadership().borrow().clone();
        let (role, blocked) =
            (self.raft.member_role(), self.raft.blocked().map(|blocked| blocked.to_string()));
        // Read before what is applied, which only grows.
        let committed = self.raft.view().committed;
        self.index.read(|applied| ReadinessInput {
            waiting_for: self.waits_for(applied, &now),
            role,
            blocked,
            term: now.term,
            committed,
            applied: applied.last_applied,
        })
    }

    /// Returns the cluster's settings, once this master has certainly applied every change made before it started.
    pub(crate) fn known_settings(&self) -> Option<Settings> {
        let Leadership { leader, term, .. } = self.raft.leadership().borrow().clone();
        leader?;
        let committed = self.raft.view().committed;
        self.index.read(|applied| {
            // An entry of the current leader's term lies after everything that was committed in earlier terms.
            let last = applied.last_applied.filter(|last| last.leader_id.term == term)?;
            let all = last.index >= committed && applied.state.cluster_version() > 0;
            all.then(|| applied.state.settings().clone())
        })
    }

    /// Says why this master cannot serve the cluster right now; empty if it can.
    fn waits_for(&self, applied: &Applied, now: &Leadership) -> String {
        // Checked for newcomers only: a restarted member may not know its membership before it hears a leader.
        let is_member = || applied.membership.membership().get_node(&self.raft.node_id()).is_some();
        if self.newcomer && now.removed.is_none() && !is_member() {
            return format!(
                "this node is new to cluster {} and waits to be taken in by its leader (unless it has the address \
                     of a dead member, run `mcctl members add`)",
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

    /// Returns the leader, as far as this master knows.
    pub(crate) fn leader(&self) -> Option<KnownLeader> {
        KnownLeader::in_force(&self.raft.leadership().borrow())
    }

    /// Returns the HTTP address of the leader, if that is another master and this one knows it.
    pub(crate) fn leader_http(&self) -> Option<String> {
        let leader = self.raft.leadership().borrow().leader.clone();
        leader.filter(|(id, _)| *id != self.raft.node_id()).map(|(_, master)| master.http)
    }

    /// Bytes of leased objects that the current soft state remembers.
    pub(crate) fn leased_bytes(&self) -> u64 {
        self.leading.load().as_ref().map_or(0, |leading| leading.leased_bytes())
    }

    /// Number of read leases that the current soft state remembers.
    pub(crate) fn read_leases(&self) -> usize {
        self.leading.load().as_ref().map_or(0, |leading| leading.lease_count())
    }
}

impl From<NotLeader> for Refusal {
    fn from(not: NotLeader) -> Self {
        Self::NotLeader { leader: KnownLeader::of(not.leader.as_ref(), not.term), term: not.term }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mc_index::RESCUE_GAP;

    #[test]
    fn only_allocations_after_the_beginning_of_a_term_are_known_whatever_the_index() {
        for index in [1, 1 << 33, RESCUE_GAP + 5] {
            // Term 8 begins with its entry at `index`.
            let known_from = begins_after(Some(LogId::new_term_index(8, index)));
            assert!(allocation_order(7, index - 1) < known_from, "{index}");
            assert!(allocation_order(8, index + 1) >= known_from, "{index}");
        }
        assert_eq!(begins_after(None), 0);
    }
}
