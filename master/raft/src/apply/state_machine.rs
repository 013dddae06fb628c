use std::io;
use std::time::Instant;

use futures::{Stream, StreamExt};
use mc_index::{AuditedCall, AuditedResult, CLUSTER_VERSION, Command, Op, Response, bound};
use mc_log::{Entry, EntryPayload, LogId, Proposal, SnapshotMeta, StoredMembership, TypeConfig};
use metrics::Histogram;
use openraft::alias::{EntryPayloadOf, SnapshotOf};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use parking_lot::RwLockWriteGuard;

use super::audit::{AuditSink, AuditedEntry};
use super::index::{Applied, SharedIndex};
use crate::snapshots::{Installed, SnapshotFile, SnapshotStore};

/// Maximum number of entries, and of bytes of their commands, that are applied while readers wait; at least one entry.
const ENTRIES_PER_HOLD: usize = 64;
const BYTES_PER_HOLD: usize = 64 << 10;
/// Maximum number of entries that are applied on Raft's own thread. Each may end a thousand due puts and free as many
/// ranges, however small it is.
const ENTRIES_AT_ONCE: usize = 8;

/// openraft's state machine: applies commands to the index, builds and installs snapshots.
#[derive(Clone, Debug)]
pub struct StateMachine {
    index: SharedIndex,
    snapshots: SnapshotStore,
    apply_seconds: Histogram,
    audit: AuditSink,
}

impl StateMachine {
    pub(crate) fn new(
        index: SharedIndex,
        snapshots: SnapshotStore,
        apply_seconds: Histogram,
        audit: AuditSink,
    ) -> Self {
        Self { index, snapshots, apply_seconds, audit }
    }

    /// Applies entries whose commands have `bytes` bytes, if they are few and the lock is free. Gives them back
    /// otherwise.
    fn apply_at_once(&self, ready: Vec<PreparedEntry>, bytes: usize) -> Result<(), Vec<PreparedEntry>> {
        if ready.len() > bound(ENTRIES_AT_ONCE, 1) || bytes > BYTES_PER_HOLD {
            return Err(ready);
        }
        let Some(applied) = self.index.try_write() else { return Err(ready) };
        self.apply_some(applied, ready);
        Ok(())
    }

    /// Applies some entries under one hold of the lock, then answers their callers.
    fn apply_some(&self, applied: RwLockWriteGuard<'_, Applied>, ready: Vec<PreparedEntry>) {
        let (mut answers, mut audited) = (Vec::with_capacity(ready.len()), Vec::new());
        let began = Instant::now();
        self.index.change_locked(applied, |applied| {
            for (log_id, step, responder) in ready {
                let response = match step {
                    Prepared::Nothing => Response::Done,
                    Prepared::Command(command, call) => {
                        let response = applied.state.apply(log_id.index, log_id.leader_id.term, &command);
                        self.index.record(&command, &response);
                        audited.extend(call.map(|call| AuditedEntry {
                            place: (log_id.leader_id.term, log_id.index),
                            call,
                            result: AuditedResult::of(&command.op, &response),
                        }));
                        response
                    }
                    Prepared::Membership(membership) => {
                        applied.membership = membership;
                        Response::Done
                    }
                };
                applied.last_applied = Some(log_id);
                answers.extend(responder.map(|responder| (responder, response)));
            }
        });
        self.apply_seconds.record(began.elapsed().as_secs_f64());
        for entry in audited {
            self.audit.take(entry);
        }
        for (responder, response) in answers {
            responder.send(response);
        }
    }
}

type Responder = Option<openraft::storage::ApplyResponder<TypeConfig>>;

/// An entry made ready outside the lock, and who waits for its answer.
type PreparedEntry = (LogId, Prepared, Responder);

enum Prepared {
    Nothing,
    Command(Command, Option<AuditedCall>),
    Membership(StoredMembership),
}

fn prepare(log_id: LogId, payload: EntryPayloadOf<TypeConfig>) -> io::Result<Prepared> {
    match payload {
        EntryPayload::Blank => Ok(Prepared::Nothing),
        EntryPayload::Membership(membership) => {
            Ok(Prepared::Membership(StoredMembership::new(Some(log_id), membership)))
        }
        EntryPayload::Normal(Proposal(bytes)) => match Command::decode_with_call(&bytes) {
            Ok((Command { op: Op::SetClusterVersion(version), .. }, _)) if version > CLUSTER_VERSION => {
                Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!(
                        "the cluster runs as version {version} from log entry {log_id} on, this build supports \
                         {CLUSTER_VERSION}: start a newer build with this data directory"
                    ),
                ))
            }
            Ok((command, call)) => Ok(Prepared::Command(command, call)),
            Err(err) => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("cannot apply log entry {log_id}, which is committed and must not be skipped: {err}"),
            )),
        },
    }
}

/// Bytes of the command in an entry.
fn command_bytes(entry: &Entry) -> usize {
    match &entry.payload {
        EntryPayload::Normal(Proposal(bytes)) => bytes.len(),
        EntryPayload::Blank | EntryPayload::Membership(_) => 0,
    }
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        Ok(self.index.read(|applied| (applied.last_applied, applied.membership.clone())))
    }

    /// An entry that cannot be decoded stops the node: it was committed by a newer build, and a replica that skipped
    /// it would answer differently from the others ever after. Entries before it are applied and answered.
    ///
    /// This task shares its thread with heartbeats, votes and the Raft port, and readers may hold the lock for long: a
    /// leader that waited for a reader here would be voted out. So if the lock is not free, or there is much to apply,
    /// another thread does it. Entries are decoded here either way: one has at most 1 MiB. openraft calls nothing else
    /// of this machine before this returns, so entries are applied in order, and one at a time.
    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + Send,
    {
        let mut end = None;
        while end.is_none() {
            let (mut ready, mut bytes) = (Vec::new(), 0);
            while ready.len() < bound(ENTRIES_PER_HOLD, 2) && bytes < BYTES_PER_HOLD {
                let prepared = match entries.next().await {
                    Some(Ok((entry, responder))) => {
                        bytes += command_bytes(&entry);
                        prepare(entry.log_id, entry.payload).map(|step| (entry.log_id, step, responder))
                    }
                    Some(Err(err)) => Err(err),
                    None => {
                        end = Some(Ok(()));
                        break;
                    }
                };
                match prepared {
                    Ok(entry) => ready.push(entry),
                    Err(err) => {
                        end = Some(Err(err));
                        break;
                    }
                }
            }
            if ready.is_empty() {
                break;
            }
            if let Err(ready) = self.apply_at_once(ready, bytes) {
                let machine = self.clone();
                blocking(move || {
                    machine.apply_some(machine.index.write(), ready);
                    Ok(())
                })
                .await?;
            }
            if end.is_none() {
                // Yield, so that the thread can do other work between two holds.
                tokio::task::yield_now().await;
            }
        }
        end.unwrap_or(Ok(()))
    }

    async fn get_snapshot_builder(&mut self) -> Self::SnapshotBuilder {
        // openraft asks between two batches of entries, and nothing else writes: this is one moment of the index, and
        // the lock is free of writers.
        SnapshotBuilder { applied: Some(self.index.read(Clone::clone)), snapshots: self.snapshots.clone() }
    }

    /// Installs a received snapshot, quickly whatever its size. openraft grants no vote until this returns: purging the
    /// log waits for it, and everything else waits for the purge. See `raft::snapshots`.
    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: SnapshotFile,
    ) -> Result<(), io::Error> {
        let Self { index, snapshots, .. } = self.clone();
        let meta = meta.clone();
        let (replaced, permit, snapshots) = blocking(move || {
            let Installed { state, permit } = snapshots.install(&meta, &snapshot)?;
            let applied =
                Applied { state, last_applied: meta.last_log_id, membership: meta.last_membership.clone() };
            let replaced = index.change(|current| std::mem::replace(current, applied));
            index.record_gap();
            Ok((replaced, permit, snapshots))
        })
        .await?;
        // Raft waits for this call. Freeing a large index takes its time, as does deleting a large file.
        mc_durable::aside(move || {
            drop(replaced);
            snapshots.delete_old();
            drop(permit);
        });
        Ok(())
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> Result<Option<SnapshotOf<TypeConfig, SnapshotFile>>, io::Error> {
        Ok(self.snapshots.current().map(|(meta, snapshot)| SnapshotOf::<TypeConfig, _> { meta, snapshot }))
    }
}

/// Writes one moment of the index to disk, while the index goes on.
#[derive(Debug)]
pub struct SnapshotBuilder {
    applied: Option<Applied>,
    snapshots: SnapshotStore,
}

impl RaftSnapshotBuilder<TypeConfig> for SnapshotBuilder {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> Result<SnapshotOf<TypeConfig, SnapshotFile>, io::Error> {
        let Some(applied) = self.applied.take() else {
            return Err(io::Error::other("this snapshot was built already"));
        };
        let snapshots = self.snapshots.clone();
        blocking(move || {
            let meta =
                SnapshotMeta { last_log_id: applied.last_applied, last_membership: applied.membership };
            let (meta, snapshot) = match snapshots.write(&meta, &applied.state) {
                Ok(built) => built,
                // Nothing is purged on the strength of the older one, or of none, so a full disk costs log space, not
                // the master.
                Err(err) => {
                    tracing::error!("snapshot not taken, the log keeps growing until one is: {err}");
                    match snapshots.current() {
                        Some(older) => older,
                        None => (SnapshotMeta::default(), SnapshotFile::none()?),
                    }
                }
            };
            Ok(SnapshotOf::<TypeConfig, _> { meta, snapshot })
        })
        .await
    }
}

async fn blocking<R: Send + 'static>(work: impl FnOnce() -> io::Result<R> + Send + 'static) -> io::Result<R> {
    mc_durable::blocking(work).await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshots::SnapshotStore;
    use mc_index::{Settings, Stamp, State};
    use mc_types::ClusterId;

    /// Readers of the index wait for one hold, and never for a whole range of entries.
    #[tokio::test]
    async fn a_long_range_of_entries_is_applied_in_holds_of_a_few() {
        const ENTRIES: u64 = 10 * ENTRIES_PER_HOLD as u64;
        let dir = tempfile::tempdir().unwrap();
        let (snapshots, _) = SnapshotStore::open(dir.path(), ClusterId(5)).unwrap();
        let index = SharedIndex::new(Applied {
            state: State::new(Settings::default()),
            last_applied: None,
            membership: StoredMembership::default(),
        });
        let applied = index.clone();
        let entries = futures::stream::iter(1..=ENTRIES).map(move |at| {
            let before = applied.read(|applied| applied.last_applied.map_or(0, |last| last.index));
            assert!(at - before <= ENTRIES_PER_HOLD as u64, "entry {at} waits with those from {before} on");
            Ok((Entry { log_id: LogId::new_term_index(1, at), payload: EntryPayload::Blank }, None))
        });
        let mut machine =
            StateMachine::new(index.clone(), snapshots, Histogram::noop(), AuditSink::new(drop));
        machine.apply(entries).await.unwrap();
        assert_eq!(index.read(|applied| applied.last_applied.unwrap().index), ENTRIES);
    }

    #[test]
    fn a_cluster_version_that_this_build_does_not_support_stops_it() {
        let entry = |version| {
            let command = Command { stamp: Stamp::default(), op: Op::SetClusterVersion(version) };
            prepare(LogId::new_term_index(2, 9), EntryPayload::Normal(Proposal(command.encode())))
        };
        assert!(entry(CLUSTER_VERSION).is_ok());
        let why = entry(CLUSTER_VERSION + 1).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(why.contains("start a newer build"), "{why}");
    }
}
