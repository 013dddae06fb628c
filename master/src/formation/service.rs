use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use mc_index::CLUSTER_VERSION;
use mc_log::MasterNode;
use mc_proto::{
    VERSIONS, status_of,
    v1::{ErrorDetail, FoundReply, FoundRequest, MeetReply, MeetRequest},
};
use mc_types::{ClusterId, Code, HostPort, NodeId};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tonic::Status;

use super::accept::{Founding, Standing, refusal};
use super::{Instance, meet};
use crate::identity::{Belonging, Identity, IdentityError};

/// The side of formation that answers, for as long as the process lives: who this node is, whether it takes part in
/// a founding, and which Raft calls are for it.
#[derive(Debug)]
pub struct FormationService {
    node: NodeId,
    instance: Instance,
    /// Locked from looking at the identity to the end of recording what follows from it.
    identity: Arc<tokio::sync::Mutex<Identity>>,
    /// The cluster whose Raft runs, or is about to run, in this process. Set once, with the identity locked, so that
    /// no founding is accepted from that moment on.
    bound: OnceLock<ClusterId>,
    has_state: AtomicBool,
    shown: Mutex<Shown>,
    /// A Raft call came in that may end the waiting.
    pub(super) stirred: Notify,
    /// Where members say they are: see [`super::Formation::follow`].
    claims: Mutex<BTreeMap<NodeId, MasterNode>>,
    pub(super) claimed: Notify,
}

/// More masters than any cluster has: what comes after is dropped, and is said again.
const MAX_CLAIMS: usize = 64;

#[derive(Debug, Default)]
struct Shown {
    list: Vec<HostPort>,
    addresses: Option<MasterNode>,
    waiting: Option<String>,
    called: Option<ClusterId>,
}

impl FormationService {
    pub(super) fn new(identity: Identity, has_state: bool) -> Self {
        Self {
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
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// This start of this process.
    #[must_use]
    pub fn instance(&self) -> Instance {
        self.instance
    }

    /// The cluster that this process takes part in, once it does.
    #[must_use]
    pub fn cluster(&self) -> Option<ClusterId> {
        self.bound.get().copied()
    }

    /// Whether Raft has anything on disk.
    #[must_use]
    pub fn has_state(&self) -> bool {
        self.has_state.load(Ordering::Acquire)
    }

    /// How others reach this node, once it has found itself in its list.
    #[must_use]
    pub fn addresses(&self) -> Option<MasterNode> {
        self.shown.lock().addresses.clone()
    }

    /// For whom, and why, this node waits; `None` when it does not.
    #[must_use]
    pub fn waiting(&self) -> Option<String> {
        self.shown.lock().waiting.clone()
    }

    /// Introduces this node: the answer to `Meet`.
    ///
    /// # Errors
    /// None; the signature is the service's.
    pub async fn meet(&self, request: MeetRequest) -> Result<MeetReply, Status> {
        let belonging = self.identity.lock().await.belonging();
        tracing::debug!(from = ?NodeId::from_bytes(&request.node_id), formed = request.formed, "met");
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
        })
    }

    /// The smallest id asks this node to take part in a new cluster. An acceptance is on disk before it is answered.
    ///
    /// # Errors
    /// A malformed request, or a disk that fails: whether the founding was recorded is then unknown, which binds
    /// nobody, since its founder does not have this node's acceptance.
    pub async fn found(&self, request: FoundRequest) -> Result<FoundReply, Status> {
        let call = meet::founding(&request)
            .ok_or_else(|| Status::invalid_argument("a Found whose ids are not ids"))?;
        match self.accept(call).await {
            Ok(None) => Ok(FoundReply { accepted: true, reason: String::new() }),
            Ok(Some(reason)) => Ok(FoundReply { accepted: false, reason }),
            Err(error) => {
                tracing::error!(%error, "a founding could not be recorded");
                Err(Status::internal(error.to_string()))
            }
        }
    }

    /// Whether a Raft call with this envelope is for this node, and may be answered.
    ///
    /// While this node takes part in no cluster, a call for its id is remembered: the next round of meetings decides
    /// whether to join the caller's cluster.
    ///
    /// # Errors
    /// `WRONG_NODE` and `WRONG_CLUSTER`, with both sides' values; `UNAVAILABLE_IN_CURRENT_STATUS` (try again) while
    /// this node takes part in no cluster.
    pub fn admit(&self, cluster: ClusterId, to: NodeId) -> Result<(), Status> {
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
                // Once for each cluster: a leader repeats its calls faster than rounds are of use.
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

    /// To be called once Raft has something on disk (at the latest when a leader is known): from then on this node
    /// answers as formed, and an empty log at its next start is a lost log.
    ///
    /// # Errors
    /// [`IdentityError`]; it may be called again.
    pub async fn record_formed(&self) -> Result<(), IdentityError> {
        self.has_state.store(true, Ordering::Release);
        self.with_identity(|identity| identity.record_formed()).await
    }

    /// Records the founding, or says why not.
    pub(super) async fn accept(&self, call: Founding) -> Result<Option<String>, IdentityError> {
        let mut guard = Arc::clone(&self.identity).lock_owned().await;
        // Looked at under the lock, which binding holds too: a node that is bound accepts nothing.
        let own = Standing {
            node: self.node,
            belonging: guard.belonging(),
            bound: self.cluster(),
            formed: self.has_state() || guard.formed(),
        };
        if let Some(reason) = refusal(&own, &call) {
            tracing::info!(cluster = %call.cluster, founder = %call.from, reason, "took no part in a founding");
            return Ok(Some(reason));
        }
        let (cluster, founder) = (call.cluster, call.from);
        // On a thread of its own, and with the lock: a caller that goes away can't cut it short.
        in_background(move || guard.belong(Belonging { cluster, founder: Some(founder) })).await?;
        tracing::info!(%cluster, %founder, "accepted a founding");
        Ok(None)
    }

    /// Binds this process to `belonging`, if its identity still is what it `was`; records it first if that changes
    /// it. `false` when it is not.
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
        work: impl FnOnce(&mut Identity) -> T + Send + 'static,
    ) -> T {
        let mut guard = Arc::clone(&self.identity).lock_owned().await;
        in_background(move || work(&mut guard)).await
    }

    /// Remembers where a member of this node's cluster says it is.
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
        self.shown.lock().addresses = Some(addresses);
    }

    pub(super) fn show_waiting(&self, waiting: Option<String>) {
        self.shown.lock().waiting = waiting;
    }
}

/// Runs `work` where it may block on the disk.
async fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match mc_durable::blocking(work).await {
        Ok(value) => value,
        // It can't be cancelled, so it has panicked: go on with that panic.
        Err(err) => std::panic::resume_unwind(err.into_panic()),
    }
}
