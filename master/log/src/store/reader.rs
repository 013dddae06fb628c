//! Reads the log: the newest entries from memory, older ones from the disk.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use futures::Stream;
use openraft::{OptionalSend, RaftLogReader};
use tokio::sync::oneshot;

use super::handle::LogHandle;
use super::read_path::{ReadJob, ReadPath};
use crate::disk::packs;
use crate::types::{Entry, TypeConfig, Vote};

/// Reader of the log. There may be any number of them.
#[derive(Clone)]
pub struct LogReader {
    pub(crate) handle: Arc<LogHandle>,
}

impl LogReader {
    /// The entries from `from` on, below `to`, up to about `max_bytes`, at least one if `from` is there. They follow
    /// one another and begin with `from`, or after what has been purged.
    async fn read(&self, from: u64, to: u64, max_bytes: usize) -> io::Result<Vec<Entry>> {
        loop {
            let (generation, from, disk_to, newer) = {
                let state = self.handle.queue.state();
                let (from, to) = (from.max(state.first), to.min(state.next));
                let tail = state.tail.first().unwrap_or(state.next);
                if from >= to || from >= tail {
                    return Ok(state.tail.read(from, to, max_bytes));
                }
                // Read both parts of one moment: the entries are shared, not copied.
                (state.generation, from, to.min(tail), state.tail.read(tail, to, max_bytes))
            };
            let mut entries = self.read_disk(from, disk_to, max_bytes).await?;
            let state = self.handle.queue.state();
            if state.generation != generation {
                continue; // the end was cut meanwhile: what was read may be from both sides of the cut
            }
            let first = state.first.max(from);
            drop(state);
            entries.retain(|entry| entry.log_id.index >= first);
            let got = entries.last().map_or(first, |entry| entry.log_id.index + 1);
            let whole = entries.first().is_none_or(|entry| entry.log_id.index == first);
            let limited = got < disk_to && max_bytes < usize::MAX && !entries.is_empty();
            if !whole || (got < disk_to && !limited) {
                let what = format!(
                    "the disk lacks some of the entries {first} to {disk_to}: it returned those to {got}"
                );
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            if max_bytes == usize::MAX {
                entries.extend(newer.into_iter().filter(|entry| entry.log_id.index >= first));
            }
            return Ok(entries);
        }
    }

    async fn read_disk(&self, from: u64, to: u64, max_bytes: usize) -> io::Result<Vec<Entry>> {
        let closed = || io::Error::other("the Raft log has been closed");
        let answer = match &*self.handle.read_path.lock() {
            None => return Err(closed()),
            Some(ReadPath::Inline(view)) => return packs::read(&**view, from, to, max_bytes),
            Some(ReadPath::Thread(jobs)) => {
                let (reply, answer) = oneshot::channel();
                jobs.send(ReadJob { from, to, max_bytes, reply }).map_err(|_| closed())?;
                answer
            }
        };
        answer.await.map_err(|_| closed())?
    }

    fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
        let from = match range.start_bound() {
            Bound::Included(from) => *from,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(to) => *to,
            Bound::Unbounded => u64::MAX,
        };
        (from, to)
    }
}

impl RaftLogReader<TypeConfig> for LogReader {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> Result<Vec<Entry>, io::Error>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = Self::bounds(&range);
        self.read(from, to, usize::MAX).await
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.handle.queue.state().vote)
    }

    /// Returns at least one entry while the one at `start` exists, and none once that is purged. Then openraft sends a
    /// heartbeat and asks again. Later entries would be wrong: openraft would assume that they follow the previous
    /// message.
    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        let mut entries = self.read(start, end, self.handle.read_bytes).await?;
        if entries.first().is_some_and(|entry| entry.log_id.index != start) {
            entries.clear();
        }
        Ok(entries)
    }

    /// In pieces, so that applying a long log holds little of it in memory.
    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl Stream<Item = Result<Entry, io::Error>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = Self::bounds(&range);
        let (from, to) = {
            let state = self.handle.queue.state();
            (from.max(state.first), to.min(state.next))
        };
        let piece = (self.clone(), from, Vec::new().into_iter());
        futures::stream::unfold(Some(piece), move |piece| async move {
            let (reader, from, mut entries) = piece?;
            if entries.as_slice().is_empty() {
                if from >= to {
                    return None;
                }
                match reader.read(from, to, reader.handle.read_bytes).await {
                    Ok(read) if read.first().is_some_and(|entry| entry.log_id.index == from) => {
                        entries = read.into_iter();
                    }
                    Ok(_) => {
                        let what = format!("entry {from} was removed while the log was read");
                        return Some((Err(io::Error::new(io::ErrorKind::NotFound, what)), None));
                    }
                    Err(error) => return Some((Err(error), None)),
                }
            }
            let entry = entries.next()?;
            Some((Ok(entry), Some((reader, from + 1, entries))))
        })
    }
}
