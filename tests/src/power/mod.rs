//! Loss of power: of a process' changes to its files, those that it made durable survive, and any part of the others.
//!
//! Only `fsync` and `fdatasync` make bytes durable, and only the sync of a folder makes its names durable.
//! `sync_file_range` does neither, and the sync of a file does not cover its own name. File systems promise more, but
//! each something else.

mod model;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::Seeded;
use crate::faulty::page::record;
use model::{Change, Id, Model};

/// The data directory of one process with a journal ([`crate::Faulty::journal_env`]), from its start to its end.
#[derive(Debug)]
pub struct Power {
    data: PathBuf,
    journal: PathBuf,
    model: Model,
}

/// Changes that one loss of power took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Changes of files that had reached the kernel and were not durable.
    pub unsynced: usize,
    /// Number of those that are gone.
    pub lost: usize,
    /// Number of those of which a part is gone.
    pub torn: usize,
    /// Names that are again as they were at the last sync of their folder.
    pub names: usize,
}

impl Power {
    /// Starts the model, right before the process starts: all that is in `data` is durable. `data` need not exist.
    pub fn on(data: &Path, journal: &Path) -> Self {
        fs::write(journal, []).expect("a journal");
        let mut model = Model::default();
        let top = data.parent().expect("a data directory has a folder");
        let name = data.file_name().expect("and a name");
        let root = model.new_folder(inode(top));
        if data.exists() {
            let inside = read(&mut model, data);
            model.set_names(root, [(name.to_owned(), inside)].into());
        }
        Self { data: data.to_owned(), journal: journal.to_owned(), model }
    }

    /// Replaces `data` by the part of it that `random` lets survive. Call it right after the process was ended by its
    /// journal.
    ///
    /// # Panics
    /// When the journal does not account for every byte of `data`, because something has changed it past the C library.
    pub fn off(self, random: &mut Seeded) -> Taken {
        let Self { data, journal, mut model } = self;
        let name = data.file_name().expect("a data directory has a name").to_owned();
        let folders = folders(&data);
        replay(
            &mut model,
            &fs::read(journal).expect("a journal"),
            inode(data.parent().expect("a folder")),
            &name,
        );
        let now = |folder: &Path, names: Vec<OsString>| -> BTreeMap<OsString, Id> {
            let id = |name: &OsString| {
                let path = folder.join(name);
                let id = model.find(inode(&path));
                id.unwrap_or_else(|| panic!("{} was made past the C library", path.display()))
            };
            names.iter().map(|name| (name.clone(), id(name))).collect()
        };
        let mut names = BTreeMap::new();
        for folder in &folders {
            let id = model.find(inode(folder)).expect("it was made through the C library");
            names.insert(id, now(folder, list(folder)));
        }
        let top = data.parent().expect("a folder");
        names.insert(
            model.find(inode(top)).expect("it was there before"),
            now(top, data.exists().then(|| name.clone()).into_iter().collect()),
        );
        for folder in &folders {
            for file in list(folder).into_iter().map(|name| folder.join(name)).filter(|path| path.is_file()) {
                let id = model.find(inode(&file)).expect("it was found above");
                let (is, noted) = (fs::read(&file).expect("a file"), model.written(id));
                let differ = is.iter().zip(&noted).position(|(is, noted)| is != noted);
                assert!(
                    is == noted,
                    "{} has {} bytes, {} by the journal; the first that differs is {differ:?}",
                    file.display(),
                    is.len(),
                    noted.len()
                );
            }
        }
        let (left, taken) = model.survivors(&names, random);
        if data.exists() {
            fs::remove_dir_all(&data).expect("the data can be removed");
        }
        let root = model.find(inode(top)).expect("it was there before");
        write(&left, root, top);
        taken
    }
}

fn inode(path: &Path) -> u64 {
    path.symlink_metadata().unwrap_or_else(|err| panic!("{}: {err}", path.display())).ino()
}

fn list(folder: &Path) -> Vec<OsString> {
    let entries = fs::read_dir(folder).unwrap_or_else(|err| panic!("{}: {err}", folder.display()));
    entries.map(|entry| entry.expect("a name").file_name()).collect()
}

/// Returns this folder and all folders below it.
fn folders(folder: &Path) -> Vec<PathBuf> {
    if !folder.is_dir() {
        return Vec::new();
    }
    let inner = list(folder).into_iter().flat_map(|name| folders(&folder.join(name)));
    std::iter::once(folder.to_owned()).chain(inner.collect::<Vec<_>>()).collect()
}

/// Adds the file or folder at `path` to the model, as durable.
fn read(model: &mut Model, path: &Path) -> Id {
    if !path.is_dir() {
        let id = model.new_file(inode(path));
        model.change(id, Change::Write { at: 0, bytes: fs::read(path).expect("a file") });
        model.all_durable(id);
        return id;
    }
    let names = list(path).into_iter().map(|name| {
        let id = read(model, &path.join(&name));
        (name, id)
    });
    let names = names.collect();
    let id = model.new_folder(inode(path));
    model.set_names(id, names);
    id
}

/// Writes the surviving content of a folder to `at`.
fn write(left: &model::Left, folder: Id, at: &Path) {
    for (name, id) in &left.names[&folder] {
        let path = at.join(name);
        match left.files.get(id) {
            Some(bytes) => fs::write(&path, bytes).expect("room for what is left"),
            None => {
                fs::create_dir(&path).expect("room for what is left");
                write(left, *id, &path);
            }
        }
    }
}

/// Applies the whole journal to the model. In the folder `top` only the name `only` belongs to the process.
fn replay(model: &mut Model, mut journal: &[u8], top: u64, only: &OsStr) {
    let mut listed: Vec<(OsString, u64)> = Vec::new();
    while let Some((header, rest)) = journal.split_first_chunk::<32>() {
        let word = |n: usize| u64::from_le_bytes(header[8 * n..][..8].try_into().expect("eight bytes"));
        let (kind, inode, value) = (word(0), word(1), word(2));
        let (bytes, rest) = rest.split_at(word(3) as usize);
        journal = rest;
        match (kind, model.find(inode)) {
            (record::CREATED, _) => drop(model.new_file(inode)),
            (record::FOLDER, _) => drop(model.new_folder(inode)),
            (record::WRITE, Some(id)) => model.change(id, Change::Write { at: value, bytes: bytes.to_vec() }),
            (record::LEN, Some(id)) => model.change(id, Change::Len(value)),
            (record::NAMES, _) => listed.extend(entries(bytes)),
            (record::SYNCING, Some(id)) => {
                let mut names = BTreeMap::new();
                for (name, inode) in listed.drain(..) {
                    // A name that is not in the model is gone again, or does not belong to the process.
                    if let Some(id) = model.find(inode).filter(|_| inode != top) {
                        names.insert(name, id);
                    }
                }
                if inode == top {
                    names.retain(|name, _| name == only);
                }
                model.syncing(value, id, names);
            }
            (record::SYNCED, Some(_)) => model.synced(value),
            // The record is of a file elsewhere.
            _ => listed.clear(),
        }
    }
    assert!(journal.is_empty(), "the journal ends within a record");
}

/// Parses the names and inodes of a list in the format of `getdents64`.
fn entries(mut list: &[u8]) -> Vec<(OsString, u64)> {
    const NAME: usize = 19;
    let mut found = Vec::new();
    while list.len() > NAME {
        let inode = u64::from_le_bytes(list[..8].try_into().expect("eight bytes"));
        let (entry, rest) = list.split_at(usize::from(u16::from_le_bytes([list[16], list[17]])));
        list = rest;
        let name = entry[NAME..].split(|byte| *byte == 0).next().unwrap_or_default();
        if name != b"." && name != b".." {
            found.push((OsStr::from_bytes(name).to_owned(), inode));
        }
    }
    found
}
