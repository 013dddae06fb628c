//! The snapshot file, format 1. All integers are big-endian.
//!
//! ```text
//! magic "mc-snap\0" | format u32 | header length u32 | header | state | file length u64 | crc32c u32
//! ```
//!
//! The header is the cluster id, the last log id (a byte that says whether there is one, term, index) and the
//! membership as it travels. The checksum covers everything before it; the length tells a file that was cut from one
//! that was altered.

use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Take, Write};

use mc_index::{CLUSTER_VERSION, State};
use mc_log::{CommittedLeaderId, LogId, SnapshotMeta, decode_membership, encode_membership};
use mc_types::ClusterId;

use super::PartialFile;

const MAGIC: [u8; 8] = *b"mc-snap\0";
const FORMAT: u32 = 1;
const PREFIX_LEN: u64 = 16;
const TRAILER_LEN: u64 = 12;
const BUFFER: usize = 1 << 20;

/// Header of a snapshot: the cluster, the last entry, the membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) cluster: ClusterId,
    pub(crate) meta: SnapshotMeta,
}

/// Defect of a snapshot file.
#[derive(Debug, thiserror::Error)]
pub enum Defect {
    /// Too short, or without the magic bytes at its start.
    #[error("it is not a snapshot file")]
    NotASnapshot,
    /// Written by a newer build.
    #[error("its format {0} is newer than this build's {FORMAT}")]
    Newer(u32),
    /// The index in it was written by a newer build.
    #[error(transparent)]
    NewerIndex(mc_index::SnapshotError),
    /// From a cluster whose version is above the highest that this build supports.
    #[error("its cluster runs as version {0}, this build supports {CLUSTER_VERSION}")]
    NewerCluster(u32),
    /// The file does not have the length that its end records: it was cut off.
    #[error("its end is missing (it has {found} bytes)")]
    Cut {
        /// Length of the file.
        found: u64,
    },
    /// Changed since it was written.
    #[error("its checksum does not match")]
    Checksum,
    /// The snapshot is from another cluster.
    #[error("it belongs to cluster {theirs}, this node to {ours}")]
    Foreign {
        /// Cluster of this node.
        ours: ClusterId,
        /// Cluster that the snapshot names.
        theirs: ClusterId,
    },
    /// The checksum is right, but the content cannot be read.
    #[error("its content cannot be read: {0}")]
    Content(String),
    /// The disk refused.
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
}

impl Header {
    fn encode(&self) -> Vec<u8> {
        let mut out = self.cluster.to_bytes().to_vec();
        opt_log_id_to_bytes(self.meta.last_log_id.as_ref(), &mut out);
        out.extend_from_slice(&encode_membership(&self.meta.last_membership));
        out
    }

    fn decode(bytes: &[u8]) -> Result<Self, Defect> {
        let (cluster, rest) = bytes.split_at_checked(16).ok_or(Defect::NotASnapshot)?;
        let cluster = ClusterId::from_bytes(cluster).ok_or(Defect::NotASnapshot)?;
        let (last_log_id, rest) = opt_log_id_from_bytes(rest)?;
        let last_membership = decode_membership(rest).map_err(|err| Defect::Content(err.to_string()))?;
        Ok(Self { cluster, meta: SnapshotMeta { last_log_id, last_membership } })
    }
}

/// Writes an optional log id into a header: a byte that says whether there is one, then term and index,
/// big-endian.
fn opt_log_id_to_bytes(id: Option<&LogId>, out: &mut Vec<u8>) {
    out.push(u8::from(id.is_some()));
    if let Some(id) = id {
        out.extend_from_slice(&id.leader_id.term.to_be_bytes());
        out.extend_from_slice(&id.index.to_be_bytes());
    }
}

/// Reads the output of [`opt_log_id_to_bytes`]; also returns the bytes behind it.
fn opt_log_id_from_bytes(bytes: &[u8]) -> Result<(Option<LogId>, &[u8]), Defect> {
    let short = || Defect::Content("log id is cut short".into());
    match bytes.split_first().ok_or_else(short)? {
        (0, rest) => Ok((None, rest)),
        (1, rest) => {
            let (term, rest) = rest.split_first_chunk().ok_or_else(short)?;
            let (index, rest) = rest.split_first_chunk().ok_or_else(short)?;
            let leader_id = CommittedLeaderId::new(u64::from_be_bytes(*term));
            Ok((Some(LogId { leader_id, index: u64::from_be_bytes(*index) }), rest))
        }
        (other, _) => Err(Defect::Content(format!("log id has format {other}, unknown to this build"))),
    }
}

/// Writes a snapshot and syncs it to disk. Returns its length.
pub(crate) fn write(header: &Header, state: &State, file: PartialFile) -> io::Result<u64> {
    let mut out = Checksummed { inner: BufWriter::with_capacity(BUFFER, file), crc: 0, len: 0 };
    let encoded = header.encode();
    out.write_all(&MAGIC)?;
    out.write_all(&FORMAT.to_be_bytes())?;
    let header_len = u32::try_from(encoded.len()).map_err(io::Error::other)?;
    out.write_all(&header_len.to_be_bytes())?;
    out.write_all(&encoded)?;
    state.write_snapshot(&mut out)?;
    let len = out.len + TRAILER_LEN;
    out.write_all(&len.to_be_bytes())?;
    let crc = out.crc;
    out.inner.write_all(&crc.to_be_bytes())?;
    out.inner.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    Ok(len)
}

/// Returns the bytes of `state` in its snapshot: nearly all of the file.
pub(crate) fn measure(state: &State) -> io::Result<u64> {
    let mut out = Checksummed { inner: io::sink(), crc: 0, len: 0 };
    state.write_snapshot(&mut out)?;
    Ok(out.len)
}

/// A snapshot file with a verified checksum.
pub(crate) struct Verified<R> {
    pub(crate) header: Header,
    pub(crate) len: u64,
    state: Take<BufReader<R>>,
}

/// Reads the whole file once and compares its checksum. Nothing in it is used before that.
pub(crate) fn verify<R: Read + Seek>(mut file: R, ours: ClusterId) -> Result<Verified<R>, Defect> {
    let found = file.seek(SeekFrom::End(0))?;
    if found < PREFIX_LEN + TRAILER_LEN {
        return Err(Defect::NotASnapshot);
    }
    let mut prefix = [0; PREFIX_LEN as usize];
    file.rewind()?;
    file.read_exact(&mut prefix)?;
    if prefix[..8] != MAGIC {
        return Err(Defect::NotASnapshot);
    }
    let format = u32::from_be_bytes([prefix[8], prefix[9], prefix[10], prefix[11]]);
    if format > FORMAT {
        return Err(Defect::Newer(format));
    }

    let mut trailer = [0; TRAILER_LEN as usize];
    file.seek(SeekFrom::Start(found - TRAILER_LEN))?;
    file.read_exact(&mut trailer)?;
    let (written, stored_crc) = trailer.split_at(8);
    let written = u64::from_be_bytes(written.try_into().unwrap_or_default());
    let stored_crc = u32::from_be_bytes(stored_crc.try_into().unwrap_or_default());
    if written != found {
        return Err(Defect::Cut { found });
    }
    if checksum(&mut file, found - 4)? != stored_crc {
        return Err(Defect::Checksum);
    }

    let header_len = u64::from(u32::from_be_bytes([prefix[12], prefix[13], prefix[14], prefix[15]]));
    let state_at = PREFIX_LEN + header_len;
    if state_at > found - TRAILER_LEN {
        return Err(Defect::Content("its header is longer than the file".into()));
    }
    file.seek(SeekFrom::Start(PREFIX_LEN))?;
    let mut encoded = Vec::new();
    (&mut file).take(header_len).read_to_end(&mut encoded)?;
    let header = Header::decode(&encoded)?;
    if header.cluster != ours {
        return Err(Defect::Foreign { ours, theirs: header.cluster });
    }
    let state = BufReader::with_capacity(BUFFER, file).take(found - TRAILER_LEN - state_at);
    Ok(Verified { header, len: found, state })
}

impl Defect {
    /// Whether a newer build wrote it and can read it.
    pub(super) fn is_newer(&self) -> bool {
        matches!(self, Self::Newer(_) | Self::NewerIndex(_) | Self::NewerCluster(_))
    }
}

impl<R: Read> Verified<R> {
    /// Decodes the state, to its last byte.
    pub(crate) fn read_state(mut self) -> Result<State, Defect> {
        let state = State::read_snapshot(&mut self.state).map_err(|err| match err {
            mc_index::SnapshotError::Format(_) => Defect::NewerIndex(err),
            _ => Defect::Content(err.to_string()),
        })?;
        if self.state.limit() > 0 {
            return Err(Defect::Content(format!("{} bytes follow the state", self.state.limit())));
        }
        if state.cluster_version() > CLUSTER_VERSION {
            return Err(Defect::NewerCluster(state.cluster_version()));
        }
        Ok(state)
    }
}

/// For tests/fuzz: reads a file whose length and checksums are made right; says whether it is a good snapshot.
#[cfg(feature = "testing")]
pub(crate) fn fuzz_file(data: &[u8], ours: ClusterId) -> io::Result<bool> {
    let (mut bytes, len) = (data.to_vec(), data.len() as u64);
    if let Some((content, trailer)) = bytes.split_last_chunk_mut::<{ TRAILER_LEN as usize }>() {
        let header_len =
            content.get(12..16).and_then(|len| len.try_into().ok()).map_or(0, u32::from_be_bytes);
        let state_at = PREFIX_LEN as usize + header_len as usize;
        mc_index::fuzz::seal_chunks(content.get_mut(state_at..).unwrap_or_default());
        trailer[..8].copy_from_slice(&len.to_be_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(content), &trailer[..8]);
        trailer[8..].copy_from_slice(&crc.to_be_bytes());
    }
    let mut file = tempfile::tempfile()?;
    file.write_all(&bytes)?;
    file.rewind()?;
    let Ok(verified) = verify(file, ours) else { return Ok(false) };
    let again = Header::decode(&verified.header.encode());
    assert!(again.is_ok_and(|again| again == verified.header), "what was decoded encodes to itself");
    Ok(verified.read_state().is_ok())
}

fn checksum(file: &mut (impl Read + Seek), len: u64) -> io::Result<u32> {
    file.rewind()?;
    let mut buffer = vec![0; BUFFER];
    let (mut crc, mut left) = (0, len);
    while left > 0 {
        let piece = usize::try_from(left).unwrap_or(BUFFER).min(BUFFER);
        file.read_exact(&mut buffer[..piece])?;
        crc = crc32c::crc32c_append(crc, &buffer[..piece]);
        left -= piece as u64;
    }
    Ok(crc)
}

struct Checksummed<W> {
    inner: W,
    crc: u32,
    len: u64,
}

impl<W: Write> Write for Checksummed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.crc = crc32c::crc32c_append(self.crc, &bytes[..written]);
        self.len += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
