//! The smallest log that openraft accepts: one map in memory, which outlives a node that is stopped.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::sync::Arc;

use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use parking_lot::Mutex;
use tokio::sync::watch;

use mc_log::{Entry, LogId, TypeConfig, Vote, encode_payload};

/// Bounded, and never empty, like the real reader.
const MAX_APPEND_BYTES: usize = 2 << 20;

#[derive(Clone, Default)]
pub struct MemLog(Arc<Mutex<Disk>>, Arc<watch::Sender<bool>>);

#[derive(Default)]
struct Disk {
    entries: BTreeMap<u64, Entry>,
    vote: Option<Vote>,
    committed: Option<LogId>,
    purged: Option<LogId>,
}

impl MemLog {
    /// Sets whether entries and votes wait, written and not durable.
    pub fn hold(&self, held: bool) {
        self.1.send_replace(held);
    }

    async fn durable(mut held: watch::Receiver<bool>) {
        held.wait_for(|held| !held).await.expect("the log is there");
    }

    pub fn purged(&self) -> Option<LogId> {
        self.0.lock().purged
    }

    /// Loses the last entry, as a loss of power can if entries are not synced. Returns its id.
    pub fn lose_last(&self) -> Option<LogId> {
        let mut disk = self.0.lock();
        let lost = disk.entries.pop_last().map(|(_, entry)| entry.log_id);
        disk.committed = disk.entries.values().next_back().map(|entry| entry.log_id).min(disk.committed);
        lost
    }

    pub fn vote(&self) -> Option<Vote> {
        self.0.lock().vote
    }

    pub fn bytes_since(&self, index: Option<u64>) -> u64 {
        let from = index.map_or(0, |index| index + 1);
        self.0.lock().entries.range(from..).map(|(_, entry)| encode_payload(entry).len() as u64).sum()
    }
}

impl RaftLogReader<TypeConfig> for MemLog {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + Send>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry>, io::Error> {
        Ok(self.0.lock().entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            let before = bytes;
            bytes += encode_payload(entry).len();
            before == 0 || bytes <= MAX_APPEND_BYTES
        };
        Ok(self
            .0
            .lock()
            .entries
            .range(start..end)
            .map(|(_, entry)| entry)
            .take_while(fits)
            .cloned()
            .collect())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.0.lock().vote)
    }
}

impl RaftLogStorage<TypeConfig> for MemLog {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        let disk = self.0.lock();
        let last = disk.entries.values().next_back().map(|entry| entry.log_id);
        Ok(LogState { last_purged_log_id: disk.purged, last_log_id: last.or(disk.purged) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        self.0.lock().vote = Some(*vote);
        Self::durable(self.1.subscribe()).await;
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        self.0.lock().committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        Ok(self.0.lock().committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + Send,
        I::IntoIter: Send,
    {
        self.0.lock().entries.extend(entries.into_iter().map(|entry| (entry.log_id.index, entry)));
        let held = self.1.subscribe();
        if !*held.borrow() {
            callback.io_completed(Ok(()));
            return Ok(());
        }
        tokio::spawn(async move {
            Self::durable(held).await;
            callback.io_completed(Ok(()));
        });
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> Result<(), io::Error> {
        let from = last.map_or(0, |last| last.index + 1);
        self.0.lock().entries.retain(|index, _| *index < from);
        Ok(())
    }

    async fn purge(&mut self, upto: LogId) -> Result<(), io::Error> {
        let mut disk = self.0.lock();
        disk.purged = Some(upto).max(disk.purged);
        disk.entries.retain(|index, _| *index > upto.index);
        Ok(())
    }
}
