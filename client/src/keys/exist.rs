//! Existence checks: which keys have an object, of which size.
//!
//! The keys of a request are packed into one piece of memory, and so are the answers. Masters of older builds support
//! neither. Masters that do say so in each answer, so the first request of a client is not packed. If an older master
//! leads later, it answers a packed request as one without keys, and is asked again.

use std::ops::Range;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::StreamExt;
use mc_proto::v1::{BatchExistReply, BatchExistRequest, KeyState, PackedKeys};
use mc_types::Code;
use tokio::time::Instant;

use crate::call::CallError;
use crate::core::{Core, IN_FLIGHT, check_key, item_error, key_chunks, nonsense, read_error};
use crate::{Client, Error};

/// Whether a call leases the objects that it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lease {
    Grant,
    None,
}

/// Presence of an object in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The object exists and has this many bytes.
    Present(u64),
    /// The object exists but can't be read now: every store that holds it is suspect, or whether it was evicted is not known yet.
    Unavailable,
    /// There is no such object yet: a put of it has started and has not ended. Masters of older builds call it absent.
    BeingWritten,
    /// The object does not exist.
    Absent,
}

impl Presence {
    /// Returns whether the pool has the object, whether or not it can be read now.
    #[must_use]
    pub fn is_there(self) -> bool {
        match self {
            Self::Present(_) | Self::Unavailable => true,
            Self::BeingWritten | Self::Absent => false,
        }
    }
}

/// Keys of a call, packed for its requests.
#[derive(Debug)]
pub(crate) struct KeyBatch {
    requests: Vec<Packed>,
    /// Keys that no master would accept, by their place in the call.
    refused: Vec<(usize, Error)>,
    count: usize,
}

/// Keys one after the other.
#[derive(Clone, Debug)]
struct Packed {
    bytes: Bytes,
    lengths: Vec<u32>,
}

impl KeyBatch {
    pub(crate) fn of<K: AsRef<[u8]>>(keys: &[K]) -> Self {
        let mut refused = Vec::new();
        let mut good: Vec<&[u8]> = Vec::with_capacity(keys.len());
        for (at, key) in keys.iter().map(AsRef::as_ref).enumerate() {
            match check_key("exist", key) {
                Ok(()) => good.push(key),
                Err(error) => refused.push((at, error)),
            }
        }
        let pack = |chunk: Range<usize>| Packed::of(&good[chunk]);
        let requests = key_chunks(good.iter().map(|key| key.len())).into_iter().map(pack).collect();
        Self { requests, refused, count: keys.len() }
    }
}

impl Packed {
    fn of(keys: &[&[u8]]) -> Self {
        let lengths = keys.iter().map(|key| u32::try_from(key.len()).unwrap_or(u32::MAX)).collect();
        Self { bytes: keys.concat().into(), lengths }
    }

    /// Lists the keys, each as a part of the one piece.
    fn keys(&self) -> impl Iterator<Item = Bytes> + '_ {
        let mut rest = self.bytes.clone();
        self.lengths.iter().map(move |len| rest.split_to(rest.len().min(*len as usize)))
    }

    /// Converts the keys to a request, packed or as a list.
    fn into_request(self, packed: bool) -> BatchExistRequest {
        if packed {
            let Self { bytes: keys, lengths } = self;
            let packed = Some(PackedKeys { keys, lengths, calls: Vec::new() });
            return BatchExistRequest { packed, ..BatchExistRequest::default() };
        }
        BatchExistRequest { keys: self.keys().collect(), ..BatchExistRequest::default() }
    }
}

pub(crate) async fn presences(core: &Core, asked: KeyBatch, lease: Lease) -> Vec<Result<Presence, Error>> {
    let deadline = Instant::now() + core.call_timeout;
    let KeyBatch { requests, refused, count } = asked;
    let calls: Vec<_> = requests.into_iter().map(|keys| presences_of(core, keys, lease, deadline)).collect();
    let answers: Vec<_> = futures::stream::iter(calls).buffered(IN_FLIGHT).collect().await;
    let mut answers = answers.into_iter().flatten();
    if refused.is_empty() {
        return answers.collect();
    }
    let mut refused = refused.into_iter().peekable();
    let result = |at| match refused.next_if(|(place, _)| *place == at) {
        Some((_, error)) => Err(error),
        None => answers.next().unwrap_or_else(|| Err(nonsense("exist"))),
    };
    (0..count).map(result).collect()
}

async fn presences_of(
    core: &Core,
    keys: Packed,
    lease: Lease,
    deadline: Instant,
) -> Vec<Result<Presence, Error>> {
    let count = keys.lengths.len();
    let mut packed = core.lanes.exists_packed.load(Ordering::Relaxed);
    loop {
        let request = BatchExistRequest {
            tenant: core.tenant.clone(),
            no_lease: lease == Lease::None,
            ..keys.clone().into_request(packed)
        };
        let reply = match core.lanes.exists.call(request, deadline, core.call_timeout).await.0 {
            Ok(answer) => answer.reply,
            Err(CallError::LocalOnly { .. }) => {
                let local = |key: Bytes| match local_size(core, &key) {
                    Some(size) => Ok(Presence::Present(size)),
                    None => core.local_miss("exist").map(|()| Presence::Absent),
                };
                return keys.keys().map(local).collect();
            }
            Err(CallError::Failed(error)) => return vec![Err(read_error(error)); count],
        };
        core.lanes.exists_packed.store(reply.packs, Ordering::Relaxed);
        if packed && !reply.packs {
            packed = false;
            continue;
        }
        return read_presences(&reply, count).unwrap_or_else(|| vec![Err(nonsense("exist")); count]);
    }
}

/// Returns the size of the object that a get without a leader would answer with, in bytes.
pub(crate) fn local_size(core: &Core, key: &[u8]) -> Option<u64> {
    let cached = core.local.cache.any(key).map(|entry| entry.value.len() as u64);
    cached.or_else(|| Some(core.local.embedded.as_ref()?.find(key)?.size))
}

impl Client {
    /// Returns whether the object exists and can be read now.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn exist(&self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        Ok(self.size(key).await?.is_some())
    }

    /// [`exist`](Self::exist) for many keys; one result each, in order.
    pub async fn batch_exist<K: AsRef<[u8]> + Sync>(&self, keys: &[K]) -> Vec<Result<bool, Error>> {
        let sizes = self.batch_size(keys).await;
        sizes.into_iter().map(|size| Ok(size?.is_some())).collect()
    }

    /// Returns the size of an object in bytes; `None` is a miss.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn size(&self, key: impl AsRef<[u8]>) -> Result<Option<u64>, Error> {
        let mut results = self.batch_size(&[key.as_ref()]).await;
        results.pop().unwrap_or_else(|| Err(nonsense("exist")))
    }

    /// [`size`](Self::size) for many keys; one result each, in order.
    pub async fn batch_size<K: AsRef<[u8]> + Sync>(&self, keys: &[K]) -> Vec<Result<Option<u64>, Error>> {
        let size = |presence| match presence {
            Presence::Present(size) => Some(size),
            Presence::Unavailable | Presence::BeingWritten | Presence::Absent => None,
        };
        self.run("exist", keys.len(), presences(self.core(), KeyBatch::of(keys), Lease::Grant))
            .await
            .into_iter()
            .map(|presence| presence.map(size))
            .collect()
    }

    /// Returns whether the object exists, and whether it can be read.
    ///
    /// [`exist`](Self::exist) and [`size`](Self::size) do not tell an absent object from one that can't be read now or is being
    /// written.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn presence(&self, key: impl AsRef<[u8]>) -> Result<Presence, Error> {
        let mut results =
            self.run("exist", 1, presences(self.core(), KeyBatch::of(&[key.as_ref()]), Lease::Grant)).await;
        results.pop().unwrap_or_else(|| Err(nonsense("exist")))
    }

    /// Returns what [`presence`](Self::presence) does, without a read lease and without counting as a use of the object:
    /// it may be evicted at any time.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn peek(&self, key: impl AsRef<[u8]>) -> Result<Presence, Error> {
        let mut results = self.batch_peek(&[key.as_ref()]).await;
        results.pop().unwrap_or_else(|| Err(nonsense("exist")))
    }

    /// [`peek`](Self::peek) for many keys; one result each, in order.
    pub async fn batch_peek<K: AsRef<[u8]> + Sync>(&self, keys: &[K]) -> Vec<Result<Presence, Error>> {
        self.run("exist", keys.len(), presences(self.core(), KeyBatch::of(keys), Lease::None)).await
    }
}

/// Reads the answer for this many keys; `None` if it is for another number of them.
pub(crate) fn read_presences(reply: &BatchExistReply, count: usize) -> Option<Vec<Result<Presence, Error>>> {
    let Some(packed) = &reply.packed else {
        let presence = |result: &mc_proto::v1::ExistResult| match Code::try_from(result.code) {
            Ok(Code::Ok) => Ok(Presence::Present(result.size)),
            Ok(Code::ReplicaIsNotReady) => Ok(Presence::Unavailable),
            Ok(Code::ObjectNotFound) if result.being_written => Ok(Presence::BeingWritten),
            Ok(Code::ObjectNotFound) => Ok(Presence::Absent),
            _ => Err(item_error("exist", result.code)),
        };
        return (reply.results.len() == count).then(|| reply.results.iter().map(presence).collect());
    };
    if packed.states.len() != count || packed.sizes.len() != count {
        return None;
    }
    let presence = |(state, size): (&u8, &u64)| match KeyState::try_from(i32::from(*state)) {
        Ok(KeyState::Present) => Ok(Presence::Present(*size)),
        Ok(KeyState::Absent) => Ok(Presence::Absent),
        Ok(KeyState::BeingWritten) => Ok(Presence::BeingWritten),
        Ok(KeyState::Unavailable) => Ok(Presence::Unavailable),
        Ok(KeyState::Invalid) => Err(item_error("exist", Code::InvalidKey as i32)),
        Ok(KeyState::Unspecified) | Err(_) => Err(nonsense("exist")),
    };
    Some(packed.states.iter().zip(&packed.sizes).map(presence).collect())
}
