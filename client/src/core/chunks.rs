//! Keys of a call, cut into requests.

use std::ops::Range;

use bytes::Bytes;
use futures::StreamExt;

use super::batch::{Cost, IN_FLIGHT, cut};
use super::{Core, check_key, nonsense};
use crate::Error;

/// Maximum bytes that a key takes in a request in addition to its own.
const KEY_OVERHEAD: usize = 8;

impl Core {
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

/// Copies keys, which a call needs for longer than it borrows them.
pub(crate) fn copied<K: AsRef<[u8]>>(keys: &[K]) -> Vec<Bytes> {
    keys.iter().map(|key| Bytes::copy_from_slice(key.as_ref())).collect()
}

/// Makes an error definite: a read changes nothing, so a failed read changed nothing either.
pub(crate) fn read_error(error: Error) -> Error {
    Error { outcome: crate::Outcome::Definite, ..error }
}
