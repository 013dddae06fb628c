//! Transfer of a snapshot to another master, piece by piece.

use std::future::Future;
use std::io;
use std::time::Duration;

use mc_index::bound;
use mc_log::{TypeConfig, Vote, encode_membership};
use mc_proto::v1::{self, raft_client::RaftClient};
use openraft::StorageError;
use openraft::alias::{ErrorSourceOf, SnapshotOf};
use openraft::errors::{ErrorSource, ReplicationClosed, StreamingError};
use openraft::network::RPCTypes;
use openraft::raft::SnapshotResponse;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::route::Route;
use crate::network::wire::convert::{DISK_REFUSES, VoteKind, log_id_to_wire, vote_from_wire, vote_to_wire};
use crate::snapshots::SnapshotFile;

/// Bytes of one message: few compared with the windows of a connection, many compared with its overhead.
const PIECE: usize = 256 << 10;

/// Lowest assumed rate, in bytes a second, at which a receiver reads back and decodes a snapshot. 10 M objects, 1.4
/// GB, took 21 s on a slow machine (measured), which is four times as fast.
const SLOWEST_INSTALL: u64 = 16 << 20;

/// Pause before a receiver whose disk refuses is asked again. Nobody makes room within a moment, and it logs the reason
/// each time.
const WHILE_REFUSED: Duration = Duration::from_secs(5);

/// Sends `snapshot` and waits until it is installed. Only progress has a deadline, not the whole: each piece must be
/// taken within `patience`, and the last one be answered within that and the time that so many bytes may take.
pub(crate) async fn send(
    route: &Route,
    mut client: RaftClient<Channel>,
    envelope: v1::Envelope,
    vote: &Vote,
    snapshot: SnapshotOf<TypeConfig, SnapshotFile>,
    cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
    patience: Duration,
) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
    let total_bytes = snapshot.snapshot.len();
    let header = v1::SnapshotPiece {
        envelope: Some(envelope),
        vote: Some(vote_to_wire(vote)),
        last_log_id: snapshot.meta.last_log_id.as_ref().map(log_id_to_wire),
        membership: encode_membership(&snapshot.meta.last_membership),
        total_bytes,
        data: bytes::Bytes::new(),
    };
    let (pieces, outbound) = mpsc::channel(2);
    let call = client.install_snapshot(ReceiverStream::new(outbound));
    let feed = feed(snapshot.snapshot, header, pieces, patience);
    tokio::pin!(call, feed, cancel);

    // An answer before the end is a refusal, or names a newer leader.
    let early = tokio::select! {
        answer = &mut call => Some(answer),
        fed = &mut feed => {
            match fed {
                Ok(()) => {}
                Err(Stopped::Stalled) => return Err(route.timeout(RPCTypes::InstallSnapshot, patience).into()),
                Err(Stopped::Disk(err)) => {
                    let source = ErrorSourceOf::<TypeConfig>::from_error(&err);
                    return Err(StorageError::read_snapshot(None, source).into());
                }
            }
            None
        }
        closed = &mut cancel => return Err(closed.into()),
    };
    let answer = match early {
        Some(answer) => answer,
        None => {
            let patience = install_patience(patience, total_bytes);
            tokio::select! {
                answer = timeout(patience, &mut call) => {
                    answer.map_err(|_| route.timeout(RPCTypes::InstallSnapshot, patience))?
                }
                closed = &mut cancel => return Err(closed.into()),
            }
        }
    };
    if answer.as_ref().is_err_and(will_last) {
        tokio::select! {
            () = sleep(WHILE_REFUSED) => {}
            closed = &mut cancel => return Err(closed.into()),
        }
    }
    let reply = answer.map_err(|status| route.failed(&status))?.into_inner();
    let vote = vote_from_wire(reply.vote.as_ref(), VoteKind::Any).map_err(|err| route.nonsense(&err))?;
    Ok(SnapshotResponse::new(vote))
}

/// Whether a refusal will be repeated for a while: the receiver's disk has no room, or its committed entries
/// contradict the snapshot.
fn will_last(status: &Status) -> bool {
    matches!(status.code(), DISK_REFUSES | Code::FailedPrecondition)
}

/// Returns the time limit of the answer to the last piece.
fn install_patience(patience: Duration, total_bytes: u64) -> Duration {
    patience + Duration::from_secs(total_bytes.div_ceil(SLOWEST_INSTALL))
}

enum Stopped {
    Stalled,
    Disk(io::Error),
}

async fn feed(
    snapshot: SnapshotFile,
    header: v1::SnapshotPiece,
    pieces: mpsc::Sender<v1::SnapshotPiece>,
    patience: Duration,
) -> Result<(), Stopped> {
    let (mut next, mut offset) = (header, 0);
    loop {
        match timeout(patience, pieces.send(next)).await {
            Err(_) => return Err(Stopped::Stalled),
            // The call has ended: its answer says why.
            Ok(Err(_)) => return Ok(()),
            Ok(Ok(())) => {}
        }
        let file = snapshot.clone();
        let data = mc_durable::blocking(move || file.read_piece(offset, bound(PIECE, 500)))
            .await
            .unwrap_or_else(|err| Err(io::Error::other(err)))
            .map_err(Stopped::Disk)?;
        if data.is_empty() {
            return Ok(());
        }
        offset += data.len() as u64;
        next = v1::SnapshotPiece { data, ..v1::SnapshotPiece::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_larger_snapshot_is_given_longer_to_be_installed() {
        let seconds = |bytes| install_patience(Duration::from_secs(30), bytes).as_secs();
        assert_eq!([0, 1, 16 << 20, (16 << 20) + 1].map(seconds), [30, 31, 31, 32]);
        // 10 M objects.
        assert_eq!(seconds(1_400_000_000), 114);
        assert!(seconds(u64::MAX) > 30, "it does not overflow");
    }
}
