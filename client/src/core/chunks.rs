//! Calls that move no bytes and have results by key: remove, and what is done in chunks as it is.

use std::ops::Range;

use bytes::Bytes;
use futures::StreamExt;
use mc_proto::v1::{BatchRemoveRequest, RemoveItem};
use mc_types::Code;
use tokio::time::Instant;

use super::batch::{Cost, IN_FLIGHT, cut};
use super::{Core, check_key, item_error, nonsense};
use crate::Error;
use crate::call::Repeat;

/// Maximum bytes that a key takes in a request in addition to its own.
const KEY_OVERHEAD: usize = 8;

impl Core {
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
