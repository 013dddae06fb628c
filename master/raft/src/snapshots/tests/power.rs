//! The power is cut between any two steps of writing a snapshot. The directory then has what was synced, and any
//! subset of the names that were not.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{FileExt, MetadataExt};

use openraft::storage::RaftSnapshotBuilder;

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Write,
    Sync,
    ReadBack,
    Rename,
    SyncDir,
    Remove,
}

use Step::{ReadBack, Remove, Rename, Sync, SyncDir, Write};

/// The files of a directory.
type Files = BTreeMap<OsString, Vec<u8>>;
/// Names in the directory, and their inodes.
type Names = BTreeMap<OsString, u64>;

/// A real directory on a disk whose power is cut after a number of steps.
#[derive(Debug)]
struct Power {
    steps: usize,
    medium: Mutex<Medium>,
}

#[derive(Debug, Default)]
struct Medium {
    done: Vec<Step>,
    /// Bytes that were synced, by inode.
    bytes: BTreeMap<u64, Vec<u8>>,
    /// Names as of the last sync of the directory.
    names: Names,
    /// Changes of names since: each gives a name to a file, or takes one away.
    renamed: Vec<(OsString, Option<u64>)>,
}

impl Medium {
    /// Returns the files if, of the names that were not synced, those reached the medium whose bit is set.
    fn files(&self, reached: usize) -> Files {
        let mut names = self.names.clone();
        for (at, (name, inode)) in self.renamed.iter().enumerate() {
            if reached >> at & 1 == 1 {
                rename(&mut names, name, *inode);
            }
        }
        let bytes = |inode| self.bytes.get(&inode).cloned().unwrap_or_default();
        names.into_iter().map(|(name, inode)| (name, bytes(inode))).collect()
    }
}

impl Power {
    /// Marks all that is in `dir` as having reached the medium.
    fn cut_after(steps: usize, dir: &TempDir) -> Arc<Self> {
        let mut medium = Medium::default();
        for file in fs::read_dir(dir.path()).unwrap().map(Result::unwrap) {
            let inode = file.metadata().unwrap().ino();
            medium.bytes.insert(inode, fs::read(file.path()).unwrap());
            medium.names.insert(file.file_name(), inode);
        }
        Arc::new(Self { steps, medium: Mutex::new(medium) })
    }

    /// Takes a step while there is power.
    fn step<R>(&self, step: Step, take: impl FnOnce(&mut Medium) -> io::Result<R>) -> io::Result<R> {
        let mut medium = self.medium.lock();
        if medium.done.len() == self.steps {
            return Err(io::Error::other("the power is gone"));
        }
        medium.done.push(step);
        take(&mut medium)
    }

    fn done(&self) -> Vec<Step> {
        self.medium.lock().done.clone()
    }

    /// Returns every content that the directory may have when the power is back.
    fn left(&self) -> Vec<Files> {
        let medium = self.medium.lock();
        (0..1 << medium.renamed.len()).map(|reached| medium.files(reached)).collect()
    }
}

fn rename(names: &mut Names, name: &OsStr, inode: Option<u64>) {
    match inode {
        Some(inode) => {
            names.insert(name.to_owned(), inode);
        }
        None => {
            names.remove(name);
        }
    }
}

fn name(path: &Path) -> OsString {
    path.file_name().map(OsStr::to_owned).unwrap()
}

impl Disk for Power {
    fn free(&self, dir: &Path) -> io::Result<u64> {
        FileSystem.free(dir)
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<usize> {
        self.step(Write, |_| FileSystem.write(file, bytes))
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        self.step(Sync, |medium| {
            let of = file.metadata()?;
            let mut bytes = vec![0; of.len() as usize];
            file.read_exact_at(&mut bytes, 0)?;
            medium.bytes.insert(of.ino(), bytes);
            FileSystem.sync(file)
        })
    }

    fn rename(&self, partial: TempPath, to: &Path) -> io::Result<()> {
        self.step(Rename, |medium| {
            medium.renamed.push((name(to), Some(fs::metadata(&partial)?.ino())));
            FileSystem.rename(partial, to)
        })
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), SnapshotError> {
        let synced = self.step(SyncDir, |medium| {
            for (name, inode) in std::mem::take(&mut medium.renamed) {
                rename(&mut medium.names, &name, inode);
            }
            Ok(FileSystem.sync_dir(dir)?)
        });
        synced.map_err(io_error("sync", dir))
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        self.step(ReadBack, |_| FileSystem.open(path))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.step(Remove, |medium| {
            medium.renamed.push((name(path), None));
            FileSystem.remove(path)
        })
    }
}

/// Checks a directory after the power was cut while a snapshot up to 30 was added to those up to 10 and 20, and the
/// log was purged up to `purged` because of it. In every case a whole snapshot covers what was purged.
fn assert_that_one_is_whole(power: &Power, all: &[Step], purged: u64) {
    let done = power.done();
    assert_eq!(done, all[..power.steps], "the order of the steps");
    let mut newest = BTreeSet::new();
    for files in power.left() {
        let dir = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, bytes)| fs::write(dir.path().join(name), bytes).unwrap());
        let (_, mut recovered) = open(&dir).unwrap();
        assert!(recovered.bad.is_empty(), "after {done:?}: {:?}", recovered.bad);
        assert!(recovered.check_log(Some(&log_id(purged))).is_ok(), "after {done:?} {purged} was purged");
        newest.extend(recovered_index(&recovered));
    }
    let expected: &[u64] = match (done.contains(&Rename), done.contains(&SyncDir)) {
        (false, _) => &[20],
        (true, false) => &[20, 30],
        (true, true) => &[30],
    };
    assert_eq!(Vec::from_iter(newest), expected, "after {done:?}");
}

/// If a process is killed there, all that it did stays.
fn assert_that_a_kill_leaves_one(dir: &TempDir, power: &Power) {
    let expected = if power.done().contains(&Rename) { 30 } else { 20 };
    assert_eq!(recovered_index(&open(dir).unwrap().1), Some(expected), "after {:?}", power.done());
}

#[tokio::test]
async fn power_that_is_cut_at_any_step_of_writing_leaves_the_old_snapshot_or_the_new_one() {
    let all = [Write, Sync, ReadBack, Rename, SyncDir, Remove];
    for steps in 0..=all.len() {
        let dir = with_snapshots(&[10, 20]);
        let power = Power::cut_after(steps, &dir);
        let (mut machine, _) = machine(&dir, power.clone(), 30);
        let built = machine.get_snapshot_builder().await.build_snapshot().await.unwrap();
        // The index up to which openraft then purges.
        let purged = built.meta.last_log_id.unwrap().index;
        assert_eq!(purged, if power.done().contains(&SyncDir) { 30 } else { 20 });
        assert_that_one_is_whole(&power, &all, purged);
        assert_that_a_kill_leaves_one(&dir, &power);
    }
}

#[tokio::test]
async fn power_that_is_cut_at_any_step_of_receiving_leaves_the_old_snapshot_or_the_new_one() {
    let sender = with_snapshots(&[30]);
    let bytes = fs::read(path(&sender, 30)).unwrap();
    let all = [Write, Write, Sync, ReadBack, Rename, SyncDir, Remove];
    for steps in 0..=all.len() {
        let dir = with_snapshots(&[10, 20]);
        let power = Power::cut_after(steps, &dir);
        let (mut machine, snapshots) = machine(&dir, power.clone(), 20);
        let taken = take_over(&mut machine, &snapshots, &bytes).await;
        assert_eq!(taken.is_ok(), power.done().contains(&SyncDir), "{taken:?}");
        let purged = if taken.is_ok() { 30 } else { 20 };
        assert_that_one_is_whole(&power, &all, purged);
        assert_that_a_kill_leaves_one(&dir, &power);
    }
}
