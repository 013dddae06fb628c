use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{ClusterId, ClusterTime, SegmentEpoch, SegmentNumber, StoreId};

/// Version of the grant's encoding, the first byte of a sealed grant.
const GRANT_FORMAT: u8 = 1;
const MAC_LEN: usize = 16;

/// Permission of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// Read the ranges.
    Read,
    /// Write the ranges.
    Write,
}

/// One range of a segment and the log index of the entry that allocated it.
///
/// The index orders the owners of the same bytes: a store that has seen a higher index for a range refuses a lower one.
/// So a late writer is harmless and a late reader is refused, without a clock or a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedRange {
    /// Segment within the store.
    pub segment: SegmentNumber,
    /// Offset of the first byte in the segment.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Log index of the allocation.
    pub index: u64,
}

/// Short-lived permission to read or write ranges of one store's memory; one grant covers a batch.
///
/// Until connections are encrypted grants stop mistakes (a late writer, a restarted store), not attackers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Cluster that issued the grant.
    pub cluster: ClusterId,
    /// Store whose memory it is.
    pub store: StoreId,
    /// Epoch: the allocation of that memory.
    pub epoch: SegmentEpoch,
    /// Read or write.
    pub access: Access,
    /// Cluster time at which the permission ends.
    pub expires: ClusterTime,
    /// Ranges that the grant covers; a request names a range by its place in this list.
    pub ranges: Vec<GrantedRange>,
}

/// The key of a store's grants: drawn by the store with its epoch, sent in the mount, replicated, never shown.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantKey(pub [u8; 32]);

impl GrantKey {
    /// Draws a fresh key.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random())
    }
}

impl fmt::Debug for GrantKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GrantKey(..)")
    }
}

/// A grant as it travels: format byte, encoded body, MAC. The client that carries it need not understand it.
pub type SealedGrant = Bytes;

/// Why a sealed grant was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrantError {
    /// The encoding is newer than this build, or not a grant at all.
    #[error("grant has format {0}, this build reads format {GRANT_FORMAT}: upgrade the older side")]
    Format(u8),
    /// Too short, not decodable, or followed by other bytes.
    #[error("grant cannot be decoded: it is truncated or corrupt")]
    Malformed,
    /// The MAC does not match: the grant is for another epoch of this store, or was altered.
    #[error("grant is not for this store's current memory (wrong key)")]
    Mac,
}

impl Grant {
    /// Encodes the grant and seals it with `key`.
    #[must_use]
    pub fn seal(&self, key: &GrantKey) -> SealedGrant {
        let mut out = vec![GRANT_FORMAT];
        out = postcard::to_extend(self, out).expect("a grant of plain integers always encodes");
        let mac = blake3::keyed_hash(&key.0, &out);
        out.extend_from_slice(&mac.as_bytes()[..MAC_LEN]);
        out.into()
    }

    /// Checks the MAC, then decodes. The caller still checks cluster, store, epoch, expiry and ranges.
    ///
    /// # Errors
    /// [`GrantError`] when the bytes are not a grant sealed with `key`.
    pub fn open(sealed: &[u8], key: &GrantKey) -> Result<Self, GrantError> {
        let (body, mac) = split(sealed)?;
        let expected = blake3::keyed_hash(&key.0, body);
        // The time of an early exit would tell how many bytes of a guess are right.
        if !constant_time_eq::constant_time_eq(&expected.as_bytes()[..MAC_LEN], mac) {
            return Err(GrantError::Mac);
        }
        decode(body)
    }

    /// Decodes a grant whose key is not known. Only for the client that a master gave it to: its contents are unchecked.
    ///
    /// # Errors
    /// [`GrantError`] when the bytes are not a grant of this format.
    pub fn peek(sealed: &[u8]) -> Result<Self, GrantError> {
        decode(split(sealed)?.0)
    }
}

/// Splits a sealed grant into format and body, and MAC.
fn split(sealed: &[u8]) -> Result<(&[u8], &[u8]), GrantError> {
    let format = *sealed.first().ok_or(GrantError::Malformed)?;
    if format != GRANT_FORMAT {
        return Err(GrantError::Format(format));
    }
    let at = sealed.len().checked_sub(MAC_LEN).filter(|at| *at > 1).ok_or(GrantError::Malformed)?;
    Ok(sealed.split_at(at))
}

fn decode(body: &[u8]) -> Result<Grant, GrantError> {
    match postcard::take_from_bytes(&body[1..]) {
        Ok((grant, [])) => Ok(grant),
        _ => Err(GrantError::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant() -> Grant {
        Grant {
            cluster: ClusterId(1),
            store: StoreId(2),
            epoch: SegmentEpoch(3),
            access: Access::Write,
            expires: ClusterTime(4),
            ranges: vec![GrantedRange { segment: 0, offset: 64, len: 128, index: 9 }],
        }
    }

    #[test]
    fn a_sealed_grant_opens_with_its_key_only() {
        let key = GrantKey([7; 32]);
        let sealed = grant().seal(&key);
        assert_eq!(Grant::open(&sealed, &key), Ok(grant()));
        assert_eq!(Grant::open(&sealed, &GrantKey([8; 32])), Err(GrantError::Mac));
        assert_eq!(Grant::peek(&sealed), Ok(grant()), "its holder can read it");
    }

    #[test]
    fn every_flipped_byte_and_every_cut_is_refused() {
        let key = GrantKey([7; 32]);
        let sealed = grant().seal(&key);
        for at in 0..sealed.len() {
            let mut bad = sealed.to_vec();
            bad[at] ^= 1;
            assert!(Grant::open(&bad, &key).is_err(), "flip at {at}");
            assert!(Grant::open(&sealed[..at], &key).is_err(), "cut at {at}");
        }
    }

    /// The encoding must not change: masters and stores of different builds exchange it.
    #[test]
    fn the_encoding_is_stable() {
        let sealed = grant().seal(&GrantKey([7; 32]));
        assert_eq!(&sealed[..13], &[1, 1, 2, 3, 1, 4, 1, 0, 64, 128, 1, 9, sealed[12]]);
        assert_eq!(sealed.len(), 12 + MAC_LEN);
    }
}
