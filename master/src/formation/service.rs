use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use mc_index::CLUSTER_VERSION;
use mc_log::MasterNode;
use mc_net::Tls;
use mc_proto::v1;
use mc_proto::v1::{ErrorDetail, FoundReply, FoundRequest, MeetReply, MeetRequest};
use mc_proto::{VERSIONS, status_of};
use mc_types::{ClusterId, Code, HostPort, NodeId};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tonic::Status;

use super::accept::{Founding, InviteeState, refusal};
use super::{Instance, meet};
use crate::data_dir::{Belonging, IdentityError, IdentityFile};

/// Answering side of formation, which lives as long as the process. It answers who this node is, whether it takes part
/// in a founding, and which Raft calls are for it.
#[derive(Debug)]
pub(crate) struct FormationService {
    tls: Option<Arc<Tls>>,
    node: NodeId,
    instance: Instance,
    /// Locked from a look at the identity until the change that follows from it is recorded.
    identity: Arc<tokio::sync::Mutex<IdentityFile>>,
    /// The cluster whose Raft runs, or is about to run, in this process. It is set once, with the identity locked, and
    /// no founding is accepted from that moment on.
    bound: OnceLock<ClusterId>,
    has_state: AtomicBool,
    shown: Mutex<Shown>,
    /// Notified when a Raft call comes in that may end the waiting.
    pub(super) stirred: Notify,
    /// Addresses that members say they have: see [`super::Formation::follow`].
    claims: Mutex<BTreeMap<NodeId, MasterNode>>,
    pub(super) claimed: Notify,
}

/// Limit on `claims`, above the number of masters of any cluster. Claims beyond it are dropped; their senders repeat
/// them.
const MAX_CLAIMS: usize = 64;

#[derive(Debug, Default)]
struct Shown {
    list: Vec<HostPort>,
    addresses: Option<MasterNode>,
    /// This master is about to stop, and shows no addresses.
    retired: bool,
    waiting: Option<String>,
    called: Option<ClusterId>,
}

/// Report of a process on its use of TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsReport {
    /// Whether others reach it by TLS.
    pub(crate) has_certificate: bool,
    /// Hosts that it has let in without an identity within the last minute.
    pub(crate) tolerated: Vec<String>,
}

impl From<v1::TlsReport> for TlsReport {
    fn from(v1::TlsReport { has_certificate, tolerated, .. }: v1::TlsReport) -> Self {
        Self { has_certificate, tolerated }
    }
}

/// Returns the report of this process.
pub(crate) fn tls_report(tls: Option<&Tls>) -> v1::TlsReport {
    let Some(tls) = tls else { return v1::TlsReport::default() };
    v1::TlsReport {
        has_certificate: tls.id().is_some(),
        level: tls.level().number(),
        tolerated: tls.tolerated_lately().iter().map(ToString::to_string).collect(),
    }
}

impl FormationService {
    pub(super) fn new(identity: IdentityFile, has_state: bool, tls: Option<Arc<Tls>>) -> Self {
        Self {
            tls,
            node: identity.node(),
            instance: Instance(rand::random()),
            identity: Arc::new(tokio::sync::Mutex::new(identity)),
            bound: OnceLock::new(),
            has_state: AtomicBool::new(has_state),
            shown: Mutex::default(),
            stirred: Notify::new(),
            claims: Mutex::default(),
            claimed: Notify::new(),
        }
    }

    /// This node's id.
    #[must_use]
    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    /// Identifies this start of the process.
    #[must_use]
    pub(crate) fn instance(&self) -> Instance {
        self.instance
    }

    /// The cluster that this process takes part in, if it does.
    #[must_use]
    pub(crate) fn cluster(&self) -> Option<ClusterId> {
        self.bound.get().copied()
    }

    /// Whether Raft has something on disk.
    #[must_use]
    pub(crate) fn has_state(&self) -> bool {
        self.has_state.load(Ordering::Acquire)
    }

    /// Addresses under which others reach this node, once it has found itself in its list.
    #[must_use]
    pub(crate) fn addresses(&self) -> Option<MasterNode> {
        self.shown.lock().addresses.clone()
    }

    /// The masters that this node waits for, and why; `None` if it does not wait.
    #[must_use]
    pub(crate) fn waiting(&self) -> Option<String> {
        self.shown.lock().waiting.clone()
    }

    /// Answers `Meet`: introduces this node.
    ///
    /// # Errors
    /// None; the service trait requires a result.
    pub(crate) async fn meet(&self, request: MeetRequest) -> Result<MeetReply, Status> {
        let belonging = self.identity.lock().await.belonging();
        tracing::debug!(from = ?NodeId::from_bytes(&request.node_id), formed = request.formed, "a master called Meet");
        self.note_claim(&request);
        let shown = self.shown.lock();
        Ok(MeetReply {
            instance: meet::bytes(&self.instance.0.to_be_bytes()),
            node_id: meet::bytes(&self.node.to_bytes()),
            cluster_id: belonging.map(|it| meet::bytes(&it.cluster.to_bytes())).unwrap_or_default(),
            formed: self.has_state(),
            peers: shown.list.iter().map(ToString::to_string).collect(),
            addresses: shown.addresses.as_ref().map(meet::to_wire),
            version_min: *VERSIONS.start(),
            version_max: *VERSIONS.end(),
            software: env!("CARGO_PKG_VERSION").into(),
            cluster_version_max: CLUSTER_VERSION,
            tls: Some(tls_report(self.tls.as_deref())),
        })
    }

    /// Answers `Found`: the master with the smallest id asks this node to take part in a new cluster. An acceptance is
    /// on disk before it is sent.
    ///
    /// # Errors
    /// A malformed request, or a disk error. Whether the founding was recorded is then unknown, which is harmless: the
    /// founder does not have this node's acceptance.
    pub(crate) async fn found(&self, request: FoundRequest) -> Result<FoundReply, Status> {
        let call = meet::founding(&request)
            .ok_or_else(|| Status::invalid_argument("the Found request has a malformed id"))?;
        match self.accept(call).await {
            Ok(None) => Ok(FoundReply { accepted: true, reason: String::new() }),
            Ok(Some(reason)) => Ok(FoundReply { accepted: false, reason }),
            Err(error) => {
                tracing::error!(%error, "cannot record the founding of a cluster");
                Err(Status::internal(error.to_string()))
            }
        }
    }

    /// Checks that a Raft call with this envelope is for this node and may be answered.
    ///
    /// While this node takes part in no cluster, a call for its id is remembered: the next round of meetings decides
    /// whether to join the caller's cluster.
    ///
    /// # Errors
    /// `WRONG_NODE` and `WRONG_CLUSTER`, with both sides' values; `UNAVAILABLE_IN_CURRENT_STATUS` (try again) while
    /// this node takes part in no cluster.
    pub(crate) fn admit(&self, cluster: ClusterId, to: NodeId) -> Result<(), Status> {
        if to != self.node {
            return Err(status_of(&ErrorDetail {
                code: Code::WrongNode as i32,
                message: format!("this is node {}, the call is for node {to}", self.node),
                ours: self.node.to_string(),
                theirs: to.to_string(),
                ..ErrorDetail::default()
            }));
        }
        match self.bound.get() {
            Some(bound) if *bound == cluster => Ok(()),
            Some(bound) => Err(status_of(&ErrorDetail {
                code: Code::WrongCluster as i32,
                message: format!("this node is of cluster {bound}, the call is from cluster {cluster}"),
                ours: bound.to_string(),
                theirs: cluster.to_string(),
                ..ErrorDetail::default()
            })),
            None => {
                // Notified once for each cluster: a leader repeats its calls faster than rounds are of use.
                if self.shown.lock().called.replace(cluster) != Some(cluster) {
                    self.stirred.notify_one();
                }
                Err(status_of(&ErrorDetail {
                    code: Code::UnavailableInCurrentStatus as i32,
                    message: "this node takes part in no cluster yet: try again".into(),
                    ..ErrorDetail::default()
                }))
            }
        }
    }

    /// Records that Raft has something on disk. Call it at the latest when a leader is known. From then on, this node
    /// answers as formed, and an empty log at its next start is a lost log.
    ///
    /// # Errors
    /// [`IdentityError`]; the call may be repeated.
    pub(crate) async fn record_formed(&self) -> Result<(), IdentityError> {
        self.has_state.store(true, Ordering::Release);
        self.with_identity(|identity| identity.record_formed()).await
    }

    /// Records the founding, or returns the reason for refusing it.
    pub(super) async fn accept(&self, call: Founding) -> Result<Option<String>, IdentityError> {
        let mut guard = Arc::clone(&self.identity).lock_owned().await;
        // Checked under the lock that binding holds, too: a bound node accepts nothing.
        let own = InviteeState {
            node: self.node,
            belonging: guard.belonging(),
            bound: self.cluster(),
            formed: self.has_state() || guard.formed(),
        };
        if let Some(reason) = refusal(&own, &call) {
            tracing::info!(cluster = %call.cluster, founder = %call.from, reason, "refused a founding");
            return Ok(Some(reason));
        }
        let (cluster, founder) = (call.cluster, call.from);
        // Runs on a thread of its own and keeps the lock, so that it completes even if the caller disconnects.
        in_background(move || guard.belong(Belonging { cluster, founder: Some(founder) })).await?;
        tracing::info!(%cluster, %founder, "agreed to found a cluster");
        Ok(None)
    }

    /// Binds this process to `belonging` and records that first, if it is a change. Returns false if the identity no
    /// longer is what it `was`, or the process is bound already.
    pub(super) async fn bind(
        &self,
        was: Option<Belonging>,
        belonging: Belonging,
    ) -> Result<bool, IdentityError> {
        let mut guard = Arc::clone(&self.identity).lock_owned().await;
        if guard.belonging() != was {
            return Ok(false);
        }
        let guard = in_background(move || guard.belong(belonging).map(|()| guard)).await?;
        // Still locked: see `accept`.
        let bound = self.bound.set(belonging.cluster).is_ok();
        drop(guard);
        Ok(bound)
    }

    /// Reads or changes the identity on a thread that may block.
    pub(super) async fn with_identity<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut IdentityFile) -> T + Send + 'static,
    ) -> T {
        let mut guard = Arc::clone(&self.identity).lock_owned().await;
        in_background(move || work(&mut guard)).await
    }

    /// Records where a member of this node's cluster says it is.
    fn note_claim(&self, request: &MeetRequest) {
        let cluster = ClusterId::from_bytes(&request.cluster_id);
        if !request.formed || cluster.is_none() || cluster != self.cluster() {
            return;
        }
        let (Some(node), Some(addresses)) = (NodeId::from_bytes(&request.node_id), &request.addresses) else {
            return;
        };
        let mut claims = self.claims.lock();
        if claims.len() < MAX_CLAIMS || claims.contains_key(&node) {
            claims.insert(node, meet::from_wire(addresses));
            self.claimed.notify_one();
        }
    }

    pub(super) fn take_claims(&self) -> BTreeMap<NodeId, MasterNode> {
        std::mem::take(&mut *self.claims.lock())
    }

    pub(super) fn called(&self) -> Option<ClusterId> {
        self.shown.lock().called
    }

    pub(super) fn show_list(&self, list: Vec<HostPort>) {
        self.shown.lock().list = list;
    }

    pub(super) fn show_addresses(&self, addresses: MasterNode) {
        let mut shown = self.shown.lock();
        shown.addresses = Some(addresses).filter(|_| !shown.retired);
    }

    /// Shows no addresses from now on. The place of a master that gives up its vote is reserved until it has started
    /// again: no other master may believe that it still serves there.
    pub(crate) fn retire(&self) {
        let mut shown = self.shown.lock();
        (shown.addresses, shown.retired) = (None, true);
    }

    pub(super) fn show_waiting(&self, waiting: Option<String>) {
        self.shown.lock().waiting = waiting;
    }
}

/// Runs `work` where it may block on the disk.
async fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match mc_durable::blocking(work).await {
        Ok(value) => value,
        // The task cannot be cancelled, so it has panicked: go on with that panic.
        Err(err) => std::panic::resume_unwind(err.into_panic()),
    }
}
