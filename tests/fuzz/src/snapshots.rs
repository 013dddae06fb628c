//! Snapshots.

use mc_index::{Command, Op, Settings, State};
use mc_log::encode_membership;
use mc_master::fuzz::CLUSTER;

use crate::log::{golden, stored_membership};

/// The index in a snapshot: with something in every section, and small.
pub(crate) fn indexes() -> Vec<Vec<u8>> {
    [golden("snapshot"), vec![small_index()]].concat()
}

/// The index after one store was mounted.
fn small_index() -> Vec<u8> {
    let mut state = State::new(Settings::default());
    for command in golden("command").iter().filter_map(|command| Command::decode(command).ok()) {
        if matches!(command.op, Op::MountStore(_)) {
            state.apply(1, command.stamp.term, &command);
        }
    }
    let mut bytes = Vec::new();
    state.write_snapshot(&mut bytes).expect("memory takes everything");
    bytes
}

/// Whole files, without length and checksum at their end.
pub(crate) fn files() -> Vec<Vec<u8>> {
    let log_id = [&[1u8][..], &3u64.to_be_bytes(), &7u64.to_be_bytes()].concat();
    let header = [&CLUSTER.to_bytes()[..], &log_id, &encode_membership(&stored_membership())].concat();
    let header_len = u32::try_from(header.len()).expect("a few bytes").to_be_bytes();
    let prefix = [&b"mc-snap\0"[..], &1u32.to_be_bytes(), &header_len].concat();
    vec![[prefix, header, small_index(), vec![0; 12]].concat()]
}
