//! Replicated commands, and the answers of applying them.
//!
//! The encoding is one format byte, then postcard. It is strict: unknown variants, missing fields and trailing bytes
//! are errors, so that a replica can never skip what it does not understand. Golden files in `testdata/` hold every
//! variant; a change of encoding is a new format byte.
//!
//! `change` and `request` use `op` and `response`; `op` uses `settings`, `security` and `pin`; `audit` uses `op` and `response`.

mod audit;
mod change;
mod op;
mod pin;
mod request;
mod response;
mod security;
mod settings;

use bytes::Bytes;
use mc_types::{ClusterTime, StoreId};
use serde::{Deserialize, Serialize};

#[cfg(test)]
pub(crate) use audit::AUDITED_FORMAT;
pub use audit::{AUDIT_SINCE, AuditedCall, AuditedResult};
pub use change::Change;
pub use op::{
    Endpoint, EvictItem, MountStore, Op, ProvenEnd, PutEndItem, PutStartItem, RemoveItem, StartKey,
    reuse_epoch,
};
pub use pin::Pin;
pub use request::Request;
pub use response::{PlacedReplica, PutEnded, PutStarted, Response};
pub use security::{PrincipalRecord, SECURITY_SINCE, SecurityChange};
pub use settings::{
    CLUSTER_VERSION, KEY_CHANGES_SINCE, OWN_STORES_SINCE, PROOFS_SINCE, Quota, RESTARTS_SINCE, ReadPolicy,
    ReadPolicyError, Settings, TenantPolicy, TenantPolicyError,
};

pub(crate) const COMMAND_FORMAT: u8 = 8;

/// A log entry: the leader's stamp and the operation.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Command {
    /// Facts from outside the state.
    pub stamp: Stamp,
    /// The operation.
    pub op: Op,
}

/// Facts from outside the state, stamped by the leader so that every replica sees the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Cluster time as the leader counts it; `apply` takes the maximum of this and its own.
    pub now: ClusterTime,
    /// Term of the leader whose soft state (leases, store liveness) the operation was decided from. In an entry of
    /// another term the operation does nothing, because soft state ends with its term.
    pub term: u64,
    /// Random bits for placement.
    pub seed: u64,
    /// Suspect stores: they get no new replicas, and their replicas do not count as present.
    pub suspects: Vec<StoreId>,
}

/// Error of decoding a command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The command is in the format of another build.
    #[error(
        "command format {} is {} than this build's {COMMAND_FORMAT}: start the build of mc-master that wrote it",
        .0, than_ours(*.0)
    )]
    Format(u8),
    /// The bytes do not decode, or some are left over.
    #[error("command is malformed: {0}")]
    Malformed(String),
}

fn than_ours(format: u8) -> &'static str {
    if format > COMMAND_FORMAT { "newer" } else { "older" }
}

impl Command {
    /// Encodes the command for the log.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        encode(&self.stamp, &self.op)
    }

    /// Decodes a command written by [`Self::encode`], also one that names its call.
    ///
    /// # Errors
    /// [`DecodeError`] for another format, an unknown variant or trailing bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::decode_with_call(bytes).map(|(command, _)| command)
    }

    /// Decodes a command, and the call that it names ([`AuditedCall::put_before`]).
    ///
    /// # Errors
    /// As [`Self::decode`].
    pub fn decode_with_call(bytes: &[u8]) -> Result<(Self, Option<AuditedCall>), DecodeError> {
        let malformed = |error: postcard::Error| DecodeError::Malformed(error.to_string());
        let (call, bytes) = match audit::split(bytes) {
            Some(split) => split.map(|(call, rest)| (Some(call), rest)).map_err(malformed)?,
            None => (None, bytes),
        };
        match bytes.split_first() {
            Some((&COMMAND_FORMAT, body)) => match postcard::take_from_bytes(body) {
                Ok((command, [])) => Ok((command, call)),
                Ok((_, rest)) => Err(DecodeError::Malformed(format!("{} bytes too many", rest.len()))),
                Err(error) => Err(malformed(error)),
            },
            Some((&format, _)) => Err(DecodeError::Format(format)),
            None => Err(DecodeError::Malformed("empty".into())),
        }
    }
}

/// Encodes the command of a stamp and an operation. A pair has the encoding of a struct with these fields.
fn encode(stamp: &Stamp, op: &Op) -> Bytes {
    let mut out = Vec::with_capacity(room(op));
    out.push(COMMAND_FORMAT);
    postcard::to_extend(&(stamp, op), out).expect("a command of plain values always encodes").into()
}

/// Estimates the encoded length, mostly too high: growing the buffer would copy a large batch a dozen times.
fn room(op: &Op) -> usize {
    let keys: usize = match op {
        Op::PutStart { items, .. } => {
            let stores = |item: &PutStartItem| item.preferred.len() + item.avoid.len();
            items.iter().map(|item| item.key.len() + 60 + 10 * stores(item)).sum()
        }
        Op::PutEnd { items } => items.len() * 56,
        Op::PutEndProven { items } => items.len() * 64,
        Op::Remove { items, .. } | Op::DropReplicas { items, .. } => {
            items.iter().map(|item| item.key.len() + 32).sum()
        }
        Op::PutRevoke { puts } => puts.len() * 20,
        Op::Evict { items, .. } => items.len() * 26,
        Op::NoteReuse { keys, .. } => keys.len() * 8,
        Op::SetKeyValue { key, value } => key.len() + value.as_ref().map_or(0, |value| value.len()),
        _ => 0,
    };
    keys + 256
}

#[cfg(test)]
mod tests {
    use mc_types::PutId;

    use super::*;
    use crate::key::KeyHash;

    /// A buffer that grows copies what it holds, for each large command of a leader.
    #[test]
    fn a_large_command_is_encoded_into_a_buffer_that_had_room_for_it_from_the_start() {
        let keys = || (0..4_000u64).map(|n| n.to_string().repeat(100).into_bytes());
        let now = ClusterTime(u64::MAX / 2);
        let put = |key: &[u8]| PutId(u128::from(KeyHash::of("put", key).to_u64()) << 64);
        let hash = |key: &[u8]| KeyHash::of("", key);
        let start = |key: Vec<u8>| PutStartItem::new(put(&key), &key, 1 << 30, now);
        let remove = |key: Vec<u8>| RemoveItem { version: put(&key), reuse_at: now, key };
        let evict = |key: Vec<u8>| EvictItem { key: hash(&key), version: put(&key) };
        let end = |key: Vec<u8>| PutEndItem::new(put(&key), hash(&key), u64::MAX);
        for op in [
            Op::PutStart { tenant: String::new(), items: keys().map(start).collect() },
            Op::PutEnd { items: keys().map(end).collect() },
            Op::PutEndProven {
                items: keys().map(|key| ProvenEnd { end: end(key), index: u64::MAX / 2 }).collect(),
            },
            Op::PutRevoke { puts: keys().map(|key| put(&key)).collect() },
            Op::Remove { tenant: String::new(), items: keys().map(remove).collect() },
            Op::Evict { items: keys().map(evict).collect(), reuse_at: now },
            Op::NoteReuse { keys: keys().map(|key| hash(&key)).collect(), epoch: 1, once_share: 1 },
            Op::SetKeyValue { key: vec![b'k'; 4_000], value: Some(vec![b'v'; 60_000].into()) },
        ] {
            let (encoded, room) = (encode(&Stamp::default(), &op).len(), room(&op));
            assert!(
                (room / 2..=room).contains(&encoded),
                "{encoded} bytes in {room}: {:.20}",
                format!("{op:?}")
            );
        }
    }
}
