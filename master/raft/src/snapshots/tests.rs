//! Snapshots that were cut off at any step of writing, or that went bad on disk.

mod busy;
mod full;
mod power;

use std::collections::BTreeSet;

use futures::FutureExt;
use mc_index::{CLUSTER_VERSION, Command, Op, Settings, Stamp};
use mc_log::{CommittedLeaderId, Membership, StoredMembership};
use mc_types::{ClusterTime, NodeId};
use metrics::Histogram;
use openraft::storage::RaftStateMachine;
use tempfile::TempDir;

use super::*;
use crate::apply::audit::AuditSink;
use crate::apply::index::{Applied, SharedIndex};
use crate::apply::state_machine::StateMachine;

const CLUSTER: ClusterId = ClusterId(5);

fn log_id(index: u64) -> LogId {
    LogId { leader_id: CommittedLeaderId::new(3), index }
}

fn meta(index: u64) -> SnapshotMeta {
    let membership = Membership::new_with_defaults(vec![BTreeSet::from([NodeId(1), NodeId(2)])], []);
    let last_membership = StoredMembership::new(Some(log_id(1)), membership);
    SnapshotMeta { last_log_id: Some(log_id(index)), last_membership }
}

fn state(index: u64) -> State {
    let mut state = State::new(Settings::default());
    for index in 0..=index {
        let stamp = Stamp { now: ClusterTime(index), ..Stamp::default() };
        state.apply(index, 3, &Command { stamp, op: Op::Tick });
    }
    state
}

fn bytes_of(state: &State) -> Vec<u8> {
    let mut bytes = Vec::new();
    state.write_snapshot(&mut bytes).unwrap();
    bytes
}

/// Returns a directory with good snapshots up to each of `indexes`.
fn with_snapshots(indexes: &[u64]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = SnapshotStore::open(dir.path(), CLUSTER).unwrap();
    for index in indexes {
        store.write(&meta(*index), &state(*index)).unwrap();
    }
    dir
}

fn path(dir: &TempDir, index: u64) -> PathBuf {
    dir.path().join(file_name(Some(&log_id(index))))
}

fn open(dir: &TempDir) -> Result<(SnapshotStore, RecoveredSnapshot), SnapshotError> {
    SnapshotStore::open(dir.path(), CLUSTER)
}

fn recovered_index(recovered: &RecoveredSnapshot) -> Option<u64> {
    recovered.snapshot.as_ref().map(|(meta, state)| {
        let index = meta.last_log_id.unwrap().index;
        assert_eq!(*meta, self::meta(index));
        assert_eq!(bytes_of(state), bytes_of(&self::state(index)));
        index
    })
}

fn names(dir: &TempDir) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A machine that has applied its log up to `index`, and its snapshots.
fn machine(dir: &TempDir, disk: Arc<dyn Disk>, index: u64) -> (StateMachine, SnapshotStore) {
    let (snapshots, _) = SnapshotStore::open_on(disk, dir.path(), CLUSTER).unwrap();
    let SnapshotMeta { last_log_id, last_membership } = meta(index);
    let applied = Applied { state: state(index), last_applied: last_log_id, membership: last_membership };
    (
        StateMachine::new(
            SharedIndex::new(applied),
            snapshots.clone(),
            Histogram::noop(),
            AuditSink::new(drop),
        ),
        snapshots,
    )
}

/// Receives a snapshot up to 30 in two pieces, and installs it.
async fn take_over(machine: &mut StateMachine, snapshots: &SnapshotStore, bytes: &[u8]) -> io::Result<()> {
    let mut incoming = snapshots.receive(meta(30), bytes.len() as u64, ReceivePermit::default())?;
    let (head, tail) = bytes.split_at(20);
    incoming.push(head)?;
    incoming.push(tail)?;
    let file = incoming.finish(&GivenUp::default())?;
    machine.install_snapshot(&meta(30), file).await
}

#[test]
fn the_bytes_around_the_state_never_change() {
    let dir = with_snapshots(&[10]);
    let whole = fs::read(path(&dir, 10)).unwrap();
    let state = bytes_of(&state(10));
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let (head, rest) = whole.split_at(16 + 0x40);
    let golden = concat!(
        "6d632d736e617000",                   // magic
        "00000001",                           // format
        "00000040",                           // length of the header
        "00000000000000000000000000000005",   // cluster
        "010000000000000003000000000000000a", // last log id: term 3, index 10
        "02",                                 // format of the membership
        "0100000000000000030000000000000001", // set by term 3, index 1
        "01020102",                           // one set of two voters
        "02",                                 // two nodes without addresses
        "01000000",
        "02000000",
    );
    assert_eq!(hex(head), golden);
    let (found, trailer) = rest.split_at(state.len());
    assert_eq!(found, state);
    assert_eq!(trailer[..8], (whole.len() as u64).to_be_bytes());
    assert_eq!(trailer[8..], crc32c::crc32c(&whole[..whole.len() - 4]).to_be_bytes());
}

#[test]
fn the_newest_snapshot_is_loaded_and_the_one_before_it_kept() {
    let dir = with_snapshots(&[10, 20, 30]);
    let (store, mut recovered) = open(&dir).unwrap();
    assert_eq!(recovered_index(&recovered), Some(30));
    assert!(recovered.bad.is_empty());
    assert_eq!(names(&dir), [file_name(Some(&log_id(20))), file_name(Some(&log_id(30)))]);
    assert_eq!(store.current().unwrap().0, meta(30));
    assert!(recovered.check_log(Some(&log_id(30))).is_ok());

    let again = store.write(&meta(30), &state(30)).unwrap();
    assert_eq!(again.0, meta(30));
    assert_eq!(store.write(&meta(20), &state(20)).unwrap().0, meta(30), "an older one changes nothing");
    assert_eq!(names(&dir).len(), 2);
}

#[test]
fn an_empty_directory_is_fine_unless_the_log_was_purged() {
    let dir = with_snapshots(&[]);
    let (store, mut recovered) = open(&dir).unwrap();
    assert!(store.current().is_none() && recovered.snapshot.is_none());
    assert!(recovered.check_log(None).is_ok());
    let err = recovered.check_log(Some(&log_id(7))).unwrap_err().to_string();
    assert!(err.contains("index 7") && err.contains("move the data directory away"), "{err}");
}

/// Before the rename, whatever part of the file was written counts for nothing and is removed.
#[test]
fn cut_off_before_the_rename_nothing_has_happened() {
    let dir = with_snapshots(&[10, 20]);
    let whole = fs::read(path(&dir, 20)).unwrap();
    for len in 0..=whole.len() {
        fs::write(dir.path().join(".tmpab12.partial"), &whole[..len]).unwrap();
        let (_, recovered) = open(&dir).unwrap();
        assert_eq!(recovered_index(&recovered), Some(20));
        assert_eq!(names(&dir).len(), 2, "the partial file is gone");
    }
}

/// After the rename of a file whose bytes did not all reach the disk, the previous one is loaded if the log still
/// reaches back to it. Otherwise the node refuses to start and names the file.
#[test]
fn a_newest_snapshot_that_is_cut_short_anywhere_gives_way_to_the_one_before_it() {
    let dir = with_snapshots(&[10, 20]);
    let whole = fs::read(path(&dir, 20)).unwrap();
    for len in 0..whole.len() {
        fs::write(path(&dir, 20), &whole[..len]).unwrap();
        let (_, mut recovered) = open(&dir).unwrap();
        assert_eq!(recovered_index(&recovered), Some(10), "cut to {len} of {} bytes", whole.len());
        assert_eq!(recovered.bad.len(), 1);
        assert!(recovered.check_log(Some(&log_id(10))).is_ok(), "the log goes on at 11");

        let (_, mut recovered) = open(&dir).unwrap();
        let err = recovered.check_log(Some(&log_id(11))).unwrap_err();
        let text = err.to_string();
        assert!(
            matches!(err, SnapshotError::Bad { .. }) && text.contains(path(&dir, 20).to_str().unwrap()),
            "{text}"
        );
        assert!(text.contains("up to 10") && text.contains("Move the data directory away"), "{text}");
    }
}

#[test]
fn a_bit_that_flipped_anywhere_is_noticed() {
    let dir = with_snapshots(&[10, 20]);
    let whole = fs::read(path(&dir, 20)).unwrap();
    for at in 0..whole.len() {
        for bit in [0, 7] {
            let mut altered = whole.clone();
            altered[at] ^= 1 << bit;
            fs::write(path(&dir, 20), &altered).unwrap();
            match open(&dir) {
                Ok((_, recovered)) => {
                    assert_eq!(recovered_index(&recovered), Some(10), "bit {bit} of byte {at}");
                }
                // A higher format number cannot be told from a newer build's file.
                Err(SnapshotError::Refused { defect: Defect::Newer(_), .. }) => {
                    assert!((8..12).contains(&at));
                }
                Err(other) => panic!("bit {bit} of byte {at}: {other}"),
            }
        }
    }
}

/// Entries of such a cluster are refused one by one. Its snapshot has their effects.
#[test]
fn a_snapshot_of_a_cluster_whose_version_this_build_does_not_support_is_refused() {
    let newer = |index| {
        let mut state = state(index);
        let op = Op::SetClusterVersion(CLUSTER_VERSION + 1);
        state.apply(index + 1, 3, &Command { stamp: Stamp::default(), op });
        state
    };
    let (dir, sender) = (with_snapshots(&[10]), with_snapshots(&[]));
    let (store, _) = open(&dir).unwrap();
    let (meta, file) = open(&sender).unwrap().0.write(&meta(20), &newer(20)).unwrap();
    let refusals = [store.install(&meta, &file).err(), open(&dir).err()];
    for refused in refusals {
        let refused = refused.unwrap();
        assert!(
            matches!(refused, SnapshotError::Refused { defect: Defect::NewerCluster(_), .. }),
            "{refused}"
        );
        assert!(refused.to_string().contains("start a newer build"), "{refused}");
    }
}

#[test]
fn with_no_good_snapshot_at_all_only_a_whole_log_helps() {
    let dir = with_snapshots(&[10, 20]);
    for index in [10, 20] {
        fs::write(path(&dir, index), b"").unwrap();
    }
    let (_, mut recovered) = open(&dir).unwrap();
    assert_eq!((recovered_index(&recovered), recovered.bad.len()), (None, 2));
    assert!(recovered.check_log(None).is_ok());
    assert!(recovered.check_log(Some(&log_id(0))).is_err());
}

#[test]
fn a_bad_snapshot_stays_until_there_is_a_newer_good_one() {
    let dir = with_snapshots(&[10, 30]);
    fs::write(path(&dir, 30), b"bad").unwrap();
    let (store, recovered) = open(&dir).unwrap();
    assert_eq!(recovered_index(&recovered), Some(10));
    assert!(path(&dir, 30).exists());
    store.write(&meta(20), &state(20)).unwrap();
    assert_eq!(names(&dir), [file_name(Some(&log_id(10))), file_name(Some(&log_id(20)))]);

    // A snapshot of the same name is replaced, not deleted afterwards.
    fs::write(path(&dir, 20), b"bad").unwrap();
    let (store, _) = open(&dir).unwrap();
    store.write(&meta(20), &state(20)).unwrap();
    assert_eq!(recovered_index(&open(&dir).unwrap().1), Some(20));
}

#[test]
fn another_clusters_snapshot_and_a_newer_builds_are_refused() {
    let dir = with_snapshots(&[10]);
    let err = SnapshotStore::open(dir.path(), ClusterId(6)).unwrap_err().to_string();
    assert!(err.contains(&CLUSTER.to_string()) && err.contains(&ClusterId(6).to_string()), "{err}");

    let mut newer = fs::read(path(&dir, 10)).unwrap();
    newer[11] = 2;
    fs::write(path(&dir, 10), newer).unwrap();
    let err = open(&dir).unwrap_err().to_string();
    assert!(err.contains("format 2 is newer"), "{err}");
}

#[test]
fn a_received_snapshot_counts_when_it_is_whole_and_what_was_announced() {
    let sender = with_snapshots(&[10]);
    let (sender, _) = open(&sender).unwrap();
    let (_, sent) = sender.current().unwrap();
    let dir = with_snapshots(&[]);
    let (store, _) = open(&dir).unwrap();
    let receive = |meta: SnapshotMeta, pieces: &[&[u8]]| {
        let mut incoming = store.receive(meta, sent.len(), ReceivePermit::default())?;
        for piece in pieces {
            incoming.push(piece)?;
        }
        incoming.finish(&GivenUp::default())
    };
    let bytes = sent.read_piece(0, usize::MAX).unwrap();
    let (head, tail) = bytes.split_at(20);

    assert!(matches!(receive(meta(10), &[head]), Err(SnapshotError::NotAsSent(_))));
    assert!(matches!(receive(meta(11), &[head, tail]), Err(SnapshotError::NotAsSent(_))));
    assert!(receive(meta(10), &[head, tail, b"x"]).is_err());
    let mut altered = tail.to_vec();
    altered[30] ^= 1;
    assert!(matches!(receive(meta(10), &[head, &altered]), Err(SnapshotError::NotAsSent(_))));
    drop(receive(meta(10), &[head, tail]).unwrap());
    assert!(names(&dir).is_empty(), "nothing of all that stays: {:?}", names(&dir));

    let file = receive(meta(10), &[head, tail]).unwrap();
    let installed = store.install(&meta(10), &file).unwrap();
    assert_eq!(bytes_of(&installed.state), bytes_of(&state(10)));
    assert_eq!(recovered_index(&open(&dir).unwrap().1), Some(10));
}

#[test]
fn a_snapshot_can_be_read_to_its_end_after_its_name_is_gone() {
    let dir = with_snapshots(&[10]);
    let (store, _) = open(&dir).unwrap();
    let (_, old) = store.current().unwrap();
    store.write(&meta(20), &state(20)).unwrap();
    store.write(&meta(30), &state(30)).unwrap();
    assert!(!path(&dir, 10).exists());
    assert_eq!(old.read_piece(0, usize::MAX).unwrap().len() as u64, old.len());
    assert!(old.read_piece(old.len(), 10).unwrap().is_empty());
}

/// Each may have an index in memory, and there is memory for one beside the live one.
#[tokio::test]
async fn a_reception_ends_when_nothing_of_it_is_left() {
    let sender = with_snapshots(&[20, 30]);
    let (dir, disk) = (with_snapshots(&[10]), Arc::new(FileSystem));
    let (mut machine, snapshots) = machine(&dir, disk, 10);
    let receive = async |index| {
        let bytes = fs::read(path(&sender, index)).unwrap();
        let permit = snapshots.receive_permit().now_or_never().expect("nothing is being received");
        let mut incoming = snapshots.receive(meta(index), bytes.len() as u64, permit).unwrap();
        let is_taken = || snapshots.receive_permit().now_or_never().is_none();
        incoming.push(&bytes).unwrap();
        assert!(is_taken());
        let file = incoming.finish(&GivenUp::default()).unwrap();
        assert!(is_taken());
        file
    };
    drop(receive(20).await);
    let file = receive(20).await;
    machine.install_snapshot(&meta(20), file).await.unwrap();

    let file = receive(30).await;
    let installed = snapshots.install(&meta(30), &file).unwrap();
    drop(file);
    assert!(snapshots.receive_permit().now_or_never().is_none(), "the index that it replaces is there yet");
    drop(installed);
    drop(receive(30).await);
}

#[test]
fn a_snapshot_that_was_given_up_is_not_read_to_its_end() {
    let sender = with_snapshots(&[30]);
    let bytes = fs::read(path(&sender, 30)).unwrap();
    let dir = with_snapshots(&[10]);
    let (store, _) = open(&dir).unwrap();
    let mut incoming = store.receive(meta(30), bytes.len() as u64, ReceivePermit::default()).unwrap();
    incoming.push(&bytes).unwrap();
    let given_up = GivenUp::default();
    given_up.set();
    let err = incoming.finish(&given_up).unwrap_err().to_string();
    assert!(err.contains("given up"), "{err}");
    assert_eq!(names(&dir), [file_name(Some(&log_id(10)))]);
}
