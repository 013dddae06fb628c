//! Everything here that reads bytes of others, each behind one function that takes any bytes and must neither panic nor
//! ask for memory out of proportion; where something was read, writing and reading it again must give the same.
//!
//! ```text
//! cargo test -p mc-fuzz                                                        # mutated valid inputs, fixed seeds
//! cargo +nightly fuzz run --fuzz-dir tests/fuzz --features libfuzzer command   # as long as you like
//! ```

use std::ffi::OsString;
use std::hint::black_box;

use clap::CommandFactory as _;
use mc_base::{ByteSize, Grant, GrantKey, HostPort, Span};
use mc_master::config::MasterArgs;
use mc_master::log::{decode_entry, decode_membership, encode_membership, encode_payload};
use mc_master::peers::PeerList;
use mc_master::raft::LogId;
use mc_master::state::{Command, State};
use mc_proto::v1;
use prost::Message;

/// A command of the log.
pub fn command(data: &[u8]) {
    if let Ok(command) = Command::decode(data) {
        let again = Command::decode(&command.encode());
        assert_eq!(again.as_ref(), Ok(&command), "what was decoded encodes to itself");
        // Whatever a command says, applying it ends with an answer.
        let mut state = State::new(mc_master::state::Settings::default());
        black_box(state.apply(1, command.stamp.term, &command));
        black_box(state.apply(2, command.stamp.term, &command));
    }
}

/// The payload of a log entry.
pub fn entry(data: &[u8]) {
    let id = LogId::new_term_index(3, 7);
    if let Ok(entry) = decode_entry(id, data) {
        assert_eq!(&encode_payload(&entry)[..], data, "there is one way to write an entry");
    }
}

/// An append from another master.
pub fn append(data: &[u8]) {
    if let Ok(request) = v1::AppendRequest::decode(data) {
        mc_master::fuzz::append(&request);
    }
}

/// A value of the log's database, with its checksum made right.
pub fn piece(data: &[u8]) {
    mc_master::fuzz::piece(data);
}

/// A membership, as snapshots and entries hold it.
pub fn membership(data: &[u8]) {
    if let Ok(membership) = decode_membership(data) {
        assert_eq!(decode_membership(&encode_membership(&membership)).ok(), Some(membership));
    }
}

/// The index in a snapshot.
pub fn snapshot(data: &[u8]) {
    if let Ok(state) = State::read_snapshot(&mut &*data) {
        let mut again = Vec::new();
        state.write_snapshot(&mut again).expect("memory takes everything");
        State::read_snapshot(&mut &again[..]).expect("what was written is read");
    }
}

/// Messages of clients, stores and masters. The first byte chooses which.
pub fn rpc(data: &[u8]) {
    fn read<M: Message + Default>(data: &[u8]) {
        drop(black_box(M::decode(data)));
    }
    let Some((which, body)) = data.split_first() else { return };
    match which % 8 {
        0 => read::<v1::BatchPutStartRequest>(body),
        1 => read::<v1::BatchPutEndRequest>(body),
        2 => read::<v1::BatchGetReply>(body),
        3 => read::<v1::MountStoreRequest>(body),
        4 => read::<v1::SnapshotPiece>(body),
        5 => read::<v1::MeetReply>(body),
        6 => read::<v1::ErrorDetail>(body),
        _ => read::<v1::StatusReply>(body),
    }
}

/// Frames of the transfer protocol.
pub fn frames(data: &[u8]) {
    mc_transfer::fuzz::frames(data);
}

/// A grant that a client presents.
pub fn grant(data: &[u8]) {
    drop(black_box(Grant::open(data, &GrantKey([7; 32]))));
}

/// Sizes, durations, addresses and lists as people write them.
pub fn text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    drop(black_box(text.parse::<ByteSize>()));
    drop(black_box(text.parse::<Span>()));
    if let Ok(address) = HostPort::parse(text, 50055) {
        assert_eq!(HostPort::parse(&address.to_string(), 1).as_ref(), Ok(&address), "an address reads back");
    }
    drop(black_box(PeerList::parse(&[text], None)));
}

/// A configuration file.
pub fn config(data: &[u8]) {
    let Ok(mut file) = tempfile::NamedTempFile::new() else { return };
    if std::io::Write::write_all(&mut file, data).is_err() {
        return;
    }
    let args = ["mc-master".into(), "--config".into(), file.path().as_os_str().to_owned()];
    let loaded = mc_base::config::load::<MasterArgs>(MasterArgs::command(), args, |_| None::<OsString>);
    if let Ok(loaded) = loaded {
        drop(black_box(loaded.args.check()));
    }
}
