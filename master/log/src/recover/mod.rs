//! Reads the disk when the log opens, and decides whether it may be used.
//!
//! A crash leaves a prefix of what was written (the contract of [`LogDisk`]), so the log may end early by what was not
//! acknowledged yet, and its last record may be torn. Anything else means that the disk lost what it had: a hole, a
//! damaged record with intact ones behind it, an end before the mark, a vote older than what followed it. Those are
//! refused, never repaired: see [`OpenError::Refused`] for why. Everything is checked before anything is changed.

use std::io;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::disk::LogDisk;
use crate::error::{Damage, OpenError, says_damaged};
use crate::record::format::RecordError;
use crate::record::pack::{self, Assembler, LogValueError, ValueKey};
use crate::record::{entry, hard_state};
use crate::types::{Entry, LogId, Vote};
use crate::write::queue::LogContents;
use crate::write::sizes::LogSizes;
use crate::write::tail::Tail;

/// Contents of a log when it was opened.
#[derive(Debug, Clone, Default)]
pub struct Recovered {
    /// The last entry that was purged.
    pub purged: Option<LogId>,
    /// The last entry, or the last purged one when none is left.
    pub last: Option<LogId>,
    /// Vote that was saved last, if any.
    pub vote: Option<Vote>,
    /// The last entry noted as committed.
    pub committed: Option<LogId>,
    /// The torn end that was cut off, if there was one. The caller should log a warning.
    pub truncated: Option<Truncated>,
}

/// A torn end that was cut off: writes that a crash interrupted, of which nothing had been acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the end of the Raft log was torn ({what}): {records} record(s) from index {from} on were cut off. A crash in \
     mid-write leaves that, and nothing in them had been acknowledged"
)]
pub struct Truncated {
    /// The first index that was cut off.
    pub from: u64,
    /// Number of records that were cut off.
    pub records: usize,
    /// Defect of the first record.
    pub what: String,
}

/// Reads the disk, and cuts off a torn end.
pub(crate) fn recover(
    disk: &mut dyn LogDisk,
    tail_bytes: usize,
) -> Result<(LogContents, Recovered), OpenError> {
    let place = disk.place();
    let result = Scan::run(disk, tail_bytes);
    result.map_err(|stop| match stop {
        Unusable::Damage(found) => OpenError::Refused { place, found },
        Unusable::Unreadable(found @ (RecordError::Format { .. } | RecordError::Kind { .. })) => {
            OpenError::Newer { place, found }
        }
        Unusable::Unreadable(found) => {
            let found = Damage::Record { name: "an entry", what: found.to_string() };
            OpenError::Refused { place, found }
        }
        Unusable::Io(source) if says_damaged(&source) => {
            OpenError::Refused { place, found: Damage::Engine { what: source.to_string() } }
        }
        Unusable::Io(source) => OpenError::Io { place, attempt: "read it", source },
    })
}

enum Unusable {
    Damage(Damage),
    Unreadable(RecordError),
    Io(io::Error),
}

impl From<io::Error> for Unusable {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Interval between two log lines about the progress of reading.
const SAY_EVERY: Duration = Duration::from_secs(1);

struct Scan {
    /// Entries below this index were durable, according to the log's mark.
    durable: u64,
    said: Instant,
    committed: Option<LogId>,
    purged: u64,
    next: u64,
    last: Option<LogId>,
    assembler: Assembler,
    tail: Tail,
    sizes: LogSizes,
    torn: Option<(u64, String)>,
    torn_keys: Vec<Vec<u8>>,
}

impl Scan {
    fn run(disk: &mut dyn LogDisk, tail_bytes: usize) -> Result<(LogContents, Recovered), Unusable> {
        let view = disk.view();
        let vote = small(view.get(hard_state::VOTE)?, "the vote", hard_state::decode_vote)?;
        let election_max_ms = vote.map_or(0, |(_, election_max_ms)| election_max_ms);
        let vote = vote.map(|(vote, _)| vote);
        let committed =
            small(view.get(hard_state::COMMITTED)?, "the committed index", hard_state::decode_log_id)?;
        let purged = small(view.get(hard_state::PURGED)?, "the purged index", hard_state::decode_log_id)?;

        // Entries below `first` are purged, even if some of them remain on the disk.
        let first = purged.map_or(0, |id| id.index + 1);
        let mut scan = Self {
            durable: disk.mark().next,
            said: Instant::now(),
            committed,
            purged: first,
            next: first,
            last: purged,
            assembler: Assembler::default(),
            tail: Tail::new(tail_bytes),
            sizes: LogSizes::default(),
            torn: None,
            torn_keys: Vec::new(),
        };
        // Values below the one that can hold `first` are left over from a purge that was interrupted. A pack that
        // begins below `first` may reach beyond it, so it is read. Parts of a purged entry are not: the purge deletes
        // them from the first on, so a crash leaves the last ones alone.
        let start = match view.floor(&ValueKey::last(first))? {
            Some((key, _)) => ValueKey::index_of(&key).unwrap_or(first),
            None => first,
        };
        let mut stop = None;
        view.scan(&ValueKey::pack(start), &mut |key, value| match ValueKey::index_of(key) {
            None => ControlFlow::Break(()),
            Some(index) if ValueKey::is_part(key) && index < first => ControlFlow::Continue(()),
            Some(index) => match scan.visit(index, key, value) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    stop = Some(error);
                    ControlFlow::Break(())
                }
            },
        })?;
        if let Some(stop) = stop {
            return Err(stop);
        }
        if let Some((index, have, parts)) = scan.assembler.incomplete() {
            scan.torn.get_or_insert((index, format!("{have} of {parts} parts of one entry are there")));
            scan.torn_keys.splice(0..0, (0..have).map(|part| ValueKey::part(index, part).to_vec()));
        }
        scan.check_end(vote, committed, disk)?;
        let truncated = scan.cut(disk)?;
        let Self { last, next, tail, sizes, .. } = scan;
        let recovered = Recovered { purged, last, vote, committed, truncated };
        Ok((LogContents { purged, last, next, vote, committed, tail, sizes, election_max_ms }, recovered))
    }

    fn visit(&mut self, index: u64, key: &[u8], value: &[u8]) -> Result<(), Unusable> {
        let piece = match pack::decode(key, value) {
            Ok(piece) => piece,
            Err(LogValueError::Unreadable(found)) => return Err(Unusable::Unreadable(found)),
            Err(LogValueError::Damaged(what)) => {
                self.torn.get_or_insert((index, what));
                self.torn_keys.push(key.to_vec());
                return Ok(());
            }
        };
        if let Some((damaged, what)) = &self.torn {
            let damage = Damage::Middle { index: *damaged, what: what.clone(), intact: index };
            return Err(Unusable::Damage(damage));
        }
        let entries = self.assembler.feed(piece).map_err(|error| match error {
            LogValueError::Unreadable(found) => Unusable::Unreadable(found),
            LogValueError::Damaged(what) => {
                Unusable::Damage(Damage::Middle { index: self.next, what, intact: index })
            }
        })?;
        for entry in entries {
            self.entry(entry)?;
        }
        Ok(())
    }

    fn entry(&mut self, entry: Entry) -> Result<(), Unusable> {
        let id = entry.log_id;
        if id.index < self.purged {
            return Ok(());
        }
        // No writer repeats an index, or writes a lower term after a higher one.
        if id.index != self.next || self.last.is_some_and(|last| last.leader_id > id.leader_id) {
            return Err(Unusable::Damage(Damage::Hole { expected: self.next, found: id.index }));
        }
        if let Some(committed) =
            self.committed.filter(|committed| committed.index == id.index && *committed != id)
        {
            return Err(Unusable::Damage(Damage::Conflict {
                index: id.index,
                term: id.leader_id.term,
                committed: committed.leader_id.term,
            }));
        }
        self.next += 1;
        if self.said.elapsed() >= SAY_EVERY {
            self.said = Instant::now();
            tracing::info!(
                entries = self.next - self.purged,
                of = self.durable.saturating_sub(self.purged),
                "reading the Raft log"
            );
        }
        self.last = Some(id);
        self.sizes.push(id.index, entry::size_hint(&entry) as u64);
        self.tail.push(entry);
        self.tail.evict(self.next);
        Ok(())
    }

    /// Checks that the log reaches as far as it is known to have reached.
    fn check_end(
        &self,
        vote: Option<Vote>,
        committed: Option<LogId>,
        disk: &dyn LogDisk,
    ) -> Result<(), Unusable> {
        let mark = disk.mark();
        let next = self.next;
        if next < mark.next {
            return Err(Unusable::Damage(Damage::EndsEarly { next, durable: mark.next }));
        }
        // The committed index is written after the entries it names: a crash can't keep it and lose them.
        if let Some(committed) = committed.filter(|committed| committed.index >= next) {
            return Err(Unusable::Damage(Damage::Uncommitted { next, committed: committed.index }));
        }
        // A vote is written before the entries of its term.
        let term = vote.map_or(0, |vote| vote.leader_id.term);
        let needed = mark.term.max(self.last.map_or(0, |last| last.leader_id.term));
        if term < needed {
            return Err(Unusable::Damage(Damage::Vote { term, needed }));
        }
        Ok(())
    }

    /// Cuts a torn end off, from the end backward.
    fn cut(&self, disk: &mut dyn LogDisk) -> Result<Option<Truncated>, Unusable> {
        let Some((from, what)) = self.torn.clone() else { return Ok(None) };
        for key in self.torn_keys.iter().rev() {
            disk.delete(key)?;
        }
        disk.flush()?;
        disk.sync()?;
        Ok(Some(Truncated { from, records: self.torn_keys.len(), what }))
    }
}

fn small<T>(
    value: Option<bytes::Bytes>,
    name: &'static str,
    decode: fn(&[u8]) -> Result<T, RecordError>,
) -> Result<Option<T>, Unusable> {
    match value.map(|value| decode(&value)).transpose() {
        Err(found @ RecordError::Format { .. }) => Err(Unusable::Unreadable(found)),
        other => other.map_err(|error| Unusable::Damage(Damage::Record { name, what: error.to_string() })),
    }
}
