//! Protocol between engines. The side that accepts a connection sends [`HELLO`], then an answer to each request.
//! Numbers are little-endian.
//!
//! ```text
//! request     kind u8, 0 x 3, ranges u32, bytes u64, then (address u64, bytes u64) of each range, then the bytes of a write
//! answer      status u8 (0: done, 1: refused), 0 x 7, bytes u64, then so many bytes: data, or the reason
//! ```

use std::io;

use crate::Range;

/// First bytes of a connection: name and version of the protocol.
pub(crate) const HELLO: [u8; 8] = *b"mc-eng\x01\0";
/// Most ranges of a request.
pub(crate) const MAX_RANGES: usize = 8_192;
/// Most bytes of a notice, with its name, and of a reason.
pub(crate) const MAX_TEXT: usize = 64 << 10;

pub(crate) const HEAD: usize = 16;
pub(crate) const RANGE: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read = 1,
    Write = 2,
    /// The range that was registered first.
    First = 3,
    /// Whether the engine is alive.
    Probe = 4,
    Notice = 5,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) ranges: usize,
    pub(crate) bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) is_done: bool,
    pub(crate) bytes: u64,
}

/// A named message to the process that owns an engine, beside the transfers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notice {
    /// Name of the notice.
    pub name: String,
    /// Text of the notice.
    pub message: String,
}

fn head(first: u8, second: u32, bytes: u64) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[0] = first;
    head[4..8].copy_from_slice(&second.to_le_bytes());
    head[8..].copy_from_slice(&bytes.to_le_bytes());
    head
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

impl Request {
    /// The request up to its bytes.
    pub(crate) fn encode(self, ranges: impl Iterator<Item = Range>) -> Vec<u8> {
        let mut encoded = Vec::with_capacity(HEAD + self.ranges * RANGE);
        // At most MAX_RANGES.
        encoded.extend(head(self.kind as u8, self.ranges as u32, self.bytes));
        encode_ranges(ranges, &mut encoded);
        encoded
    }

    pub(crate) fn decode(head: &[u8; HEAD]) -> io::Result<Self> {
        let kind = match head[0] {
            1 => Kind::Read,
            2 => Kind::Write,
            3 => Kind::First,
            4 => Kind::Probe,
            5 => Kind::Notice,
            kind => return Err(invalid(format!("no request is of kind {kind}"))),
        };
        let ranges = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        if ranges > MAX_RANGES {
            return Err(invalid(format!("{ranges} ranges in a request, of at most {MAX_RANGES}")));
        }
        let bytes = u64_at(head, 8);
        let fits = match kind {
            Kind::Read | Kind::Write => true,
            Kind::Notice => ranges == 0 && bytes <= MAX_TEXT as u64,
            Kind::First | Kind::Probe => ranges == 0 && bytes == 0,
        };
        if !fits {
            return Err(invalid(format!(
                "{ranges} ranges and {bytes} bytes in a request of kind {}",
                head[0]
            )));
        }
        Ok(Self { kind, ranges, bytes })
    }
}

impl Answer {
    pub(crate) fn encode(self) -> [u8; HEAD] {
        head(u8::from(!self.is_done), 0, self.bytes)
    }

    pub(crate) fn decode(head: &[u8; HEAD]) -> io::Result<Self> {
        match head[0] {
            status @ (0 | 1) => Ok(Self { is_done: status == 0, bytes: u64_at(head, 8) }),
            status => Err(invalid(format!("unknown status {status} in an answer"))),
        }
    }
}

pub(crate) fn encode_ranges(ranges: impl Iterator<Item = Range>, into: &mut Vec<u8>) {
    for Range { address, len } in ranges {
        into.extend(address.to_le_bytes());
        into.extend(len.to_le_bytes());
    }
}

pub(crate) fn decode_ranges(bytes: &[u8]) -> Vec<Range> {
    bytes
        .chunks_exact(RANGE)
        .map(|range| Range { address: u64_at(range, 0), len: u64_at(range, 8) })
        .collect()
}

impl Notice {
    /// Encodes the notice; `None` if it is too long.
    pub(crate) fn encode(&self) -> Option<Vec<u8>> {
        let len = 4 + self.name.len() + self.message.len();
        if len > MAX_TEXT {
            return None;
        }
        Some(
            [&(self.name.len() as u32).to_le_bytes(), self.name.as_bytes(), self.message.as_bytes()].concat(),
        )
    }

    pub(crate) fn decode(bytes: &[u8]) -> io::Result<Self> {
        let words = || {
            let (len, words) = bytes.split_first_chunk::<4>()?;
            let (name, message) = words.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            Some(Self {
                name: std::str::from_utf8(name).ok()?.to_owned(),
                message: std::str::from_utf8(message).ok()?.to_owned(),
            })
        };
        words().ok_or_else(|| invalid("a notice that is no text".to_owned()))
    }
}

pub(crate) fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
