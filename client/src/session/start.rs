//! The start of put sessions.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use mc_types::MAX_GRANT_LIFETIME;
use tokio::time::Instant;

use super::open_put::{OpenPut, WRITE};
use crate::core::{Core, IN_FLIGHT, cut, nonsense};
use crate::put::{CacheUse, PendingPut, PutBatch, PutStep, check_options};
use crate::{Error, PutOptions};

/// Starts put sessions.
#[derive(Clone, Copy)]
pub(crate) struct SessionStarts<'c>(PutBatch<'c>);

impl<'c> SessionStarts<'c> {
    /// Sessions whose puts have these options and begin now.
    pub(crate) fn new(core: &'c Core, options: &'c PutOptions) -> Self {
        // No grant lives longer, so a later deadline could not be kept.
        let deadline = Instant::now() + options.deadline.min(MAX_GRANT_LIFETIME);
        Self(PutBatch { deadline, ..PutBatch::new(core, options, CacheUse::Session) })
    }

    /// Starts puts of objects of known size. `None`: the key exists, and the put is if-absent.
    pub(crate) async fn open(self, items: Vec<(Bytes, u64)>) -> Vec<Result<Option<OpenPut>, Error>> {
        if let Err(error) = check_options(self.0.options) {
            return items.iter().map(|_| Err(error.clone())).collect();
        }
        let mut results: Vec<Option<Result<Option<OpenPut>, Error>>> = Vec::new();
        results.resize_with(items.len(), || None);
        let mut pending = Vec::with_capacity(items.len());
        for (at, (key, size)) in items.into_iter().enumerate() {
            match PendingPut::sized(at, key, size) {
                Ok(put) => pending.push(put),
                Err(error) => results[at] = Some(Err(error)),
            }
        }
        let chunks = cut(self.0.start_costs(&pending, |_| 0));
        let mut pending = pending.into_iter();
        let chunks: Vec<_> = chunks
            .into_iter()
            .map(|chunk| self.open_chunk(pending.by_ref().take(chunk.len()).collect()))
            .collect();
        let opened: Vec<_> = futures::stream::iter(chunks).buffered(IN_FLIGHT).collect().await;
        for (at, result) in opened.into_iter().flatten() {
            results[at] = Some(result);
        }
        results.into_iter().map(|result| result.unwrap_or_else(|| Err(nonsense(WRITE)))).collect()
    }

    async fn open_chunk(
        &self,
        mut pending: Vec<PendingPut<'static>>,
    ) -> Vec<(usize, Result<Option<OpenPut>, Error>)> {
        let mut opened = Vec::with_capacity(pending.len());
        while !pending.is_empty() {
            let started = self.0.start(std::mem::take(&mut pending)).await;
            let granted = Arc::new(started.granted);
            for ((put, replicas), unended) in started.puts.into_iter().zip(started.unended.each()) {
                let at = put.at;
                let open = OpenPut::new(put, &replicas, &granted, unended, &self.0);
                opened.push((at, open.map(Some)));
            }
            for round in started.others {
                match round {
                    // At most twice: without stores to leave out, and in place of one whose stores are gone.
                    PutStep::Again(put) => pending.push(put),
                    PutStep::Done(at, Ok(_)) => opened.push((at, Ok(None))),
                    PutStep::Done(at, Err(error)) => opened.push((at, Err(error))),
                }
            }
        }
        opened
    }
}
