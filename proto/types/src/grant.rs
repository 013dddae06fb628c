//! Grants, and their two formats: see [`Grant`].

mod ranges;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::secret::Secret;
use crate::{ClusterId, ClusterTime, ProofKey, SegmentEpoch, SegmentNumber, StoreId};

/// Format without a tenant and without proofs. The format is the first byte of a sealed grant.
const OLDER: u8 = 1;
const MAC_LEN: usize = 16;
/// Bits of a grant's flags.
const WRITE: u8 = 1;
const NEEDS_PROOF: u8 = 2;
const HAS_HOLDER: u8 = 4;
const SHARES_MEMORY: u8 = 8;
const AVOIDS_RDMA: u8 = 16;

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
/// One that needs proofs works for its holder alone, who has its [`ProofKey`]. Others stop mistakes (a late writer, a restarted
/// store), not attackers.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Tenant that it was given to; empty for the default one.
    pub tenant: String,
    /// Number of the token or identity by which its holder was admitted; `None` for one that has shown neither.
    pub holder: Option<u64>,
    /// Whether each request with it needs a proof that the sender holds its key.
    pub needs_proof: bool,
    /// Whether its holder may map all of the store's memory, if the two are on one host.
    pub shares_memory: bool,
    /// Whether its bytes may not go by RDMA, which does not encrypt them.
    pub avoids_rdma: bool,
    /// Ranges that the grant covers; a request names a range by its place in this list.
    pub ranges: Vec<GrantedRange>,
}

/// The key of a store's grants: drawn by the store with its epoch and again each day, sent in the mount, replicated, never shown.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantKey(pub [u8; 32]);

impl GrantKey {
    /// Time for which a key is good after a mount has replaced it: grants and receipts under it are still on their way. In cluster
    /// time from the mount for receipts, and from its answer for grants.
    pub const OVERLAP: Duration = Duration::from_secs(120);

    /// Draws a fresh key.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random())
    }
}

impl SealedGrant {
    /// Whether its holder may map all of the store's memory. Only for the client that a master gave it to: it is unchecked.
    #[must_use]
    pub fn shares_memory(&self) -> bool {
        self.has_flag(SHARES_MEMORY)
    }

    /// Whether its bytes may not go by RDMA. Only for the client that a master gave it to: it is unchecked.
    #[must_use]
    pub fn avoids_rdma(&self) -> bool {
        self.has_flag(AVOIDS_RDMA)
    }

    fn has_flag(&self, flag: u8) -> bool {
        matches!(*self.bytes, [Grant::FORMAT, flags, ..] if flags & flag != 0)
    }
}

impl fmt::Debug for GrantKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GrantKey(..)")
    }
}

/// A grant as its holder has it. The client that carries it need not understand it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SealedGrant {
    /// Format byte, encoded body, MAC.
    pub bytes: Bytes,
    /// Key of the proofs, if the grant needs any. It goes from a master to the holder, over TLS, and to nobody else.
    pub proof_key: Option<ProofKey>,
}

/// A grant that needs no proofs, or whose key is not known.
impl From<Bytes> for SealedGrant {
    fn from(bytes: Bytes) -> Self {
        Self { bytes, proof_key: None }
    }
}

/// Why a sealed grant was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrantError {
    /// The encoding is newer than this build, or not a grant at all.
    #[error("grant has format {0}, this build reads formats {OLDER} to {newest}: upgrade the older side", newest = Grant::FORMAT)]
    Format(u8),
    /// Too short, not decodable, or followed by other bytes.
    #[error("grant cannot be decoded: it is truncated or corrupt")]
    Malformed,
    /// The MAC does not match: the grant is for another epoch of this store, or was altered.
    #[error("grant is not for this store's current memory (wrong key)")]
    Mac,
}

/// A grant of the older format.
#[derive(Serialize, Deserialize)]
struct OlderGrant<R> {
    cluster: ClusterId,
    store: StoreId,
    epoch: SegmentEpoch,
    access: Access,
    expires: ClusterTime,
    ranges: R,
}

impl Grant {
    /// Newest format that this build reads, with a tenant and proofs.
    pub const FORMAT: u8 = 2;

    /// Encodes the grant and seals it with `key`.
    #[must_use]
    pub fn seal(&self, key: &GrantKey) -> SealedGrant {
        let mut out =
            Vec::with_capacity(64 + self.tenant.len() + ranges::USUAL_LEN * self.ranges.len() + MAC_LEN);
        let flags = [
            (self.access == Access::Write, WRITE),
            (self.needs_proof, NEEDS_PROOF),
            (self.holder.is_some(), HAS_HOLDER),
            (self.shares_memory, SHARES_MEMORY),
            (self.avoids_rdma, AVOIDS_RDMA),
        ];
        let flags = flags.into_iter().filter(|(is_set, _)| *is_set).fold(0, |flags, (_, flag)| flags | flag);
        out.extend_from_slice(&[Self::FORMAT, flags]);
        out.extend_from_slice(&self.cluster.to_bytes());
        out.extend_from_slice(&self.store.to_bytes());
        out.extend_from_slice(&self.epoch.to_bytes());
        ranges::put(&mut out, self.expires.0);
        ranges::put(&mut out, self.tenant.len() as u64);
        out.extend_from_slice(self.tenant.as_bytes());
        if let Some(holder) = self.holder {
            ranges::put(&mut out, holder);
        }
        ranges::put_all(&mut out, &self.ranges);
        let (mac, proof_key) = authenticate(key, &out);
        out.extend_from_slice(&mac);
        SealedGrant { bytes: out.into(), proof_key: self.needs_proof.then_some(proof_key) }
    }

    /// Seals the grant for a store or client that reads the older format alone: without its tenant, and without need of
    /// proofs.
    #[must_use]
    pub fn seal_older(&self, key: &GrantKey) -> SealedGrant {
        let Self { cluster, store, epoch, access, expires, ref ranges, .. } = *self;
        let body = OlderGrant { cluster, store, epoch, access, expires, ranges: ranges.as_slice() };
        let mut out = vec![OLDER];
        out = postcard::to_extend(&body, out).expect("a grant of plain integers always encodes");
        let (mac, _) = authenticate(key, &out);
        out.extend_from_slice(&mac);
        SealedGrant { bytes: out.into(), proof_key: None }
    }

    /// Checks the MAC, then decodes; also returns the key of the grant's proofs. The caller still checks the proof, if one is due,
    /// and cluster, store, epoch, expiry and ranges.
    ///
    /// # Errors
    /// [`GrantError`] when the bytes are not a grant sealed with `key`.
    pub fn open(sealed: &[u8], key: &GrantKey) -> Result<(Self, ProofKey), GrantError> {
        let (body, mac) = split(sealed)?;
        let (expected, proof_key) = authenticate(key, body);
        // The time of an early exit would tell how many bytes of a guess are right.
        if !constant_time_eq::constant_time_eq(&expected, mac) {
            return Err(GrantError::Mac);
        }
        Ok((decode(body)?, proof_key))
    }

    /// Decodes a grant whose key is not known. Only for the client that a master gave it to: its contents are unchecked.
    ///
    /// # Errors
    /// [`GrantError`] when the bytes are not a grant of a format that this build reads.
    pub fn peek(sealed: &[u8]) -> Result<Self, GrantError> {
        decode(split(sealed)?.0)
    }
}

/// Computes the MAC of a grant and the key of its proofs, over format and body.
///
/// Both are parts of one output of the keyed hash, a pseudorandom function: so the MAC, which everybody sees who sees the grant,
/// tells nothing about the key.
fn authenticate(key: &GrantKey, body: &[u8]) -> ([u8; MAC_LEN], ProofKey) {
    let mut output = [0; 64];
    blake3::Hasher::new_keyed(&key.0).update(body).finalize_xof().fill(&mut output);
    let (mut mac, mut proof_key) = ([0; MAC_LEN], [0; 32]);
    mac.copy_from_slice(&output[..MAC_LEN]);
    proof_key.copy_from_slice(&output[32..]);
    (mac, ProofKey(Secret(proof_key)))
}

/// Splits a sealed grant into format and body, and MAC.
fn split(sealed: &[u8]) -> Result<(&[u8], &[u8]), GrantError> {
    let format = *sealed.first().ok_or(GrantError::Malformed)?;
    if ![OLDER, Grant::FORMAT].contains(&format) {
        return Err(GrantError::Format(format));
    }
    let at = sealed.len().checked_sub(MAC_LEN).filter(|at| *at > 1).ok_or(GrantError::Malformed)?;
    Ok(sealed.split_at(at))
}

fn decode(body: &[u8]) -> Result<Grant, GrantError> {
    let decoded = if body[0] == OLDER { decode_older(&body[1..]) } else { decode_newer(&body[1..]) };
    decoded.ok_or(GrantError::Malformed)
}

fn decode_older(body: &[u8]) -> Option<Grant> {
    let (grant, rest): (OlderGrant<Vec<GrantedRange>>, _) = postcard::take_from_bytes(body).ok()?;
    let OlderGrant { cluster, store, epoch, access, expires, ranges } = grant;
    rest.is_empty().then_some(Grant {
        cluster,
        store,
        epoch,
        access,
        expires,
        tenant: String::new(),
        holder: None,
        needs_proof: false,
        shares_memory: false,
        avoids_rdma: false,
        ranges,
    })
}

fn decode_newer(body: &[u8]) -> Option<Grant> {
    let (&[flags], body) = body.split_first_chunk()?;
    let (cluster, body) = body.split_first_chunk()?;
    let (store, body) = body.split_first_chunk()?;
    let (epoch, mut body) = body.split_first_chunk()?;
    if flags & !(WRITE | NEEDS_PROOF | HAS_HOLDER | SHARES_MEMORY | AVOIDS_RDMA) != 0 {
        return None;
    }
    let expires = ClusterTime(ranges::take(&mut body)?);
    let tenant = usize::try_from(ranges::take(&mut body)?).ok()?;
    let (tenant, mut body) = body.split_at_checked(tenant)?;
    let holder = if flags & HAS_HOLDER == 0 { None } else { Some(ranges::take(&mut body)?) };
    Some(Grant {
        cluster: ClusterId(u128::from_be_bytes(*cluster)),
        store: StoreId(u64::from_be_bytes(*store)),
        epoch: SegmentEpoch(u64::from_be_bytes(*epoch)),
        access: if flags & WRITE == 0 { Access::Read } else { Access::Write },
        expires,
        tenant: str::from_utf8(tenant).ok()?.to_owned(),
        holder,
        needs_proof: flags & NEEDS_PROOF != 0,
        shares_memory: flags & SHARES_MEMORY != 0,
        avoids_rdma: flags & AVOIDS_RDMA != 0,
        ranges: ranges::take_all(body)?,
    })
}

#[cfg(test)]
mod tests;
