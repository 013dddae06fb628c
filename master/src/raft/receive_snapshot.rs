//! A snapshot coming in from the leader.

use std::io;
use std::time::Duration;

use mc_proto::v1;
use openraft::alias::SnapshotOf;
use openraft::async_runtime::watch::WatchReceiver;
use tokio::time::{Instant, timeout};
use tonic::{Status, Streaming};

use super::convert::snapshot_from_wire;
use super::send_snapshot::DISK_REFUSES;
use super::service::{Attached, stopped};
use super::snapshots::{Incoming, SnapshotError, SnapshotFile};
use super::{Machine, Raft, TypeConfig, Vote};

/// A sender that is silent for so long has gone.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) async fn next(
    inbound: &mut Streaming<v1::SnapshotPiece>,
) -> Result<Option<v1::SnapshotPiece>, Status> {
    let silent = |_| Status::deadline_exceeded(format!("no piece of the snapshot came in {PATIENCE:?}"));
    timeout(PATIENCE, inbound.message()).await.map_err(silent)?
}

/// Writes the snapshot to disk, verifies it and hands it to Raft. Returns the vote of this node, which tells a leader
/// of an older term that it was replaced.
pub(super) async fn receive(
    attached: &Attached,
    header: &v1::SnapshotPiece,
    mut inbound: Streaming<v1::SnapshotPiece>,
) -> Result<Vote, Status> {
    let (vote, meta) = snapshot_from_wire(header).map_err(|err| Status::invalid_argument(err.to_string()))?;
    // Raft checks the vote again; this saves a deposed leader, and us, the transfer.
    let ours = attached.raft.metrics().borrow_watched().vote;
    if ours > vote {
        return Ok(ours);
    }
    let Ok(_receiving) = attached.receiving.try_lock() else {
        return Err(Status::unavailable("another snapshot is coming in"));
    };

    let begun = Instant::now();
    let incoming =
        attached.snapshots.receive(meta.clone(), header.total_bytes).map_err(|err| refused(&err))?;
    let snapshot = tokio::select! {
        biased;
        ours = newer_vote(&attached.raft, vote) => return Ok(ours),
        snapshot = write(incoming, &mut inbound) => snapshot?,
    };

    let (index, bytes) = (meta.last_log_id.map_or(0, |last| last.index), header.total_bytes);
    let snapshot = SnapshotOf::<TypeConfig, _> { meta, snapshot };
    let reply = attached.raft.install_full_snapshot(vote, snapshot).await.map_err(|err| stopped(&err))?;
    let ms = begun.elapsed().as_millis();
    tracing::info!(
        index,
        bytes,
        ms,
        "took a snapshot from the leader: what it lacked is not in the log any more"
    );
    Ok(reply.vote)
}

/// Writes what comes in, to the verified file.
async fn write(
    mut incoming: Incoming,
    inbound: &mut Streaming<v1::SnapshotPiece>,
) -> Result<SnapshotFile, Status> {
    while let Some(piece) = next(inbound).await? {
        incoming = blocking(move || incoming.push(&piece.data).map(|()| incoming)).await?;
    }
    blocking(move || incoming.finish()).await
}

/// Waits until this node knows of a vote above `vote`. The leader that sends has lost its place then, may be gone without
/// a word, and the next one is waiting to send: this node may be what it lacks for a majority.
async fn newer_vote(raft: &Raft<Machine>, vote: Vote) -> Vote {
    let mut changes = raft.server_metrics();
    loop {
        let ours = changes.borrow_and_update().vote;
        if ours > vote {
            return ours;
        }
        if changes.changed().await.is_err() {
            return std::future::pending().await;
        }
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
    match mc_base::blocking(work).await {
        Ok(result) => result.map_err(|err| refused(&err)),
        Err(err) => Err(Status::internal(io::Error::other(err).to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::Defect;

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
