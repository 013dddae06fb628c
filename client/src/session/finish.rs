//! The end of put sessions: seals, then one call to the leader.

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use mc_transfer::Checksum;
use tokio::time::Instant;

use super::open_put::{OpenPut, WRITE};
use super::seals;
use crate::core::{Core, Cost, IN_FLIGHT, cut, nonsense};
use crate::local::EmbeddedPlace;
use crate::put::{CacheUse, PutBatch, PutStep, StartedPut, note_results};
use crate::{Error, Put, PutMode, PutOptions};

/// Maximum bytes of an item in a request to end or revoke puts, without its key and its receipts: put id, checksum, failed
/// replicas.
const END_ITEM_BYTES: usize = 100;
const MODES: [PutMode; 2] = [PutMode::IfAbsent, PutMode::Upsert];

/// Ends put sessions.
#[derive(Clone, Copy)]
pub(super) struct Finish<'p> {
    core: &'p Core,
    puts: &'p [&'p OpenPut],
}

impl<'p> Finish<'p> {
    pub(super) fn new(core: &'p Core, puts: &'p [&'p OpenPut]) -> Self {
        Self { core, puts }
    }

    /// Ends puts whose objects are complete, which makes them visible. The others fail and stay open.
    pub(super) async fn run(self) -> Vec<Result<Put, Error>> {
        let mut results = vec![None; self.puts.len()];
        let (mut seals, mut ending) = (seals::begin(self.core, self.puts), FuturesUnordered::new());
        loop {
            tokio::select! {
                biased;
                Some(sealed) = seals.next() => ending.push(self.end(sealed)),
                Some(ended) = ending.next() => {
                    for (at, result) in ended {
                        results[at] = Some(result);
                    }
                }
                else => break,
            }
        }
        let results: Vec<_> =
            results.into_iter().map(|result| result.unwrap_or_else(|| Err(nonsense(WRITE)))).collect();
        for mode in MODES {
            let of_mode = self.puts.iter().zip(&results).filter(|(put, _)| put.mode == mode);
            note_results(self.core, mode, of_mode.map(|(put, result)| (&put.key[..], result)));
        }
        results
    }

    /// Ends those of the puts that are sealed.
    async fn end(&self, sealed: Vec<usize>) -> Vec<(usize, Result<Put, Error>)> {
        let now = Instant::now();
        let mut results = Vec::with_capacity(sealed.len());
        let mut written = [Vec::new(), Vec::new()];
        for at in sealed {
            let put = self.puts[at];
            match put.complete(at, now) {
                Ok(mut done) => {
                    done.pending.spot = self.spot(put, &done);
                    done.pending.maybe_ended = put.ending();
                    written[usize::from(put.mode == PutMode::Upsert)].push(done);
                }
                Err(error) => {
                    put.refused(&error);
                    results.push((at, Err(error)));
                }
            }
        }
        let options = MODES.map(|mode| PutOptions::default().with_mode(mode));
        let mut ends = Vec::new();
        for (written, options) in written.into_iter().zip(&options) {
            let cost = |put: &StartedPut<'_>| {
                let request = put.pending.key.len() + END_ITEM_BYTES + put.receipts.len();
                Cost { request, payload: 0 }
            };
            let chunks = cut(written.iter().map(cost).collect::<Vec<_>>());
            let mut written = written.into_iter();
            for chunk in chunks {
                let chunk: Vec<_> = written.by_ref().take(chunk.len()).collect();
                let deadline =
                    chunk.iter().map(|put| self.puts[put.pending.at].deadline).max().unwrap_or(now);
                ends.push(
                    PutBatch { deadline, ..PutBatch::new(self.core, options, CacheUse::Session) }.end(chunk),
                );
            }
        }
        let ended: Vec<_> = futures::stream::iter(ends).buffered(IN_FLIGHT).collect().await;
        for (at, result) in ended.into_iter().flatten().filter_map(PutStep::done) {
            results.push((at, self.puts[at].ended(result)));
        }
        results
    }

    /// Returns the object's place in this process's own store, if it was written there.
    fn spot(&self, put: &OpenPut, written: &StartedPut<'_>) -> Option<EmbeddedPlace> {
        let whole = |number: u32| !written.failed.iter().any(|(failed, _)| *failed == number);
        let places = put.replicas.iter().filter(|(number, _)| whole(*number)).map(|(_, place)| place);
        self.core.local.embedded.as_ref()?.spot(put.size, Checksum(written.checksum?), places)
    }
}
