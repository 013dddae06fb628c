//! Refusal of snapshots with undamaged bytes and records that no state of this program holds.

use mc_types::{ClusterTime, GrantKey, PutId, PutMode, SegmentEpoch, StoreId};
use smallvec::{SmallVec, smallvec};

use super::frame::ChunkWriter;
use super::record::{
    EndedRecord, HeaderRecord, ObjectRecord, PutRecord, Section, SecurityRecord, SegmentRecord, TrailerRecord,
};
use super::{FORMAT, MAGIC};
use crate::command::{Pin, PlacedReplica, Settings};
use crate::key::IndexKey;
use crate::objects::Replica;
use crate::puts::{Ended, Outcome, PutReplica, shard_of};
use crate::state::State;

/// Reads a snapshot of a header and these records; the header says that two segment numbers have been given out.
fn read(records: impl FnOnce(&mut ChunkWriter<&mut Vec<u8>>)) -> Result<(), String> {
    let mut bytes = MAGIC.to_vec();
    bytes.push(FORMAT);
    let mut chunks = ChunkWriter::new(&mut bytes);
    let settings = Settings::default();
    let header = HeaderRecord {
        time: ClusterTime(1000),
        cluster_version: 0,
        settings,
        next_segment: 2,
        once_share: 0,
        sweep_from: 0,
    };
    chunks.record(Section::Header, &header).unwrap();
    records(&mut chunks);
    let trailer = TrailerRecord { counts: chunks.counts };
    chunks.record(Section::Trailer, &trailer).unwrap();
    chunks.flush().unwrap();
    State::read_snapshot(&mut &bytes[..]).map(drop).map_err(|err| err.to_string())
}

fn assert_refused(read: Result<(), String>, why: &str) {
    let err = read.expect_err(why);
    assert!(err.contains(why), "{err}");
}

fn key() -> IndexKey {
    IndexKey::new("", b"k").unwrap()
}

/// Writes a put whose store is gone.
fn put(segment: u32, replicas: usize) -> impl FnOnce(&mut ChunkWriter<&mut Vec<u8>>) {
    let (store, epoch, number) = (StoreId(1), SegmentEpoch(1), 0);
    let placed = PlacedReplica { store, epoch, segment: number, offset: 0, len: 64, index: 1 };
    let replicas: SmallVec<_> = smallvec![PutReplica { segment, placed }; replicas];
    move |chunks| {
        let (put, key, deadline) = (PutId(1), key(), ClusterTime(2000));
        let record = PutRecord {
            put,
            key: key.bytes(),
            size: 64,
            mode: PutMode::Upsert,
            deadline,
            pin: Pin::NONE,
            data_type: 0,
            group: None,
            replicas,
        };
        chunks.record(Section::Puts, &record).unwrap();
    }
}

#[test]
fn a_put_has_no_more_replicas_than_can_be_asked_for() {
    assert_eq!(read(put(0, 255)), Ok(()));
    assert_refused(read(put(0, 256)), "more replicas");
}

#[test]
fn a_put_lies_in_segments_whose_numbers_were_given_out() {
    assert_eq!(read(put(1, 1)), Ok(()));
    assert_refused(read(put(2, 1)), "not given out yet");
    assert_refused(read(put(u32::MAX, 1)), "not given out yet");
}

fn write_dropped_segment(chunks: &mut ChunkWriter<&mut Vec<u8>>, bytes: u64) {
    let (store, epoch, number) = (StoreId(1), SegmentEpoch(1), 0);
    let record = SegmentRecord { segment: 0, store, epoch, number, bytes, live: false };
    chunks.record(Section::Segments, &record).unwrap();
}

/// Writes an object of 64 B in the dropped segment.
fn write_object(chunks: &mut ChunkWriter<&mut Vec<u8>>, key: &IndexKey, offset: u64) {
    let record = ObjectRecord {
        key: key.bytes(),
        version: PutId(1),
        size: 64,
        checksum: 0,
        reused: 0,
        pin: Pin::NONE,
        data_type: 0,
        group: None,
        replicas: smallvec![Replica { segment: 0, offset, index: 1 }],
    };
    chunks.record(Section::Objects, &record).unwrap();
}

/// Writes a dropped segment of `bytes` bytes with an object at its end.
fn dropped_segment(bytes: u64) -> impl FnOnce(&mut ChunkWriter<&mut Vec<u8>>) {
    move |chunks| {
        write_dropped_segment(chunks, bytes);
        write_object(chunks, &key(), bytes.saturating_sub(64));
    }
}

#[test]
fn a_dropped_segment_has_a_size_that_could_be_mounted() {
    for bytes in [64, 1 << 48] {
        assert_eq!(read(dropped_segment(bytes)), Ok(()));
    }
    for bytes in [0, 63, (1 << 48) + 64, u64::MAX] {
        assert_refused(read(dropped_segment(bytes)), "no store can mount");
    }
}

#[test]
fn two_objects_are_not_in_one_place_however_far_apart_their_records_are() {
    let mut keys = [&b"a"[..], b"b"].map(|key| IndexKey::new("", key).unwrap());
    keys.sort_by_key(|key| (key.shard(), key.hash().order()));
    for is_cut in [false, true] {
        let at = |offsets: [u64; 2]| {
            read(|chunks| {
                write_dropped_segment(chunks, 1 << 20);
                for (key, offset) in keys.iter().zip(offsets) {
                    write_object(chunks, key, offset);
                    if is_cut {
                        chunks.flush().unwrap();
                    }
                }
            })
        };
        assert_eq!(at([0, 64]), Ok(()));
        assert_refused(at([64, 64]), "two replicas in one place");
    }
}

/// Writes ended puts of one shard, half of them past their deadline.
fn ended(puts: usize) -> impl FnOnce(&mut ChunkWriter<&mut Vec<u8>>) {
    move |chunks| {
        let crowd = (1..).map(PutId).filter(|put| shard_of(*put) == 0);
        for (put, n) in crowd.zip(0..puts as u64) {
            let deadline = ClusterTime(999 + 2 * (n % 2));
            let record = EndedRecord { put, ended: Ended { outcome: Outcome::Failed, deadline } };
            chunks.record(Section::Ended, &record).unwrap();
        }
    }
}

#[test]
fn a_shard_has_no_more_ended_puts_than_it_remembers() {
    assert_eq!(read(ended(16)), Ok(()));
    assert_refused(read(ended(17)), "too many ended puts");
}

#[test]
fn a_replaced_key_is_that_of_a_mounted_store() {
    let refused = read(|chunks| {
        let head = SecurityRecord::Head { revision: 0, level: None };
        chunks.record(Section::Security, &head).unwrap();
        let (store, key, until) = (StoreId(1), GrantKey([1; 32]), ClusterTime(2000));
        chunks.record(Section::Security, &SecurityRecord::EarlierKey { store, key, until }).unwrap();
    });
    assert_refused(refused, "a replaced key of a store that is not mounted");
}
