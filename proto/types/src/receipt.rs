use std::fmt;

use crate::secret::Secret;
use crate::{ClusterId, GrantKey, GrantedRange, SegmentEpoch, StoreId};

/// Version of what a receipt is computed over, its first byte.
const RECEIPT_FORMAT: u8 = 1;
/// Context from which receipt keys are derived. No other key has the same context.
const RECEIPT_KEYS: &str = "mc 2026-11 receipts of written ranges";

/// A store's proof that every byte of a granted range was written by the put that the range was allocated for, and can't be
/// changed by it any more. It is the same each time the store gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt(Secret<16>);

/// Key of a store's receipts. Nothing else is computed with it.
#[derive(Clone, Copy)]
pub struct ReceiptKey([u8; 32]);

impl Receipt {
    /// Length in bytes.
    pub const LEN: usize = 16;

    /// Reads a receipt; `None` if it has another length.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Secret).map(Self)
    }

    /// Its bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        self.0.0
    }
}

impl GrantKey {
    /// Derives the key of the same store's receipts.
    #[must_use]
    pub fn receipts(&self) -> ReceiptKey {
        ReceiptKey(blake3::derive_key(RECEIPT_KEYS, &self.0))
    }
}

impl ReceiptKey {
    /// Computes the receipt of a range in the store's memory.
    #[must_use]
    pub fn receipt(
        &self,
        cluster: ClusterId,
        store: StoreId,
        epoch: SegmentEpoch,
        range: &GrantedRange,
    ) -> Receipt {
        let GrantedRange { segment, offset, len, index } = *range;
        // Fixed lengths, so that no two places are written alike.
        let mut place = [0; 61];
        place[0] = RECEIPT_FORMAT;
        place[1..17].copy_from_slice(&cluster.to_bytes());
        place[17..25].copy_from_slice(&store.to_bytes());
        place[25..33].copy_from_slice(&epoch.to_bytes());
        place[33..37].copy_from_slice(&segment.to_be_bytes());
        place[37..45].copy_from_slice(&offset.to_be_bytes());
        place[45..53].copy_from_slice(&len.to_be_bytes());
        place[53..61].copy_from_slice(&index.to_be_bytes());
        let mac = blake3::keyed_hash(&self.0, &place);
        let mut receipt = [0; Receipt::LEN];
        receipt.copy_from_slice(&mac.as_bytes()[..Receipt::LEN]);
        Receipt(Secret(receipt))
    }
}

impl fmt::Debug for ReceiptKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReceiptKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: GrantedRange = GrantedRange { segment: 1, offset: 64, len: 128, index: 9 };

    fn receipt(key: u8, cluster: u128, store: u64, epoch: u64, range: GrantedRange) -> Receipt {
        let key = GrantKey([key; 32]).receipts();
        key.receipt(ClusterId(cluster), StoreId(store), SegmentEpoch(epoch), &range)
    }

    #[test]
    fn a_receipt_is_for_one_place_of_one_allocation_in_one_epoch() {
        let this = receipt(7, 1, 2, 3, RANGE);
        assert_eq!(this, receipt(7, 1, 2, 3, RANGE), "the same on each repetition");
        let others = [
            receipt(8, 1, 2, 3, RANGE),
            receipt(7, 9, 2, 3, RANGE),
            receipt(7, 1, 9, 3, RANGE),
            receipt(7, 1, 2, 9, RANGE),
            receipt(7, 1, 2, 3, GrantedRange { segment: 9, ..RANGE }),
            receipt(7, 1, 2, 3, GrantedRange { offset: 65, ..RANGE }),
            receipt(7, 1, 2, 3, GrantedRange { len: 127, ..RANGE }),
            receipt(7, 1, 2, 3, GrantedRange { index: 10, ..RANGE }),
        ];
        assert!(others.iter().all(|other| *other != this));
    }

    /// Masters and stores of different builds exchange receipts.
    #[test]
    fn the_computation_is_stable() {
        let hex: String =
            receipt(7, 1, 2, 3, RANGE).to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "6df94d6bf3cc065b0e137825b81bc917");
    }

    #[test]
    fn a_grant_is_no_receipt_and_its_key_no_key_of_receipts() {
        assert_ne!(GrantKey([7; 32]).receipts().0, [7; 32]);
        assert_eq!(Receipt::from_bytes(&[0; 15]), None);
        assert_eq!(Receipt::from_bytes(&[0; 17]), None);
    }
}
