//! Every fuzz target over mutated valid inputs, with fixed seeds: the same inputs on every run and every machine.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_base::{Access, ClusterId, ClusterTime, Grant, GrantKey, GrantedRange, SegmentEpoch, StoreId};
use mc_proto::v1;
use mc_tests::Seeded;
use prost::Message as _;

/// Mutations of each valid input, unless the time is over first.
const MUTATIONS: u64 = 20_000;
const AT_MOST: Duration = Duration::from_secs(8);
/// Numbers that lengths and counts are wrong by.
const TELLING: [u64; 8] = [0, 1, 0x7f, 0x80, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];

fn testdata(name: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../master/testdata").join(name);
    let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let files: Vec<_> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
    assert!(!files.is_empty(), "no {name} to begin with");
    files
}

fn mutate(valid: &[Vec<u8>], rng: &mut Seeded) -> Vec<u8> {
    let pick = |rng: &mut Seeded| valid[rng.below(valid.len() as u64) as usize].clone();
    let mut bytes = pick(rng);
    for _ in 0..=rng.below(4) {
        let at = rng.below(bytes.len() as u64 + 1) as usize;
        match rng.below(7) {
            0 => bytes.truncate(at),
            1 if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
            2 if at < bytes.len() => bytes[at] = rng.bits() as u8,
            3 => bytes.insert(at, rng.bits() as u8),
            4 => {
                // A part of this or another one, once more.
                let other = pick(rng);
                let from = rng.below(other.len() as u64 + 1) as usize;
                let len = rng.below(64) as usize;
                let piece = &other[from..other.len().min(from + len)];
                bytes.splice(at..at, piece.iter().copied());
            }
            5 => {
                let telling = TELLING[rng.below(8) as usize];
                let width = [1, 2, 4, 8][rng.below(4) as usize];
                let end = bytes.len().min(at + width);
                bytes.splice(at..end, telling.to_be_bytes()[8 - width..].iter().copied());
            }
            _ => {
                // A number of variable length.
                let telling = TELLING[rng.below(8) as usize];
                let mut varint = Vec::new();
                prost::encoding::encode_varint(telling, &mut varint);
                let end = bytes.len().min(at + 1);
                bytes.splice(at..end, varint);
            }
        }
    }
    bytes
}

fn run(target: fn(&[u8]), valid: &[Vec<u8>]) {
    for input in valid {
        target(input);
    }
    let (began, mut rng) = (Instant::now(), Seeded::new(20));
    let mut tried = 0;
    while tried < MUTATIONS * valid.len() as u64 && began.elapsed() < AT_MOST {
        let input = mutate(valid, &mut rng);
        let before = input.clone();
        if std::panic::catch_unwind(|| target(&input)).is_err() {
            panic!("mutation {tried} of seed 20 panics: {before:?}");
        }
        tried += 1;
    }
    println!("{tried} mutations of {} inputs in {:?}", valid.len(), began.elapsed());
}

/// Payloads of entries: blank, and every command.
fn payloads() -> Vec<Vec<u8>> {
    let commands = testdata("command").into_iter().map(|command| [&[1, 1], &command[..]].concat());
    [vec![1, 0]].into_iter().chain(commands).collect()
}

#[test]
fn commands() {
    run(mc_fuzz::command, &testdata("command"));
}

#[test]
fn entries() {
    run(mc_fuzz::entry, &payloads());
}

#[test]
fn appends() {
    let id = |index| Some(v1::LogId { term: 3, index });
    let entries = (5..).zip(payloads());
    let request = v1::AppendRequest {
        vote: Some(v1::RaftVote { term: 3, node_id: Bytes::from_static(&[1; 8]), committed: true }),
        prev_log_id: id(4),
        entries: entries
            .map(|(index, payload)| v1::Entry { log_id: id(index), payload: payload.into() })
            .collect(),
        leader_commit: id(4),
        ..v1::AppendRequest::default()
    };
    run(mc_fuzz::append, &[request.encode_to_vec()]);
}

#[test]
fn pieces_of_the_log() {
    let records = (9u64..)
        .zip(payloads())
        .map(|(index, payload)| [&3u64.to_be_bytes()[..], &index.to_be_bytes(), &payload].concat());
    let records: Vec<_> = records.collect();
    let packed = records
        .iter()
        .map(|record| [&u32::try_from(record.len()).unwrap().to_be_bytes()[..], record].concat());
    let body = packed.collect::<Vec<_>>().concat();
    let value = |kind: u8, index: u64, count: usize, part: u32, body: &[u8]| {
        let count = u32::try_from(count).unwrap();
        let head = [&[1, kind][..], &index.to_be_bytes(), &count.to_be_bytes(), &part.to_be_bytes()].concat();
        [&head[..], &[0; 4], body].concat()
    };
    let kinds = 0..3;
    let valid: Vec<_> = kinds
        .flat_map(|kind| {
            [
                value(kind, 9, records.len(), 0, &body),
                value(kind, 9, 1, 0, &records[0]),
                value(kind, 9, 3, 1, &body),
            ]
        })
        .collect();
    run(mc_fuzz::piece, &valid);
}

#[test]
fn memberships() {
    run(
        mc_fuzz::membership,
        &[mc_master::log::encode_membership(&mc_master::raft::StoredMembership::default()).to_vec()],
    );
}

#[test]
fn snapshots() {
    run(mc_fuzz::snapshot, &testdata("snapshot"));
}

#[test]
fn messages() {
    let caller = Some(v1::Caller { cluster_id: Bytes::from_static(&[7; 16]), ..v1::Caller::default() });
    let item =
        v1::PutStartItem { key: Bytes::from_static(b"key"), size: 4096, ..v1::PutStartItem::default() };
    let start =
        v1::BatchPutStartRequest { caller, items: vec![item; 3], ..v1::BatchPutStartRequest::default() };
    let mount = v1::MountStoreRequest { segment_bytes: vec![1 << 30; 4], ..v1::MountStoreRequest::default() };
    let which = |number: u8, body: Vec<u8>| [&[number][..], &body].concat();
    let valid: Vec<_> = (0..8).map(|n| which(n, start.encode_to_vec())).collect();
    run(mc_fuzz::rpc, &[valid, vec![which(3, mount.encode_to_vec())]].concat());
}

#[test]
fn frames() {
    let hello = [&b"mcTX\0\x01\0\x01"[..], &[7; 32]].concat();
    let mut request = [&9u64.to_be_bytes()[..], &[1, 0], &2u16.to_be_bytes(), &3u32.to_be_bytes()].concat();
    request.extend_from_slice(&[5; 3 + 40]);
    run(mc_fuzz::frames, &[hello, request]);
}

#[test]
fn grants() {
    let grant = Grant {
        cluster: ClusterId(1),
        store: StoreId(2),
        epoch: SegmentEpoch(3),
        access: Access::Read,
        expires: ClusterTime(99),
        ranges: vec![GrantedRange { segment: 0, offset: 64, len: 4096, index: 7 }; 5],
    };
    run(mc_fuzz::grant, &[grant.seal(&GrantKey([7; 32])).to_vec()]);
}

#[test]
fn texts() {
    let texts = [
        "50gb",
        "64KiB",
        "4096",
        "500ms",
        "10m",
        "a,b:1,c",
        "[::1]:50055",
        "host.example:50051",
        "0.0.0.0:0",
    ];
    run(mc_fuzz::text, &texts.map(|text| text.as_bytes().to_vec()));
}

#[test]
fn configurations() {
    let file =
        "peers = [\"a\", \"b:1\", \"c\"]\nread-lease = \"20s\"\ndisk-reserve = \"2gb\"\nsingle = false\n";
    run(mc_fuzz::config, &[file.as_bytes().to_vec()]);
}
