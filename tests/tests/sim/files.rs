//! Files of a directory after a loss of power: everything synced, under the names that were synced, and of
//! the rest whatever the kernel happened to have written.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use mc_tests::Seeded;
use parking_lot::Mutex;

static DURABLE: Mutex<Durable> = Mutex::new(Durable { files: BTreeMap::new(), names: BTreeMap::new() });

struct Durable {
    /// By inode: what was synced of it.
    files: BTreeMap<u64, Vec<u8>>,
    /// By directory: the names in it as of its last sync, and what was durable of each then.
    names: BTreeMap<PathBuf, BTreeMap<OsString, u64>>,
}

/// A file or a directory is synced.
pub(crate) fn synced(fd: i32) {
    let handle = format!("/proc/self/fd/{fd}");
    let Ok(of) = fs::metadata(&handle) else { return };
    if of.is_dir() {
        let Ok(path) = fs::read_link(&handle) else { return };
        if let Ok(names) = names(&path) {
            DURABLE.lock().names.insert(path, names);
        }
    } else if let Ok(bytes) = fs::read(&handle) {
        DURABLE.lock().files.insert(of.ino(), bytes);
    }
}

fn names(dir: &Path) -> io::Result<BTreeMap<OsString, u64>> {
    let mut names = BTreeMap::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let of = entry.metadata()?;
        if of.is_file() {
            names.insert(entry.file_name(), of.ino());
        }
    }
    Ok(names)
}

/// The names in `dir` that a loss of power leaves as they are now, with their bytes.
pub(crate) fn durable(dir: &Path) -> Vec<OsString> {
    let durable = DURABLE.lock();
    let Some(kept) = durable.names.get(dir) else { return Vec::new() };
    let is_durable = |(name, inode): &(&OsString, &u64)| {
        let written = fs::read(dir.join(name)).ok();
        written.is_some() && written.as_ref() == durable.files.get(*inode)
    };
    kept.iter().filter(is_durable).map(|(name, _)| name.clone()).collect()
}

/// Counts all files of `dir` as synced, with their names.
pub(crate) fn keep_all(dir: &Path) -> io::Result<()> {
    let names = names(dir)?;
    let mut durable = DURABLE.lock();
    for (name, inode) in &names {
        durable.files.insert(*inode, fs::read(dir.join(name))?);
    }
    durable.names.insert(dir.to_owned(), names);
    Ok(())
}

/// Takes `dir` and all in it: another disk has never heard of them.
pub(crate) fn take(dir: &Path) -> io::Result<()> {
    DURABLE.lock().names.retain(|known, _| !known.starts_with(dir));
    if dir.exists() { fs::remove_dir_all(dir) } else { Ok(()) }
}

/// Turns the files of `dir` into what a loss of power leaves. Nobody has them open.
pub(crate) fn lose_power(dir: &Path, rng: &mut Seeded) -> io::Result<()> {
    let mut durable = DURABLE.lock();
    let now = names(dir).unwrap_or_default();
    let kept = durable.names.get(dir).cloned().unwrap_or_default();
    let all: std::collections::BTreeSet<_> = now.keys().chain(kept.keys()).cloned().collect();
    for name in all {
        let path = dir.join(&name);
        let old = kept.get(&name).map(|inode| durable.files.get(inode).cloned().unwrap_or_default());
        let written = now.get(&name).map(|_| fs::read(&path)).transpose()?;
        let is_durable = kept.get(&name) == now.get(&name) && old == written;
        // A name that was not synced is there or not; the bytes under it, if they were not synced, likewise.
        let after = match rng.below(3) {
            _ if is_durable => continue,
            0 => written.clone(),
            1 => old,
            _ => match now.get(&name) {
                Some(inode) => Some(durable.files.get(inode).cloned().unwrap_or_default()),
                None => old,
            },
        };
        fs::remove_file(&path).or_else(|err| match err.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(err),
        })?;
        if let Some(bytes) = after {
            fs::write(&path, &bytes)?;
            durable.files.insert(fs::metadata(&path)?.ino(), bytes);
        }
    }
    let now = names(dir).unwrap_or_default();
    durable.names.insert(dir.to_owned(), now);
    Ok(())
}
