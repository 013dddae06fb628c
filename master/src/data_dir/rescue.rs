//! Rescue of one survivor: turns the data directory of a master whose cluster lost its majority for good into a cluster
//! of one.
//!
//! The survivor keeps all that it has. It may lack entries that the others acknowledged, and it may hold entries that
//! nobody acknowledged. Should the others come back, the new cluster id keeps them apart for ever: every Raft call
//! names the cluster that it is meant for.
//!
//! # If the process dies at any of these steps
//!
//! 1. The new identity, log and snapshot are made in `rescue.partial`. The next attempt deletes that directory and
//!    makes it again; a master that starts ignores it.
//! 2. `rescue.partial` is renamed `rescue`, which decides the rescue. While a directory `rescue` exists, no master
//!    starts, and the next attempt continues below.
//! 3. Part by part, the old data is moved to the backup and the new part is moved from `rescue` into its place. The
//!    identity comes last, since it names the backup. A part that is still in `rescue` has not been replaced.
//! 4. The empty `rescue` is removed.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use mc_durable::{DirectoryLock, DurableError, durable_rename, sync_dir};
use mc_index::{CLUSTER_VERSION, Command, Op, RESCUE_GAP, Settings, Stamp, State};
use mc_log::{
    EntryPayload, LogId, LogOptions, LogStore, MasterNode, Membership, OpenError, OpenLog, Proposal,
    RaftLogReader as _, RaftLogStorage as _, SnapshotMeta, StoredMembership, Vote,
};
use mc_raft::{SnapshotError, SnapshotStore, conflicts_with_snapshot};
use mc_types::{ClusterId, NodeId};

use super::identity::{Belonging, IdentityError, IdentityFile};

const PARTIAL: &str = "rescue.partial";
const DECIDED: &str = "rescue";
/// Parts of a data directory, in the order in which they are replaced.
const PARTS: [&str; 3] = ["log", "snapshots", "identity"];
/// Milliseconds (one day) by which the new cluster's time starts ahead of the survivor's. Stores have heard the time of
/// the lost masters, which went on while the survivor was down.
const TIME_GAP: u64 = 24 * 3600 * 1000;
/// Log entries read in one batch.
const READ_ENTRIES: u64 = 1_000;

/// Why a data directory cannot be rescued.
#[derive(Debug, thiserror::Error)]
pub enum RescueError {
    /// The directory holds no master that was part of a cluster.
    #[error("{dir} holds no master that was part of a cluster: name the data directory of the survivor", dir = dir.display())]
    NoMaster {
        /// The directory.
        dir: PathBuf,
    },
    /// The data directory cannot be locked or written.
    #[error(transparent)]
    DataDir(#[from] DurableError),
    /// The identity in the directory cannot be read or written.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The log in the directory cannot be opened.
    #[error(transparent)]
    Log(#[from] OpenError),
    /// The snapshots in the directory cannot be read or written.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// An entry of the log cannot be read.
    #[error("log entry {index} cannot be read: {why}")]
    Entry {
        /// Log index of the entry.
        index: u64,
        /// Why it cannot be read.
        why: String,
    },
    /// A file operation failed.
    #[error("cannot {what} {path}: {source}", path = path.display())]
    Io {
        /// The attempted step.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RescueError {
    let path = path.to_owned();
    move |source| RescueError::Io { what, path, source }
}

/// Whether a rescue of this data directory was decided but not finished. No master may start from it then.
pub(crate) fn is_unfinished(dir: &Path) -> bool {
    dir.join(DECIDED).exists()
}

/// A survivor's data, read and not changed yet.
#[derive(Debug)]
pub struct Rescue {
    dir: DirectoryLock,
    logs: Arc<dyn OpenLog>,
    node: NodeId,
    cluster: ClusterId,
    own: MasterNode,
    vote: Option<Vote>,
    last: LogId,
    state: State,
}

/// Result of a rescue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rescued {
    /// Id of the new cluster.
    pub cluster: ClusterId,
    /// Directory that holds the old data.
    pub backup: PathBuf,
}

/// State in which [`Rescue::prepare`] found a data directory.
#[derive(Debug)]
pub enum Prepared {
    /// A survivor that can be rescued. Nothing is changed yet.
    Survivor(Box<Rescue>),
    /// An interrupted rescue, which `prepare` has finished.
    Finished(Rescued),
}

impl Rescue {
    /// Reads the data directory of a master that is not running, whose log is one of `logs`. If a decided rescue was
    /// interrupted, finishes it instead.
    ///
    /// # Errors
    /// [`RescueError`]: nothing has been changed, unless an interrupted rescue was being finished.
    pub async fn prepare(dir: &Path, logs: Arc<dyn OpenLog>) -> Result<Prepared, RescueError> {
        // Checked before locking, which would create a directory under a mistyped name.
        let identity = dir.join("identity");
        let is_there = identity.try_exists().map_err(failed("look for", &identity))?;
        if !is_there && !is_unfinished(dir) {
            return Err(RescueError::NoMaster { dir: dir.to_owned() });
        }
        let lock = DirectoryLock::acquire(dir)?;
        if is_unfinished(dir) {
            return finish(dir).map(Prepared::Finished);
        }
        let identity = IdentityFile::open(&lock)?;
        let Some(Belonging { cluster, .. }) = identity.belonging().filter(|_| identity.formed()) else {
            return Err(RescueError::NoMaster { dir: dir.to_owned() });
        };
        let node = identity.node();
        let (_, mut recovered) = SnapshotStore::open(&dir.join("snapshots"), cluster)?;
        let (mut log, found) = logs.open(&dir.join("log"), LogOptions::default()).await?;
        let read = async {
            recovered.check_log(found.purged.as_ref())?;
            read(&mut log, recovered.snapshot.take(), found.last).await
        };
        let read = read.await;
        log.close().await;
        let Read { state, last, membership } = read?;
        let (Some(last), Some(own)) =
            (last, membership.and_then(|it| it.membership().get_node(&node).cloned()))
        else {
            return Err(RescueError::NoMaster { dir: dir.to_owned() });
        };
        Ok(Prepared::Survivor(Box::new(Self {
            dir: lock,
            logs,
            node,
            cluster,
            own,
            vote: found.vote,
            last,
            state,
        })))
    }

    /// Node id of the survivor.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The cluster that the survivor was part of.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Number of objects in its index.
    #[must_use]
    pub fn keys(&self) -> u64 {
        self.state.objects()
    }

    /// Index of the last entry in its log.
    #[must_use]
    pub fn last_index(&self) -> u64 {
        self.last.index
    }

    /// Turns the data directory into a cluster of one, in the steps that the module docs list.
    ///
    /// # Errors
    /// [`RescueError`]: call [`Self::prepare`] again, then repeat this.
    pub async fn carry_out(self) -> Result<Rescued, RescueError> {
        let dir = self.dir.path();
        let partial = dir.join(PARTIAL);
        if partial.exists() {
            fs::remove_dir_all(&partial).map_err(failed("delete", &partial))?;
        }
        let cluster = ClusterId::random();
        self.write(&partial, cluster).await?;
        durable_rename(&partial, &dir.join(DECIDED))?;
        finish(dir)
    }

    /// Writes the new identity, log and snapshot into `to`.
    async fn write(&self, to: &Path, cluster: ClusterId) -> Result<(), RescueError> {
        let mut last = self.last;
        last.index += RESCUE_GAP;
        let mut state = self.state.clone();
        let gap = std::time::Duration::from_millis(TIME_GAP);
        let now = state.time().after(gap);
        state.delay_soft_pins(gap);
        let stamp = Stamp { now, term: last.leader_id.term, ..Stamp::default() };
        state.apply(last.index, last.leader_id.term, &Command { stamp, op: Op::Tick });
        let lock = DirectoryLock::acquire(to)?;
        let alone = BTreeSet::from([self.node]);
        let nodes = std::collections::BTreeMap::from([(self.node, self.own.clone())]);
        let membership = Membership::new(vec![alone], nodes)
            .map_err(|err| RescueError::Entry { index: self.last.index, why: err.to_string() })?;
        let meta = SnapshotMeta {
            last_log_id: Some(last),
            last_membership: StoredMembership::new(Some(last), membership),
        };
        let (snapshots, _) = SnapshotStore::open(&to.join("snapshots"), cluster)?;
        snapshots.write(&meta, &state)?;

        let (mut log, _) = self.logs.open(&to.join("log"), LogOptions::default()).await?;
        let filled = async {
            if let Some(vote) = &self.vote {
                log.save_vote(vote).await?;
            }
            log.purge(last).await
        };
        let filled = filled.await.map_err(failed("write the log in", to));
        log.close().await;
        filled?;

        IdentityFile::create(&lock, self.node, Belonging { cluster, founder: Some(self.node) })?;
        Ok(sync_dir(to)?)
    }
}

struct Read {
    state: State,
    last: Option<LogId>,
    membership: Option<StoredMembership>,
}

/// Returns the indexes of the log entries that go on from a snapshot up to `covered`, in a log that ends at `last`.
///
/// There are none in a log that the snapshot has overruled: the master died while it installed the snapshot, before the
/// entries of an earlier leader were removed. The cluster never committed them.
fn beyond(covered: Option<LogId>, last: Option<LogId>) -> Range<u64> {
    let next = covered.map_or(0, |covered| covered.index + 1);
    match (last, covered) {
        (Some(last), Some(covered)) if conflicts_with_snapshot(last, covered) => next..next,
        _ => next..last.map_or(0, |last| last.index + 1),
    }
}

/// Reads the snapshot and applies every log entry that goes on from it.
async fn read(
    log: &mut LogStore,
    snapshot: Option<(SnapshotMeta, State)>,
    last: Option<LogId>,
) -> Result<Read, RescueError> {
    let mut read = match snapshot {
        Some((meta, state)) => Read { state, last: meta.last_log_id, membership: Some(meta.last_membership) },
        None => Read { state: State::new(Settings::default()), last: None, membership: None },
    };
    let Range { start: mut next, end } = beyond(read.last, last);
    let mut reader = log.get_log_reader().await;
    while next < end {
        let upto = end.min(next + READ_ENTRIES);
        let bad = |index: u64, why: String| RescueError::Entry { index, why };
        let entries =
            reader.try_get_log_entries(next..upto).await.map_err(|err| bad(next, err.to_string()))?;
        if entries.is_empty() {
            return Err(bad(next, "it is missing".into()));
        }
        for entry in entries {
            let id = entry.log_id;
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Membership(membership) => {
                    read.membership = Some(StoredMembership::new(Some(id), membership));
                }
                EntryPayload::Normal(Proposal(bytes)) => {
                    let command = Command::decode(&bytes).map_err(|err| bad(id.index, err.to_string()))?;
                    if let Op::SetClusterVersion(version) = command.op
                        && version > CLUSTER_VERSION
                    {
                        return Err(bad(id.index, newer_cluster(version)));
                    }
                    read.state.apply(id.index, id.leader_id.term, &command);
                }
            }
            read.last = Some(id);
            next = id.index + 1;
        }
    }
    Ok(read)
}

fn newer_cluster(version: u32) -> String {
    format!(
        "the cluster runs as version {version}, this build supports {CLUSTER_VERSION}: use the mcctl of a newer build"
    )
}

/// Carries out steps 3 and 4 of the module docs, from wherever an earlier attempt stopped.
fn finish(dir: &Path) -> Result<Rescued, RescueError> {
    let decided = dir.join(DECIDED);
    let at = if decided.join("identity").exists() { decided.as_path() } else { dir };
    let identity = IdentityFile::read(at)?.and_then(|identity| identity.belonging());
    let Some(Belonging { cluster, .. }) = identity else {
        return Err(RescueError::NoMaster { dir: dir.to_owned() });
    };
    let backup = dir.join(format!("before-{cluster}"));
    mc_durable::create_dir(&backup)?;
    for part in PARTS {
        let (new, place, old) = (decided.join(part), dir.join(part), backup.join(part));
        if !new.exists() {
            continue;
        }
        if place.exists() {
            fs::rename(&place, &old).map_err(failed("move", &place))?;
            sync_dir(&backup)?;
        }
        fs::rename(&new, &place).map_err(failed("move", &new))?;
        sync_dir(&decided)?;
        sync_dir(dir)?;
    }
    fs::remove_dir_all(&decided).map_err(failed("delete", &decided))?;
    sync_dir(dir)?;
    Ok(Rescued { cluster, backup })
}

#[cfg(test)]
mod tests {
    use mc_log::OnSled;

    use super::*;

    const NODE: NodeId = NodeId(5);
    const NEW: ClusterId = ClusterId(9);

    fn put(dir: &Path, part: &str, content: &str) {
        fs::create_dir_all(dir.join(part)).unwrap();
        fs::write(dir.join(part).join("content"), content).unwrap();
    }

    fn identity(dir: &Path, cluster: ClusterId) {
        let lock = DirectoryLock::acquire(dir).unwrap();
        IdentityFile::create(&lock, NODE, Belonging { cluster, founder: Some(NODE) }).unwrap();
    }

    /// Builds a rescue that died after `renames` of its six renames: each part goes to the backup, then the new one
    /// takes its place.
    fn cut_short_after(renames: usize) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let (root, decided) = (dir.path(), dir.path().join(DECIDED));
        let backup = root.join(format!("before-{NEW}"));
        for part in ["log", "snapshots"] {
            put(root, part, "old");
            put(&decided, part, "new");
        }
        identity(root, ClusterId(1));
        identity(&decided, NEW);
        fs::create_dir(&backup).unwrap();
        for step in 0..renames {
            let part = PARTS[step / 2];
            let (from, to) = match step % 2 {
                0 => (root.join(part), backup.join(part)),
                _ => (decided.join(part), root.join(part)),
            };
            fs::rename(from, to).unwrap();
        }
        dir
    }

    #[tokio::test]
    async fn a_rescue_that_was_cut_short_at_any_step_is_finished_by_the_next_one() {
        for renames in 0..=6 {
            let dir = cut_short_after(renames);
            let root = dir.path();
            assert!(is_unfinished(root), "no master may start here");
            let found = Rescue::prepare(root, Arc::new(OnSled::default())).await.unwrap();
            let Prepared::Finished(rescued) = found else { panic!("after {renames} renames: {found:?}") };
            assert!(!is_unfinished(root));
            let content =
                |dir: &Path, part: &str| fs::read_to_string(dir.join(part).join("content")).unwrap();
            let cluster = |dir: &Path| IdentityFile::read(dir).unwrap().unwrap().belonging().unwrap().cluster;
            for part in ["log", "snapshots"] {
                assert_eq!(content(root, part), "new", "after {renames} renames");
                assert_eq!(content(&rescued.backup, part), "old", "after {renames} renames");
            }
            assert_eq!((cluster(root), cluster(&rescued.backup)), (NEW, ClusterId(1)));
        }
    }

    #[test]
    fn entries_that_the_snapshot_has_overruled_are_not_applied() {
        let id = |(term, index)| LogId::new_term_index(term, index);
        let beyond =
            |covered: Option<(u64, u64)>, last: Option<(u64, u64)>| beyond(covered.map(id), last.map(id));
        assert_eq!(beyond(None, Some((2, 9))), 0..10, "no snapshot yet");
        assert_eq!(beyond(Some((2, 5)), Some((2, 9))), 6..10);
        assert_eq!(beyond(Some((2, 5)), Some((3, 9))), 6..10);
        assert!(beyond(Some((5, 5)), Some((3, 9))).is_empty(), "of a leader before the snapshot's");
        assert!(beyond(Some((5, 5)), Some((3, 5))).is_empty());
        assert!(beyond(Some((5, 5)), Some((4, 3))).is_empty(), "the log ends before the snapshot");
        assert!(beyond(Some((5, 5)), None).is_empty());
    }

    #[tokio::test]
    async fn where_no_master_was_nothing_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let nothing = dir.path().join("nothing");
        let error = Rescue::prepare(&nothing, Arc::new(OnSled::default())).await.unwrap_err().to_string();
        assert!(error.contains("holds no master that was part of a cluster"), "{error}");
        assert!(!nothing.exists());
    }
}
