//! A model of files and folders: their durable content, the changes since, and the changes that survive a loss of
//! power.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;

use super::Taken;
use crate::Seeded;

/// Bytes that a disk writes as a whole or not at all.
const SECTOR: usize = 512;

/// Identifies a file or folder; its inode may belong to another one later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Id(usize);

/// The names of a folder.
pub(super) type Names = BTreeMap<OsString, Id>;

/// A change of a file.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Write { at: u64, bytes: Vec<u8> },
    Len(u64),
}

#[derive(Debug, Default)]
struct File {
    durable: Vec<u8>,
    /// Number of changes that `durable` includes, counted from the beginning.
    included: usize,
    since: Vec<Change>,
}

#[derive(Debug)]
enum Node {
    File(File),
    Folder { durable: Names },
}

/// A sync that has begun, with the changes and names that it will make durable.
#[derive(Debug)]
struct Sync {
    of: Id,
    changes: usize,
    names: Names,
}

/// The files, folders and running syncs of one data directory.
#[derive(Debug, Default)]
pub(super) struct Model {
    nodes: Vec<Node>,
    by_inode: HashMap<u64, Id>,
    syncs: HashMap<u64, Sync>,
}

/// The files and names that survive a loss of power.
#[derive(Debug, Default)]
pub(super) struct Left {
    pub(super) names: BTreeMap<Id, Names>,
    pub(super) files: BTreeMap<Id, Vec<u8>>,
}

/// The extent of a loss of power. It differs between drives, file systems and moments.
#[derive(Clone, Copy, Debug)]
enum Loss {
    /// All changes that were not durable are lost.
    Everything,
    /// The changes after some moment are lost, file by file.
    TheLast,
    /// Any part of the changes is lost.
    Any,
    /// One change in so many is lost.
    OneIn(u64),
}

impl Model {
    fn add(&mut self, inode: u64, node: Node) -> Id {
        let id = Id(self.nodes.len());
        self.nodes.push(node);
        self.by_inode.insert(inode, id);
        id
    }

    pub(super) fn new_file(&mut self, inode: u64) -> Id {
        self.add(inode, Node::File(File::default()))
    }

    /// Adds a folder that has no durable name.
    pub(super) fn new_folder(&mut self, inode: u64) -> Id {
        self.add(inode, Node::Folder { durable: Names::new() })
    }

    pub(super) fn find(&self, inode: u64) -> Option<Id> {
        self.by_inode.get(&inode).copied()
    }

    fn file(&mut self, id: Id) -> Option<&mut File> {
        match &mut self.nodes[id.0] {
            Node::File(file) => Some(file),
            Node::Folder { .. } => None,
        }
    }

    pub(super) fn change(&mut self, id: Id, change: Change) {
        if let Some(file) = self.file(id) {
            file.since.push(change);
        }
    }

    /// Sets the durable names of a folder.
    pub(super) fn set_names(&mut self, id: Id, names: Names) {
        if let Node::Folder { durable } = &mut self.nodes[id.0] {
            *durable = names;
        }
    }

    /// Makes all changes of a file so far durable.
    pub(super) fn all_durable(&mut self, id: Id) {
        if let Some(file) = self.file(id) {
            file.include(file.included + file.since.len());
        }
    }

    /// Begins a sync. It covers the changes made before it and, for a folder, `names`.
    pub(super) fn syncing(&mut self, sync: u64, of: Id, names: Names) {
        let changes = self.file(of).map_or(0, |file| file.included + file.since.len());
        self.syncs.insert(sync, Sync { of, changes, names });
    }

    /// Ends a sync, which makes durable what it covers.
    pub(super) fn synced(&mut self, sync: u64) {
        let Some(Sync { of, changes, names }) = self.syncs.remove(&sync) else { return };
        match &mut self.nodes[of.0] {
            Node::File(file) => file.include(changes),
            Node::Folder { durable } => *durable = names,
        }
    }

    /// Returns the content of a file if nothing is lost.
    pub(super) fn written(&self, id: Id) -> Vec<u8> {
        match &self.nodes[id.0] {
            Node::File(file) => {
                let mut bytes = file.durable.clone();
                file.since.iter().for_each(|change| apply(&mut bytes, change));
                bytes
            }
            Node::Folder { .. } => Vec::new(),
        }
    }

    /// Returns the files that survive if the folders had the names `now` at the end, and counts the losses.
    pub(super) fn survivors(&self, now: &BTreeMap<Id, Names>, random: &mut Seeded) -> (Left, Taken) {
        let loss = match random.below(4) {
            0 => Loss::Everything,
            1 => Loss::TheLast,
            2 => Loss::Any,
            _ => Loss::OneIn(random.within(2..20)),
        };
        let mut left = Left::default();
        let mut taken = Taken::default();
        for (at, node) in self.nodes.iter().enumerate() {
            let id = Id(at);
            match node {
                Node::File(file) => {
                    let bytes = file.survivors(loss, random, &mut taken);
                    left.files.insert(id, bytes);
                }
                Node::Folder { durable } => {
                    let names =
                        names_left(durable, now.get(&id).unwrap_or(durable), loss, random, &mut taken);
                    left.names.insert(id, names);
                }
            }
        }
        (left, taken)
    }
}

impl File {
    fn include(&mut self, upto: usize) {
        let count = upto.saturating_sub(self.included);
        for change in self.since.drain(..count) {
            apply(&mut self.durable, &change);
        }
        self.included += count;
    }

    fn survivors(&self, loss: Loss, random: &mut Seeded, taken: &mut Taken) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        let kept = random.below(self.since.len() as u64 + 1) as usize;
        taken.unsynced += self.since.len();
        for (n, change) in self.since.iter().enumerate() {
            let fate = match loss {
                Loss::Everything => Fate::Lost,
                Loss::TheLast if n < kept => Fate::Whole,
                Loss::TheLast if n == kept => Fate::Torn,
                Loss::TheLast => Fate::Lost,
                Loss::Any => [Fate::Whole, Fate::Torn, Fate::Lost][random.below(3) as usize],
                Loss::OneIn(so_many) if random.below(so_many) == 0 => {
                    [Fate::Torn, Fate::Lost][random.below(2) as usize]
                }
                Loss::OneIn(_) => Fate::Whole,
            };
            match (fate, change) {
                (Fate::Whole, _) => apply(&mut bytes, change),
                (Fate::Torn, Change::Write { at, bytes: whole }) => {
                    taken.torn += 1;
                    tear(&mut bytes, *at, whole, random);
                }
                (Fate::Torn | Fate::Lost, _) => taken.lost += 1,
            }
        }
        bytes
    }
}

#[derive(Clone, Copy)]
enum Fate {
    Whole,
    Torn,
    Lost,
}

fn apply(file: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Len(len) => file.resize(*len as usize, 0),
        Change::Write { at, bytes } => {
            let at = *at as usize;
            file.resize(file.len().max(at + bytes.len()), 0);
            file[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }
}

/// Writes some of the sectors of `bytes`: the first ones, or any.
fn tear(file: &mut Vec<u8>, at: u64, bytes: &[u8], random: &mut Seeded) {
    let mut sectors = Vec::new();
    let mut from = 0;
    while from < bytes.len() {
        let to = (from + SECTOR - (at as usize + from) % SECTOR).min(bytes.len());
        sectors.push(from..to);
        from = to;
    }
    let first = random.below(sectors.len() as u64) as usize;
    let any = random.below(2) == 0;
    for (n, sector) in sectors.into_iter().enumerate() {
        if if any { random.below(2) == 0 } else { n < first } {
            apply(file, &Change::Write { at: at + sector.start as u64, bytes: bytes[sector].to_vec() });
        }
    }
}

/// Returns the names that survive in a folder: each name that differs is either the durable one or the present one.
fn names_left(durable: &Names, now: &Names, loss: Loss, random: &mut Seeded, taken: &mut Taken) -> Names {
    let mut left = durable.clone();
    for name in durable.keys().chain(now.keys()) {
        let (was, is) = (durable.get(name), now.get(name));
        if was == is || left.get(name) != was {
            continue;
        }
        let keeps = match loss {
            Loss::Everything => false,
            Loss::TheLast | Loss::Any => random.below(2) == 0,
            Loss::OneIn(so_many) => random.below(so_many) != 0,
        };
        match is {
            _ if !keeps => taken.names += 1,
            Some(is) => drop(left.insert(name.clone(), *is)),
            None => drop(left.remove(name)),
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(at: u64, bytes: &[u8]) -> Change {
        Change::Write { at, bytes: bytes.to_vec() }
    }

    /// Returns the distinct contents of the file after many losses.
    fn all_left(model: &Model, id: Id) -> std::collections::BTreeSet<Vec<u8>> {
        let mut random = Seeded::new(1);
        (0..500).map(|_| model.survivors(&BTreeMap::new(), &mut random).0.files[&id].clone()).collect()
    }

    #[test]
    fn synced_bytes_stay_and_any_of_the_others_may_go() {
        let mut model = Model::default();
        let file = model.new_file(1);
        model.change(file, write(0, b"ab"));
        model.syncing(0, file, Names::new());
        model.synced(0);
        model.change(file, write(0, b"A"));
        model.change(file, write(1, b"B"));
        let all: Vec<Vec<u8>> = [b"AB", b"Ab", b"aB", b"ab"].map(|bytes| bytes.to_vec()).into();
        assert_eq!(all_left(&model, file).into_iter().collect::<Vec<_>>(), all);
        assert_eq!(model.written(file), b"AB");
    }

    #[test]
    fn a_change_made_during_a_sync_or_before_one_that_failed_is_not_durable() {
        let mut model = Model::default();
        let file = model.new_file(1);
        model.syncing(0, file, Names::new());
        model.change(file, write(0, b"x"));
        model.synced(0);
        model.syncing(1, file, Names::new());
        assert!(all_left(&model, file).contains(&Vec::new()));
        model.synced(1);
        assert_eq!(all_left(&model, file).len(), 1);
    }

    #[test]
    fn a_write_is_torn_between_sectors_only() {
        let mut model = Model::default();
        let file = model.new_file(1);
        model.change(file, Change::Len(3 * SECTOR as u64));
        model.all_durable(file);
        model.change(file, write(SECTOR as u64 / 2, &[1; SECTOR]));
        let left = all_left(&model, file);
        assert_eq!(left.len(), 4, "neither half, one of them, both");
        for bytes in left {
            for half in [&bytes[SECTOR / 2..SECTOR], &bytes[SECTOR..SECTOR * 3 / 2]] {
                assert!(half.iter().all(|byte| *byte == half[0]));
            }
        }
    }

    #[test]
    fn a_name_is_durable_when_its_folder_was_synced() {
        let mut model = Model::default();
        let (folder, file) = (model.new_folder(1), model.new_file(2));
        let names: Names = [("name".into(), file)].into();
        let now: BTreeMap<Id, Names> = [(folder, names.clone())].into();
        let left = |model: &Model| {
            let mut random = Seeded::new(1);
            (0..100).filter(|_| !model.survivors(&now, &mut random).0.names[&folder].is_empty()).count()
        };
        assert!((1..100).contains(&left(&model)));
        model.syncing(0, folder, names);
        assert!(left(&model) < 100);
        model.synced(0);
        assert_eq!(left(&model), 100);
    }
}
