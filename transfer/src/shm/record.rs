//! The message with each segment that a store shares.

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
        assert_eq!(socket_name(StoreId(10), SegmentEpoch(11)), "mc-store-000000000000000a-000000000000000b");
    }
}
