//! Entries and votes for the tests of the log.
#![allow(dead_code, reason = "each test binary uses a part")]

use bytes::Bytes;
use mc_log::{Entry, LogId, LogStore, Proposal, TypeConfig, Vote};
use mc_types::NodeId;
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use openraft::{EntryPayload, RaftLogReader};

pub(crate) type Flushed = tokio::sync::oneshot::Receiver<Result<(), std::io::Error>>;

pub(crate) fn id(term: u64, index: u64) -> LogId {
    LogId::new_term_index(term, index)
}

pub(crate) fn vote(term: u64) -> Vote {
    Vote::new(term, NodeId(7))
}

/// An entry whose bytes follow from its place.
pub(crate) fn entry(term: u64, index: u64, bytes: usize) -> Entry {
    let body: Vec<u8> = (0..bytes as u64).map(|at| (term ^ index.wrapping_mul(31) ^ at) as u8).collect();
    Entry { log_id: id(term, index), payload: EntryPayload::Normal(Proposal(Bytes::from(body))) }
}

pub(crate) fn entries(term: u64, from: u64, count: u64, bytes: usize) -> Vec<Entry> {
    (from..from + count).map(|index| entry(term, index, bytes)).collect()
}

/// Appends; the receiver gets what the callback gets.
pub(crate) async fn append(
    store: &mut LogStore,
    entries: impl IntoIterator<Item = Entry, IntoIter: Send> + Send,
) -> Flushed {
    let (sender, flushed) = TypeConfig::oneshot();
    drop(store.append(entries, IOFlushed::signal(sender)).await);
    flushed
}

pub(crate) async fn indexes(store: &mut LogStore, range: std::ops::Range<u64>) -> Vec<u64> {
    store.reader().try_get_log_entries(range).await.unwrap().iter().map(|entry| entry.log_id.index).collect()
}
