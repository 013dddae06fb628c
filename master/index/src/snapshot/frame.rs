use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use super::SnapshotError;
use super::record::Section;

/// Maximum bytes of a chunk's payload.
pub(crate) const CHUNK_MAX: usize = 64 << 10;
/// Bytes of a chunk's head: section, length, checksum.
const HEAD: usize = 1 + 4 + 4;

/// Corrects the checksums of a snapshot's chunks, for tests/fuzz.
#[cfg(feature = "testing")]
pub fn seal_chunks(snapshot: &mut [u8]) {
    let mut chunks = snapshot.get_mut(super::MAGIC.len() + 1..).unwrap_or_default();
    while let Some((head, rest)) = chunks.split_first_chunk_mut::<HEAD>() {
        let len = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
        let Some((payload, next)) = rest.split_at_mut_checked(len as usize) else { return };
        let crc = checksum(&head[..5], payload);
        head[5..].copy_from_slice(&crc.to_le_bytes());
        chunks = next;
    }
}

/// Collects records into chunks.
pub(super) struct ChunkWriter<W> {
    out: W,
    section: Section,
    /// Space for the head, then the payload.
    chunk: Vec<u8>,
    record: Vec<u8>,
    pub(super) counts: [u64; Section::COUNT],
}

impl<W: Write> ChunkWriter<W> {
    pub(super) fn new(out: W) -> Self {
        let chunk = vec![0; HEAD];
        Self { out, section: Section::Header, chunk, record: Vec::new(), counts: [0; Section::COUNT] }
    }

    /// Adds one record. Sections must come in their order.
    pub(super) fn record(&mut self, section: Section, record: &impl Serialize) -> io::Result<()> {
        self.record.clear();
        self.record =
            postcard::to_extend(record, std::mem::take(&mut self.record)).map_err(io::Error::other)?;
        if self.record.len() > CHUNK_MAX {
            return Err(io::Error::other(format!("a record of {} B exceeds a chunk", self.record.len())));
        }
        if section != self.section || self.chunk.len() + self.record.len() > HEAD + CHUNK_MAX {
            self.flush()?;
            self.section = section;
        }
        self.chunk.extend_from_slice(&self.record);
        self.counts[section.place()] += 1;
        Ok(())
    }

    /// Writes the chunk that is being filled, if there is one.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.chunk.len() == HEAD {
            return Ok(());
        }
        let len = u32::try_from(self.chunk.len() - HEAD).map_err(io::Error::other)?;
        self.chunk[0] = self.section.number();
        self.chunk[1..5].copy_from_slice(&len.to_le_bytes());
        let crc = checksum(&self.chunk[..5], &self.chunk[HEAD..]);
        self.chunk[5..HEAD].copy_from_slice(&crc.to_le_bytes());
        self.out.write_all(&self.chunk)?;
        self.chunk.truncate(HEAD);
        Ok(())
    }
}

fn checksum(head: &[u8], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(head), payload)
}

/// Reads chunks back, one at a time, into one buffer.
pub(super) struct ChunkReader<R> {
    input: R,
    section: Section,
    payload: Vec<u8>,
}

impl<R: Read> ChunkReader<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, section: Section::Header, payload: Vec::new() }
    }

    /// Reads the next chunk.
    pub(super) fn next(&mut self) -> Result<(Section, &[u8]), SnapshotError> {
        let mut head = [0; HEAD];
        read_exact(&mut self.input, &mut head, self.section)?;
        let [number, l0, l1, l2, l3, c0, c1, c2, c3] = head;
        let corrupt = |why: String| SnapshotError::Corrupt { section: self.section.name(), why };
        let section = Section::from_number(number)
            .filter(|&section| section >= self.section)
            .ok_or_else(|| corrupt(format!("section {number} follows it")))?;
        let len = usize::try_from(u32::from_le_bytes([l0, l1, l2, l3])).unwrap_or(usize::MAX);
        if !(1..=CHUNK_MAX).contains(&len) {
            return Err(corrupt(format!("a chunk of {len} B")));
        }
        self.section = section;
        self.payload.resize(len, 0);
        read_exact(&mut self.input, &mut self.payload, section)?;
        if checksum(&head[..5], &self.payload) != u32::from_le_bytes([c0, c1, c2, c3]) {
            let why = "a chunk's checksum does not match".to_owned();
            return Err(SnapshotError::Corrupt { section: section.name(), why });
        }
        Ok((section, &self.payload))
    }
}

/// Like [`Read::read_exact`], but reports an early end of the input as damage of that section.
pub(super) fn read_exact(
    input: &mut impl Read,
    buffer: &mut [u8],
    section: Section,
) -> Result<(), SnapshotError> {
    input.read_exact(buffer).map_err(|err| match err.kind() {
        io::ErrorKind::UnexpectedEof => {
            SnapshotError::Corrupt { section: section.name(), why: "it ends too early".to_owned() }
        }
        _ => SnapshotError::Io(err),
    })
}

/// Decodes the records of a chunk one after the other and returns their number.
pub(super) fn each<'a, T: Deserialize<'a>>(
    mut payload: &'a [u8],
    mut take: impl FnMut(T) -> Result<(), String>,
) -> Result<u64, String> {
    let mut count = 0;
    while !payload.is_empty() {
        let (record, rest) = postcard::take_from_bytes(payload).map_err(|err| err.to_string())?;
        take(record)?;
        payload = rest;
        count += 1;
    }
    Ok(count)
}
