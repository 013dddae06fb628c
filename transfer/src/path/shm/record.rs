//! The message with each segment that a store shares, and those of its client.

use mc_types::{SegmentEpoch, SegmentNumber, StoreId};

pub(crate) const RECORD_LEN: usize = 12;

/// A segment whose descriptor comes with this record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) number: SegmentNumber,
    pub(crate) len: u64,
}

impl Record {
    /// The last record. No segment is empty.
    pub(crate) const END: Self = Self { number: 0, len: 0 };

    pub(crate) fn encode(self) -> [u8; RECORD_LEN] {
        let mut out = [0; RECORD_LEN];
        out[..4].copy_from_slice(&self.number.to_be_bytes());
        out[4..].copy_from_slice(&self.len.to_be_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8; RECORD_LEN]) -> Self {
        let (number, len) = bytes.split_at(4);
        Self {
            number: number.try_into().map(SegmentNumber::from_be_bytes).unwrap_or_default(),
            len: len.try_into().map(u64::from_be_bytes).unwrap_or_default(),
        }
    }
}

pub(crate) const MESSAGE_LEN: usize = 20;

/// A message of a client that has the segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// Reads and bytes since the last such message that the client found good without asking the store.
    Read { reads: u64, bytes: u64 },
    /// Memory whose descriptor comes with this message. The answer is its number, 0 if the store does not take it.
    Area { len: u64 },
    /// The client does not use an area any more.
    AreaEnd { number: u64 },
}

impl Message {
    pub(crate) fn encode(self) -> [u8; MESSAGE_LEN] {
        let (kind, one, two) = match self {
            Self::Read { reads, bytes } => (1u32, reads, bytes),
            Self::Area { len } => (2, len, 0),
            Self::AreaEnd { number } => (3, number, 0),
        };
        let mut out = [0; MESSAGE_LEN];
        out[..4].copy_from_slice(&kind.to_be_bytes());
        out[4..12].copy_from_slice(&one.to_be_bytes());
        out[12..].copy_from_slice(&two.to_be_bytes());
        out
    }

    /// Returns `None` for a kind that means nothing in this version.
    pub(crate) fn decode(bytes: &[u8; MESSAGE_LEN]) -> Option<Self> {
        let (kind, fields) = bytes.split_at(4);
        let mut fields = fields.as_chunks().0.iter().copied().map(u64::from_be_bytes);
        let (one, two) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        match kind {
            [0, 0, 0, 1] => Some(Self::Read { reads: one, bytes: two }),
            [0, 0, 0, 2] => Some(Self::Area { len: one }),
            [0, 0, 0, 3] => Some(Self::AreaEnd { number: one }),
            _ => None,
        }
    }
}

/// Name of the socket at which a store shares its memory: of one epoch, like everything about that memory.
#[must_use]
pub fn socket_name(store: StoreId, epoch: SegmentEpoch) -> String {
    format!("mc-store-{store}-{epoch}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It must not change between builds.
    #[test]
    fn the_encoding_is_stable() {
        let record = Record { number: 3, len: 0x0102 };
        assert_eq!(record.encode(), [0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(Record::decode(&record.encode()), record);
        let messages =
            [Message::Read { reads: 1, bytes: 2 }, Message::Area { len: 3 }, Message::AreaEnd { number: 4 }];
        assert_eq!(messages[0].encode(), [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!(messages.map(|message| Message::decode(&message.encode())), messages.map(Some));
        assert_eq!(Message::decode(&[0; MESSAGE_LEN]), None);
        assert_eq!(socket_name(StoreId(10), SegmentEpoch(11)), "mc-store-000000000000000a-000000000000000b");
    }
}
