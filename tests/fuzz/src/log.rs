//! Records of a master's log.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hint::black_box;
use std::path::Path;

use mc_index::{Command, Settings, State};
use mc_log::{
    LogId, MasterNode, Membership, StoredMembership, decode_entry, decode_membership, encode_membership,
    encode_payload,
};
use mc_master::fuzz::NODE;
use mc_types::NodeId;

/// The format of all that `mc-log` writes.
const RECORD_FORMAT: u8 = 2;

/// The golden files of a directory, by name. The list of their digests is none.
pub(crate) fn golden(dir: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../master/index/testdata").join(dir);
    let entries = fs::read_dir(dir).expect("a directory of golden files");
    let paths = entries.map(|entry| entry.expect("a golden file").path());
    let mut paths: Vec<_> = paths.filter(|path| path.extension().is_some_and(|it| it == "bin")).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("a golden file")).collect()
}

/// A command of the log.
pub(crate) fn command(data: &[u8]) -> bool {
    let Ok(command) = Command::decode(data) else { return false };
    assert_eq!(
        Command::decode(&command.encode()).as_ref(),
        Ok(&command),
        "what was decoded encodes to itself"
    );
    // Whatever a command says, applying it ends with an answer.
    let mut state = State::new(Settings::default());
    black_box(state.apply(1, command.stamp.term, &command));
    black_box(state.apply(2, command.stamp.term, &command));
    true
}

/// Every command.
pub(crate) fn commands() -> Vec<Vec<u8>> {
    golden("command")
}

/// The payload of a log entry.
pub(crate) fn entry(data: &[u8]) -> bool {
    let Ok(entry) = decode_entry(LogId::new_term_index(3, 7), data) else { return false };
    assert_eq!(&encode_payload(&entry)[..], data, "there is one way to write an entry");
    true
}

/// Payloads of entries: blank, a membership, and every command.
pub(crate) fn entries() -> Vec<Vec<u8>> {
    // The body of a stored membership without the entry that set it.
    let membership = encode_membership(&StoredMembership::new(None, two_masters()))[2..].to_vec();
    let commands = commands().into_iter().map(|command| [&[RECORD_FORMAT, 1], &command[..]].concat());
    [vec![RECORD_FORMAT, 0], [&[RECORD_FORMAT, 2], &membership[..]].concat()]
        .into_iter()
        .chain(commands)
        .collect()
}

fn two_masters() -> Membership {
    let node = |id, host: &str| {
        let at = |port: u16| format!("{host}:{port}");
        (id, MasterNode { raft: at(50055), client: at(50051), http: at(9003) })
    };
    let nodes = BTreeMap::from([node(NodeId(1), "a"), node(NODE, "b")]);
    Membership::new(vec![BTreeSet::from([NodeId(1), NODE])], nodes).expect("voters with addresses")
}

/// A membership and the entry that set it.
pub(crate) fn stored_membership() -> StoredMembership {
    StoredMembership::new(Some(LogId::new_term_index(3, 4)), two_masters())
}

/// A membership, as snapshots hold it.
pub(crate) fn membership(data: &[u8]) -> bool {
    let Ok(membership) = decode_membership(data) else { return false };
    assert_eq!(decode_membership(&encode_membership(&membership)).ok(), Some(membership));
    true
}

/// No members, and some.
pub(crate) fn memberships() -> Vec<Vec<u8>> {
    [StoredMembership::default(), stored_membership()]
        .map(|membership| encode_membership(&membership).to_vec())
        .into()
}

/// Values of the log's database, without their checksum: a pack of entries, an entry's only part, and a part of three.
pub(crate) fn pieces() -> Vec<Vec<u8>> {
    let (pack, part) = (1, 2);
    let record =
        |(index, payload): (u64, Vec<u8>)| [&3u64.to_be_bytes()[..], &index.to_be_bytes(), &payload].concat();
    let records: Vec<Vec<u8>> = (9..).zip(entries()).map(record).collect();
    let with_length = |record: &Vec<u8>| [&length(record)[..], record].concat();
    let packed = records.iter().map(with_length).collect::<Vec<_>>().concat();
    let value = |kind: u8, count: u32, number: u32, body: &[u8]| {
        let head =
            [&[RECORD_FORMAT, kind][..], &9u64.to_be_bytes(), &count.to_be_bytes(), &number.to_be_bytes()]
                .concat();
        [&head[..], &[0; 4], body].concat()
    };
    vec![
        value(pack, u32::try_from(records.len()).expect("a few"), 0, &packed),
        value(part, 1, 0, &records[0]),
        value(part, 3, 1, &packed),
    ]
}

fn length(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).expect("a few bytes").to_be_bytes()
}

/// A position in the log and two votes, without their checksum.
pub(crate) fn marks() -> Vec<Vec<u8>> {
    let position = [&[RECORD_FORMAT][..], &3u64.to_be_bytes(), &7u64.to_be_bytes()].concat();
    let vote = |committed| [&position[..], &[committed], &300u64.to_be_bytes()].concat();
    vec![vote(0), vote(1), position]
}

/// Two slots with sequence number, index and term, without their checksums.
pub(crate) fn mark_files() -> Vec<Vec<u8>> {
    let slot = |sequence: u64, next: u64| {
        [&[RECORD_FORMAT][..], &sequence.to_be_bytes(), &next.to_be_bytes(), &3u64.to_be_bytes()].concat()
    };
    vec![[slot(4, 20), slot(5, 30)].concat(), [slot(2, 9), slot(1, 8)].concat()]
}
