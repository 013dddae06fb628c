//! Calls that move no bytes: exist, size, remove.

use std::ops::Range;

use bytes::Bytes;
use futures::StreamExt;
use mc_proto::v1::{BatchExistRequest, BatchRemoveRequest, RemoveItem};
use mc_types::Code;
use tokio::time::Instant;

use super::batch::{Cost, IN_FLIGHT, cut};
use super::core::{Core, check_key, item_error, nonsense};
use crate::Error;
use crate::call::{CallError, Repeat};

/// Maximum bytes that a key takes in a request in addition to its own.
const KEY_OVERHEAD: usize = 8;

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
    /// The object exists but can't be read now: every store that holds it is suspect.
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

impl Core {
    pub(crate) async fn presences(&self, keys: Vec<Bytes>, lease: Lease) -> Vec<Result<Presence, Error>> {
        let deadline = Instant::now() + self.call_timeout;
        self.by_chunks("exist", keys, |keys| self.presences_of(keys, lease, deadline)).await
    }

    async fn presences_of(
        &self,
        keys: Vec<Bytes>,
        lease: Lease,
        deadline: Instant,
    ) -> Vec<Result<Presence, Error>> {
        let no_lease = lease == Lease::None;
        let request = BatchExistRequest {
            tenant: self.tenant.clone(),
            keys: keys.clone(),
            no_lease,
            ..BatchExistRequest::default()
        };
        let answer = match self.lanes.exists.call(request, deadline, self.call_timeout).await.0 {
            Ok(answer) => answer,
            Err(CallError::LocalOnly { .. }) => {
                let local = |key: &Bytes| match self.local_size(key) {
                    Some(size) => Ok(Presence::Present(size)),
                    None => self.local_miss("exist").map(|()| Presence::Absent),
                };
                return keys.iter().map(local).collect();
            }
            Err(CallError::Failed(error)) => return vec![Err(read_error(error)); keys.len()],
        };
        if answer.reply.results.len() != keys.len() {
            return vec![Err(nonsense("exist")); keys.len()];
        }
        let results = answer.reply.results.iter().map(|result| match Code::try_from(result.code) {
            Ok(Code::Ok) => Ok(Presence::Present(result.size)),
            Ok(Code::ReplicaIsNotReady) => Ok(Presence::Unavailable),
            Ok(Code::ObjectNotFound) if result.being_written => Ok(Presence::BeingWritten),
            Ok(Code::ObjectNotFound) => Ok(Presence::Absent),
            _ => Err(item_error("exist", result.code)),
        });
        results.collect()
    }

    /// Returns the size of the object that a get without a leader would answer with, in bytes.
    pub(crate) fn local_size(&self, key: &[u8]) -> Option<u64> {
        let cached = self.local.cache.any(key).map(|entry| entry.value.len() as u64);
        cached.or_else(|| Some(self.local.embedded.as_ref()?.find(key)?.size))
    }

    /// Removes each object; the result is `false` where there was none.
    pub(crate) async fn removals(&self, keys: Vec<Bytes>, force: bool) -> Vec<Result<bool, Error>> {
        let deadline = Instant::now() + self.call_timeout;
        self.by_chunks("remove", keys, |keys| self.remove_these(keys, force, deadline)).await
    }

    async fn remove_these(
        &self,
        keys: Vec<Bytes>,
        force: bool,
        deadline: Instant,
    ) -> Vec<Result<bool, Error>> {
        let mut bar = self.local.unpublished.as_ref().map(|queue| queue.bar(keys.clone(), &self.local.cache));
        if let Some(bar) = &mut bar {
            if let Err(error) = bar.quiet(deadline).await {
                return vec![Err(error); keys.len()];
            }
            bar.sent();
        }
        let items: Vec<RemoveItem> =
            keys.into_iter().map(|key| RemoveItem { key, version: Bytes::new() }).collect();
        let request = BatchRemoveRequest { caller: None, tenant: self.tenant.clone(), items, force };
        let answer = match self.masters.call(&request, deadline, Repeat::IfUnsent).await {
            Ok(answer) => answer,
            Err(error) => {
                let error = error.into_error("remove");
                if error.is_unknown() {
                    request.items.iter().for_each(|item| self.local.forget(&item.key));
                } else if let Some(bar) = &mut bar {
                    (0..request.items.len()).for_each(|at| bar.failed(at));
                }
                return vec![Err(error); request.items.len()];
            }
        };
        if answer.reply.results.len() != request.items.len() {
            return vec![Err(nonsense("remove").unknown()); request.items.len()];
        }
        let results =
            request.items.iter().zip(&answer.reply.results).enumerate().map(|(at, (item, result))| {
                let removed = match Code::try_from(result.code) {
                    Ok(Code::Ok) => Ok(true),
                    Ok(Code::ObjectNotFound) => Ok(false),
                    _ => Err(item_error("remove", result.code)),
                };
                if removed.is_ok() {
                    self.local.forget(&item.key);
                } else if let Some(bar) = &mut bar {
                    bar.failed(at);
                }
                removed
            });
        results.collect()
    }

    /// Cuts keys into requests and runs a few of them concurrently. Keys that no master would accept fail here.
    pub(crate) async fn by_chunks<T: Clone, F>(
        &self,
        what: &'static str,
        keys: Vec<Bytes>,
        call: impl Fn(Vec<Bytes>) -> F,
    ) -> Vec<Result<T, Error>>
    where
        F: Future<Output = Vec<Result<T, Error>>>,
    {
        let mut results: Vec<Option<Result<T, Error>>> = vec![None; keys.len()];
        let mut good = Vec::with_capacity(keys.len());
        for (at, key) in keys.into_iter().enumerate() {
            match check_key(what, &key) {
                Ok(()) => good.push((at, key)),
                Err(error) => results[at] = Some(Err(error)),
            }
        }
        let chunks = key_chunks(good.iter().map(|(_, key)| key.len()));
        let calls: Vec<_> = chunks
            .into_iter()
            .map(|chunk| call(good[chunk].iter().map(|(_, key)| key.clone()).collect()))
            .collect();
        let answers: Vec<_> = futures::stream::iter(calls).buffered(IN_FLIGHT).collect().await;
        for ((at, _), answer) in good.iter().zip(answers.into_iter().flatten()) {
            results[*at] = Some(answer);
        }
        results.into_iter().map(|result| result.unwrap_or_else(|| Err(nonsense(what)))).collect()
    }
}

/// Cuts keys of these lengths into requests.
pub(crate) fn key_chunks(lengths: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    cut(lengths.map(|len| Cost { request: len + KEY_OVERHEAD, payload: 0 }))
}

/// Makes an error definite: a read changes nothing, so a failed read changed nothing either.
pub(crate) fn read_error(error: Error) -> Error {
    Error { outcome: crate::Outcome::Definite, ..error }
}
