//! The log's values on disk: packs of entries, and the numbered parts of an entry too large for a pack.
//!
//! ```text
//! key 'L' index u64                 a pack of entries, the first of them with that index
//! key 'L' index u64, part u32       a part of the record of that entry
//! value  := format u8 (= 2), kind u8, first index u64, count u32, part u32, crc32c u32, body
//! pack   := kind 1, count entries, part 0;  body { length u32, record }
//! part   := kind 2, count parts in all, part from 0;  body: a piece of the record
//! ```
//! The checksum covers the header before it and the body. Integers are big-endian, so keys sort by index.

use std::io;

use bytes::{BufMut, Bytes, BytesMut};

use super::entry;
use super::format::{FORMAT, RecordError, check_format};
use super::wire::{FieldReader, put_len};
use crate::types::Entry;

pub(crate) const HEADER: usize = 22;
pub(crate) const CRC_AT: usize = 18;
const PACK: u8 = 1;
const PART: u8 = 2;

/// The first byte of the keys of packs and parts.
pub(crate) const LOG: u8 = b'L';

/// Key of a pack or of a part.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ValueKey {
    bytes: [u8; 13],
    len: usize,
}

impl ValueKey {
    pub(crate) fn pack(index: u64) -> Self {
        Self { len: 9, ..Self::part(index, 0) }
    }

    pub(crate) fn part(index: u64, part: u32) -> Self {
        let mut bytes = [0; 13];
        bytes[0] = LOG;
        bytes[1..9].copy_from_slice(&index.to_be_bytes());
        bytes[9..].copy_from_slice(&part.to_be_bytes());
        Self { bytes, len: 13 }
    }

    /// Returns the greatest key that an entry of this index can have.
    pub(crate) fn last(index: u64) -> Self {
        Self::part(index, u32::MAX)
    }

    /// Returns the index in a key of the log; `None` for any other key.
    pub(crate) fn index_of(key: &[u8]) -> Option<u64> {
        let index = key.strip_prefix(&[LOG])?.get(..8)?;
        (key.len() == 9 || key.len() == 13).then_some(u64::from_be_bytes(index.try_into().ok()?))
    }

    /// Whether a key of the log is that of a part.
    pub(crate) fn is_part(key: &[u8]) -> bool {
        key.len() == 13
    }
}

impl std::ops::Deref for ValueKey {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Error of reading a value of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LogValueError {
    /// The value does not match its checksum, its length or its key. It is torn or damaged.
    Damaged(String),
    /// The value is whole, but this build cannot read it.
    Unreadable(RecordError),
}

/// One value of the log.
pub(crate) enum LogValue {
    Pack(Vec<Entry>),
    Part { index: u64, part: u32, parts: u32, bytes: Bytes },
}

/// Cuts entries, in order, into values of at most `cap` bytes, and hands each over with its key. Returns the bytes.
pub(crate) fn encode(
    entries: &[&Entry],
    cap: usize,
    mut emit: impl FnMut(&[u8], &[u8]) -> io::Result<()>,
) -> io::Result<u64> {
    let mut written = 0;
    let mut emit = |key: ValueKey, value: &[u8]| {
        written += value.len() as u64;
        emit(&key, value)
    };
    let mut pack = PackBuilder::default();
    let mut record = BytesMut::new();
    for entry in entries {
        record.clear();
        entry::put_record(&mut record, entry);
        if pack.count > 0 && pack.value.len() + 4 + record.len() > cap {
            emit(ValueKey::pack(pack.first), pack.finish())?;
        }
        let index = entry.log_id.index;
        if HEADER + 4 + record.len() > cap {
            let chunks = record.chunks(cap - HEADER);
            let parts = u32::try_from(chunks.len()).map_err(io::Error::other)?;
            for (part, chunk) in (0..).zip(chunks) {
                emit(ValueKey::part(index, part), &seal(PART, index, parts, part, chunk))?;
            }
        } else {
            pack.push(index, &record);
        }
    }
    if pack.count > 0 {
        emit(ValueKey::pack(pack.first), pack.finish())?;
    }
    Ok(written)
}

#[derive(Default)]
struct PackBuilder {
    value: BytesMut,
    first: u64,
    count: u32,
}

impl PackBuilder {
    fn push(&mut self, index: u64, record: &[u8]) {
        if self.count == 0 {
            self.first = index;
            self.value.clear();
            self.value.put_bytes(0, HEADER);
        }
        self.count += 1;
        put_len(&mut self.value, record.len());
        self.value.put_slice(record);
    }

    fn finish(&mut self) -> &[u8] {
        write_header(&mut self.value, PACK, self.first, self.count, 0);
        self.count = 0;
        &self.value
    }
}

fn seal(kind: u8, first: u64, count: u32, part: u32, body: &[u8]) -> BytesMut {
    let mut value = BytesMut::zeroed(HEADER);
    value.put_slice(body);
    write_header(&mut value, kind, first, count, part);
    value
}

fn write_header(value: &mut [u8], kind: u8, first: u64, count: u32, part: u32) {
    value[0] = FORMAT;
    value[1] = kind;
    value[2..10].copy_from_slice(&first.to_be_bytes());
    value[10..14].copy_from_slice(&count.to_be_bytes());
    value[14..CRC_AT].copy_from_slice(&part.to_be_bytes());
    let crc = checksum(value);
    value[CRC_AT..HEADER].copy_from_slice(&crc.to_be_bytes());
}

pub(crate) fn checksum(value: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&value[..CRC_AT]), &value[HEADER..])
}

/// Whether all entries of a value lie at or below `upto`. Reads the header alone: the caller only decides what to
/// delete.
pub(crate) fn ends_by(value: &[u8], upto: u64) -> bool {
    if value.len() < HEADER {
        return false;
    }
    let mut reader = FieldReader::new(&value[1..]);
    match (reader.u8(), reader.u64(), reader.u32()) {
        (Ok(PACK), Ok(first), Ok(count)) => first.saturating_add(u64::from(count)) <= upto.saturating_add(1),
        (Ok(PART), Ok(index), Ok(_)) => index <= upto,
        _ => false,
    }
}

/// Reads one value and checks it against its key.
pub(crate) fn decode(key: &[u8], value: &[u8]) -> Result<LogValue, LogValueError> {
    let damaged = |what: &str| LogValueError::Damaged(what.to_owned());
    if value.len() < HEADER {
        return Err(damaged("it is shorter than a header"));
    }
    let (header, body) = value.split_at(HEADER);
    let stored = u32::from_be_bytes([header[18], header[19], header[20], header[21]]);
    if checksum(value) != stored {
        return Err(damaged("its checksum does not match"));
    }
    // From here on the bytes are those that were written. A value that cannot be read is of another build, not torn.
    let unreadable = LogValueError::Unreadable;
    let mut reader = FieldReader::new(header);
    check_format(reader.u8().map_err(unreadable)?).map_err(LogValueError::Unreadable)?;
    let kind = reader.u8().map_err(LogValueError::Unreadable)?;
    let first = reader.u64().map_err(LogValueError::Unreadable)?;
    let count = reader.u32().map_err(LogValueError::Unreadable)?;
    let part = reader.u32().map_err(LogValueError::Unreadable)?;
    let body = Bytes::copy_from_slice(body);
    match kind {
        PACK if *key == *ValueKey::pack(first) => {
            decode_pack(first, count, &body).map(LogValue::Pack).map_err(LogValueError::Unreadable)
        }
        PART if *key == *ValueKey::part(first, part) => {
            Ok(LogValue::Part { index: first, part, parts: count, bytes: body })
        }
        PACK | PART => Err(damaged("it is stored under the key of another record")),
        found => Err(LogValueError::Unreadable(RecordError::Kind { found })),
    }
}

fn decode_pack(first: u64, count: u32, body: &Bytes) -> Result<Vec<Entry>, RecordError> {
    let mut reader = FieldReader::new(body);
    let mut entries = Vec::with_capacity((count as usize).min(body.len() / 4));
    let mut at = 0;
    let end = first.checked_add(count.into()).ok_or(RecordError::Order)?;
    for index in first..end {
        let len = reader.u32()? as usize;
        reader.bytes(len)?;
        at += 4;
        let entry = entry::read_record(&body.slice(at..at + len))?;
        at += len;
        if entry.log_id.index != index {
            return Err(RecordError::Order);
        }
        entries.push(entry);
    }
    reader.end()?;
    Ok(entries)
}

/// Joins parts to entries. It takes the pieces in the order of their keys.
#[derive(Default)]
pub(crate) struct Assembler {
    pending: Option<PendingParts>,
}

struct PendingParts {
    index: u64,
    parts: u32,
    next: u32,
    record: BytesMut,
}

impl Assembler {
    /// Takes a piece and returns the entries it completes (none while parts are missing). An error names an entry
    /// whose parts do not follow one another although the piece itself is whole.
    pub(crate) fn feed(&mut self, piece: LogValue) -> Result<Vec<Entry>, LogValueError> {
        match (piece, self.pending.take()) {
            (LogValue::Pack(entries), None) => Ok(entries),
            (LogValue::Part { index, part: 0, parts, bytes }, None) => {
                self.pending =
                    Some(PendingParts { index, parts, next: 1, record: BytesMut::from(&bytes[..]) });
                self.complete()
            }
            (LogValue::Part { index, part, parts, bytes }, Some(mut pending))
                if (index, part, parts) == (pending.index, pending.next, pending.parts) =>
            {
                pending.next += 1;
                pending.record.extend_from_slice(&bytes);
                self.pending = Some(pending);
                self.complete()
            }
            (LogValue::Part { index, part, .. }, None) => {
                Err(LogValueError::Damaged(format!("part {part} of entry {index} has no part before it")))
            }
            (_, Some(pending)) => Err(LogValueError::Damaged(format!(
                "entry {} has {} of its {} parts",
                pending.index, pending.next, pending.parts
            ))),
        }
    }

    fn complete(&mut self) -> Result<Vec<Entry>, LogValueError> {
        match self.pending.take_if(|pending| pending.next >= pending.parts) {
            None => Ok(Vec::new()),
            Some(pending) => {
                let entry =
                    entry::read_record(&pending.record.freeze()).map_err(LogValueError::Unreadable)?;
                if entry.log_id.index != pending.index {
                    return Err(LogValueError::Unreadable(RecordError::Order));
                }
                Ok(vec![entry])
            }
        }
    }

    /// Returns the entry of which parts are missing, with the number of parts that are there and of all.
    pub(crate) fn incomplete(&self) -> Option<(u64, u32, u32)> {
        self.pending.as_ref().map(|pending| (pending.index, pending.next, pending.parts))
    }
}
