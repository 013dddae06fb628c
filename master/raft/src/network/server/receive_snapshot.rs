//! Reception of a snapshot from the leader.

use std::io;
use std::time::Duration;

use mc_durable::Aside;
use mc_log::{LogId, Raft, SnapshotMeta, TypeConfig, Vote};
use mc_proto::v1;
use openraft::alias::SnapshotOf;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse};
use tokio::time::{Instant, timeout};
use tonic::{Status, Streaming};

use super::served_node::ServedNode;
use super::status::{raft_stopped, stopped};
use crate::apply::state_machine::StateMachine;
use crate::network::wire::convert::{DISK_REFUSES, snapshot_from_wire};
use crate::snapshots::{GivenUp, Incoming, SnapshotError};

/// Time without a message after which a sender counts as gone.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) async fn next(
    inbound: &mut Streaming<v1::SnapshotPiece>,
) -> Result<Option<v1::SnapshotPiece>, Status> {
    let silent = |_| Status::deadline_exceeded(format!("no piece of the snapshot came in {PATIENCE:?}"));
    timeout(PATIENCE, inbound.message()).await.map_err(silent)?
}

/// Reason why a snapshot was not installed.
enum NotInstalled {
    /// The sender gets this node's vote in answer, which shows it whether it was deposed.
    Answered(Vote),
    Refused(Status),
}

impl From<Status> for NotInstalled {
    fn from(status: Status) -> Self {
        Self::Refused(status)
    }
}

/// Takes the snapshot and passes it to Raft. Returns this node's vote, which tells a leader of an older term that it
/// was replaced.
pub(crate) async fn receive(
    served: &ServedNode,
    header: &v1::SnapshotPiece,
    inbound: Streaming<v1::SnapshotPiece>,
) -> Result<Vote, Status> {
    let (vote, meta) = snapshot_from_wire(header).map_err(|err| Status::invalid_argument(err.to_string()))?;
    let offer = SnapshotOffer { vote, meta, bytes: header.total_bytes };
    match offer.take(served, inbound).await {
        Ok(vote) | Err(NotInstalled::Answered(vote)) => Ok(vote),
        Err(NotInstalled::Refused(status)) => Err(status),
    }
}

/// A snapshot offered by a leader.
struct SnapshotOffer {
    vote: Vote,
    meta: SnapshotMeta,
    bytes: u64,
}

impl SnapshotOffer {
    async fn take(
        self,
        served: &ServedNode,
        mut inbound: Streaming<v1::SnapshotPiece>,
    ) -> Result<Vote, NotInstalled> {
        let began = Instant::now();
        self.check(&served.raft, served.log_at_start).await?;
        let incoming = tokio::select! {
            biased;
            ended = outdated(&served.raft, self.vote) => return Err(ended),
            incoming = self.receive(served, &mut inbound) => incoming?,
        };
        // The sender is not needed any more. If it gives up on a slow machine, or its connection breaks, the work so
        // far is kept, and its next attempt is answered at once.
        let rest = tokio::spawn(self.take_over(served.raft.clone(), served.log_at_start, incoming, began));
        rest.await.map_err(|err| Status::internal(err.to_string()))?
    }

    /// Checks whether Raft would take it now.
    async fn check(
        &self,
        raft: &Raft<StateMachine>,
        log_at_start: Option<LogId>,
    ) -> Result<(), NotInstalled> {
        // Taken before the end of the log is asked for, so that nothing counts as durable that is not in the log.
        let flushed = raft.watch_log_progress().get();
        let flushed =
            flushed.filter(|flushed| flushed.vote == self.vote).and_then(|flushed| flushed.last_log_id);
        let known = raft.with_raft_state(move |state| LocalState {
            vote: *state.vote_ref(),
            committed: state.local_committed().copied(),
            log: state.log_ids.last().copied(),
            durable: flushed.max(log_at_start),
        });
        let known = known.await.map_err(|err| stopped(&err))?;
        match decide(&known, self.vote, self.meta.last_log_id) {
            OfferDecision::Take => Ok(()),
            OfferDecision::Deposed | OfferDecision::Held => Err(NotInstalled::Answered(known.vote)),
            OfferDecision::Unneeded => Err(self.unneeded(raft).await),
            OfferDecision::NotYetDurable => {
                let why = "entries of this leader beyond the snapshot have come in and are being written";
                Err(Status::unavailable(why).into())
            }
            OfferDecision::Contradicts { last, committed } => {
                let why = format!(
                    "the snapshot ends at {last}, but {committed} is committed here: the two are of different \
                     histories. One of the two masters has lost or altered data; compare their clusters and restore \
                     the wrong one"
                );
                let from = self.vote.leader_id.voted_for;
                tracing::error!("refused a snapshot from node {from}: {why}");
                Err(Status::failed_precondition(why).into())
            }
        }
    }

    /// Waits until all of the snapshot is durable here, and returns the answer that says so.
    ///
    /// The leader counts the entries that the answer confirms. If the power failed here before committed entries are on
    /// disk, this log would lose entries that the leader has counted. openraft waits for nothing when it finds a
    /// snapshot unneeded. So it is asked as the leader would ask, by an append without entries behind the snapshot: it
    /// answers that once everything before is durable.
    async fn unneeded(&self, raft: &Raft<StateMachine>) -> NotInstalled {
        let question = AppendEntriesRequest::<TypeConfig> {
            vote: self.vote,
            prev_log_id: self.meta.last_log_id,
            entries: Vec::new(),
            leader_commit: None,
        };
        match timeout(PATIENCE, raft.append_entries(question)).await {
            Ok(Ok(AppendEntriesResponse::Success | AppendEntriesResponse::PartialSuccess(_))) => {
                NotInstalled::Answered(self.vote)
            }
            Ok(Ok(AppendEntriesResponse::HigherVote(vote))) => NotInstalled::Answered(vote),
            Ok(Ok(AppendEntriesResponse::Conflict)) => {
                Status::unavailable("the last entry of the snapshot is not in this log").into()
            }
            Ok(Err(err)) => raft_stopped(err).into(),
            Err(_) => Status::unavailable("the entries of the snapshot are still being written").into(),
        }
    }

    /// Writes the received bytes to a file.
    async fn receive(
        &self,
        served: &ServedNode,
        inbound: &mut Streaming<v1::SnapshotPiece>,
    ) -> Result<Aside<Incoming>, NotInstalled> {
        let busy = |_| Status::unavailable("another snapshot is coming in");
        let permit = timeout(PATIENCE, served.snapshots.receive_permit()).await.map_err(busy)?;
        // The previous attempt may have received all of this snapshot.
        self.check(&served.raft, served.log_at_start).await?;
        let incoming = served.snapshots.receive(self.meta.clone(), self.bytes, permit);
        let mut incoming = Aside::new(incoming.map_err(|err| refused(&err))?);
        while let Some(piece) = next(inbound).await? {
            incoming = blocking(move || incoming.push(&piece.data).map(|()| incoming)).await?;
        }
        Ok(incoming)
    }

    /// Reads back and decodes the received file, and has Raft install it.
    async fn take_over(
        self,
        raft: Raft<StateMachine>,
        log_at_start: Option<LogId>,
        incoming: Aside<Incoming>,
        began: Instant,
    ) -> Result<Vote, NotInstalled> {
        let given_up = GivenUp::default();
        let decoded = blocking({
            let given_up = given_up.clone();
            move || incoming.into_inner().finish(&given_up)
        });
        let snapshot = tokio::select! {
            biased;
            ended = outdated(&raft, self.vote) => {
                given_up.set();
                return Err(ended);
            }
            snapshot = decoded => snapshot?,
        };
        // Entries may have been committed meanwhile.
        self.check(&raft, log_at_start).await?;

        let Self { vote, meta, bytes } = self;
        let index = meta.last_log_id.map_or(0, |last| last.index);
        let snapshot = SnapshotOf::<TypeConfig, _> { meta, snapshot };
        let reply = raft.install_full_snapshot(vote, snapshot).await.map_err(|err| stopped(&err))?;
        let ms = began.elapsed().as_millis();
        tracing::info!(
            index,
            bytes,
            ms,
            "took a snapshot from the leader, whose log no longer has the entries that this master lacked"
        );
        Ok(reply.vote)
    }
}

/// Waits until this node knows of a vote above `vote`, or has stopped. The sending leader is then deposed, and may
/// never send another message. The next leader may wait for this node, which it needs for a majority.
async fn outdated(raft: &Raft<StateMachine>, vote: Vote) -> NotInstalled {
    let mut changes = raft.server_metrics();
    loop {
        let ours = changes.borrow_and_update().vote;
        if ours > vote {
            return NotInstalled::Answered(ours);
        }
        if changes.changed().await.is_err() {
            return Status::unavailable("this master is stopping").into();
        }
    }
}

/// State of this node that a snapshot is compared with.
#[derive(Clone, Copy, Debug)]
struct LocalState {
    vote: Vote,
    committed: Option<LogId>,
    /// The last entry of its log.
    log: Option<LogId>,
    /// The last of the sender's entries, or of those from before this run, that is known to be on disk.
    durable: Option<LogId>,
}

/// Decision on a snapshot.
#[derive(Debug, PartialEq, Eq)]
enum OfferDecision {
    Take,
    /// The log has entries of the same leader beyond the snapshot, which continue from all that it holds, and they are
    /// on disk. The sender does not know that. This node answers that it has all of the snapshot, and the sender
    /// continues with the entries after it.
    ///
    /// The snapshot can't be installed, because openraft asserts that what is written in one leader's name does not
    /// go back. The leader can't be left to wait either: it may have no newer snapshot for a long time, and sends no
    /// entries before it knows that this one is here.
    Held,
    /// The same, but the entries are not known to be on disk yet. If a leader counted them and the power failed here,
    /// it would find a log that went back.
    NotYetDurable,
    /// The sender was deposed.
    Deposed,
    /// The snapshot is not needed: everything in it is committed here.
    Unneeded,
    /// The snapshot has another entry than this node at a committed index. openraft asserts that there is no such
    /// snapshot.
    Contradicts {
        last: LogId,
        committed: LogId,
    },
}

fn decide(known: &LocalState, vote: Vote, last: Option<LogId>) -> OfferDecision {
    if known.vote > vote {
        return OfferDecision::Deposed;
    }
    if last <= known.committed {
        return OfferDecision::Unneeded;
    }
    let is_of_sender = |log: &LogId| log.committed_leader_id().term == vote.leader_id.term;
    if known.log > last && known.log.as_ref().is_some_and(is_of_sender) {
        // An entry of the sender stays in the log until a later leader cuts it off. The vote of such a leader would
        // be known here.
        let durable = known.durable >= last && known.durable.as_ref().is_some_and(is_of_sender);
        return if durable { OfferDecision::Held } else { OfferDecision::NotYetDurable };
    }
    match (last, known.committed) {
        (Some(last), Some(committed)) if last.index <= committed.index => {
            OfferDecision::Contradicts { last, committed }
        }
        _ => OfferDecision::Take,
    }
}

fn refused(err: &SnapshotError) -> Status {
    tracing::warn!("a snapshot from the leader was not taken: {err}");
    match err {
        SnapshotError::Io { .. } | SnapshotError::NoRoom { .. } => Status::new(DISK_REFUSES, err.to_string()),
        _ => Status::unavailable(err.to_string()),
    }
}

async fn blocking<R: Send + 'static>(
    work: impl FnOnce() -> Result<R, SnapshotError> + Send + 'static,
) -> Result<R, Status> {
    match mc_durable::blocking(work).await {
        Ok(result) => result.map_err(|err| refused(&err)),
        Err(err) => Err(Status::internal(io::Error::other(err).to_string())),
    }
}

#[cfg(test)]
mod tests {
    use mc_types::NodeId;

    use super::*;
    use crate::snapshots::Defect;

    #[test]
    fn a_snapshot_is_taken_where_it_goes_on_from_what_is_committed() {
        let id = |(term, index)| LogId::new_term_index(term, index);
        let ours = Vote::new_committed(5, NodeId(1));
        let judged =
            |committed: Option<(u64, u64)>, log: Option<(u64, u64)>, term, last: Option<(u64, u64)>| {
                let known =
                    LocalState { vote: ours, committed: committed.map(id), log: log.map(id), durable: None };
                decide(&known, Vote::new_committed(term, NodeId(1)), last.map(id))
            };
        for (durable, verdict) in [
            (None, OfferDecision::NotYetDurable),
            (Some((5, 9)), OfferDecision::NotYetDurable),
            (Some((4, 99)), OfferDecision::NotYetDurable),
            (Some((5, 10)), OfferDecision::Held),
            (Some((5, 12)), OfferDecision::Held),
        ] {
            let (log, durable) = (Some(id((5, 12))), durable.map(id));
            let known = LocalState { vote: ours, committed: Some(id((3, 9))), log, durable };
            assert_eq!(decide(&known, ours, Some(id((5, 10)))), verdict, "{durable:?}");
        }
        let verdict = |committed, term, last| judged(committed, committed, term, last);
        assert_eq!(judged(Some((3, 9)), Some((5, 12)), 5, Some((5, 10))), OfferDecision::NotYetDurable);
        assert_eq!(judged(Some((3, 9)), Some((5, 12)), 5, Some((3, 10))), OfferDecision::NotYetDurable);
        assert_eq!(judged(Some((3, 9)), Some((5, 10)), 5, Some((5, 10))), OfferDecision::Take);
        assert_eq!(
            judged(Some((3, 9)), Some((4, 12)), 5, Some((4, 10))),
            OfferDecision::Take,
            "of an earlier leader"
        );
        assert_eq!(
            judged(Some((3, 9)), Some((5, 12)), 6, Some((5, 10))),
            OfferDecision::Take,
            "of an earlier leader"
        );
        assert_eq!(verdict(None, 5, Some((3, 10))), OfferDecision::Take);
        assert_eq!(verdict(Some((3, 9)), 5, Some((3, 10))), OfferDecision::Take);
        assert_eq!(verdict(Some((3, 9)), 6, Some((4, 10))), OfferDecision::Take);

        assert_eq!(verdict(None, 4, Some((3, 10))), OfferDecision::Deposed);
        assert_eq!(verdict(Some((3, 10)), 5, Some((3, 10))), OfferDecision::Unneeded);
        assert_eq!(verdict(Some((3, 10)), 5, Some((2, 11))), OfferDecision::Unneeded, "as Raft orders them");
        assert_eq!(verdict(None, 5, None), OfferDecision::Unneeded, "it is empty");

        for index in [9, 10] {
            let (last, committed) = (id((4, index)), id((3, 10)));
            assert_eq!(
                verdict(Some((3, 10)), 5, Some((4, index))),
                OfferDecision::Contradicts { last, committed }
            );
        }
    }

    #[test]
    fn a_sender_can_tell_a_disk_that_refuses_from_a_bad_transfer() {
        let full = SnapshotError::NoRoom { dir: "/data/snapshots".into(), free: 1, needed: 2 };
        let failed = SnapshotError::Io {
            what: "sync",
            path: "/data/snapshots/a.partial".into(),
            source: io::ErrorKind::StorageFull.into(),
        };
        assert_eq!([&full, &failed].map(|err| refused(err).code()), [DISK_REFUSES; 2]);
        assert_ne!(refused(&SnapshotError::NotAsSent(Defect::Checksum)).code(), DISK_REFUSES);
    }
}
