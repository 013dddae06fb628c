//! Seals of puts whose objects are written range by range.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use mc_transfer::{Seal, Written};
use tokio::time::{Instant, sleep_until};

use super::open_put::OpenPut;
use super::store_writes::{Batch, StoreResults};
use crate::core::Core;
use crate::put::STRAGGLE;

/// Time that a put waits for the seals of its other replicas once one replica is sealed. A seal carries no bytes, so a store that
/// needs longer is in trouble. The masters free the replica.
const OTHERS_WITHIN: Duration = Duration::from_secs(1);

/// Seals that are under way. After its seal no write changes a replica.
pub(super) struct Seals<'s, F> {
    puts: &'s [&'s OpenPut],
    under_way: FuturesUnordered<F>,
    /// State of each put; `None` once it was returned.
    waiting: Vec<Option<UnsealedPut>>,
    /// Time at which sealed puts are returned without waiting for other puts.
    return_at: Option<Instant>,
}

#[derive(Default)]
struct UnsealedPut {
    /// Numbers of the replicas without an answer.
    unanswered: Vec<u32>,
    /// Time at which the replicas without an answer are dropped: set once another replica is sealed.
    give_up_at: Option<Instant>,
}

/// Begins to seal the replicas of the puts whose objects are complete.
pub(super) fn begin<'s>(
    core: &'s Core,
    puts: &'s [&'s OpenPut],
) -> Seals<'s, impl Future<Output = StoreResults> + use<'s>> {
    let now = Instant::now();
    let (mut batch, mut waiting) = (Batch::default(), Vec::with_capacity(puts.len()));
    for (at, put) in puts.iter().enumerate() {
        let replicas = put.unsealed_replicas(now);
        for (number, place) in &replicas {
            batch.add(put, now, (at, *number, 0), *place, Vec::new());
        }
        let unanswered = replicas.into_iter().map(|(number, _)| number).collect();
        waiting.push(Some(UnsealedPut { unanswered, give_up_at: None }));
    }
    Seals { puts, under_way: batch.begin(core, Seal::Yes).collect(), waiting, return_at: None }
}

impl<F: Future<Output = StoreResults>> Seals<'_, F> {
    /// Returns the next puts of which no replica is waited for; `None` when all were returned. A call that is dropped has lost
    /// nothing.
    ///
    /// Usually all stores answer at nearly the same time. A slow one delays only its own puts, and for a while.
    pub(super) async fn next(&mut self) -> Option<Vec<usize>> {
        loop {
            let now = Instant::now();
            self.give_up_stragglers(now);
            let is_over = |put: &UnsealedPut| put.unanswered.is_empty();
            let waiting = self.waiting.iter().flatten().filter(|put| !is_over(put)).count();
            if self.waiting.iter().flatten().any(is_over) {
                if waiting == 0 || self.return_at.is_some_and(|at| at <= now) {
                    self.return_at = None;
                    let over = self.waiting.iter_mut().enumerate();
                    return Some(
                        over.filter_map(|(at, put)| put.take_if(|put| is_over(put)).map(|_| at)).collect(),
                    );
                }
                self.return_at = self.return_at.or(Some(now + STRAGGLE));
            } else if waiting == 0 {
                return None;
            }
            let give_up_at = self.waiting.iter().flatten().filter_map(|put| put.give_up_at);
            let wake = give_up_at.chain(self.return_at).min();
            tokio::select! {
                biased;
                answers = self.under_way.next() => match answers {
                    Some(answers) => self.judge(answers),
                    // Each replica of a batch has an answer.
                    None => self.waiting.iter_mut().flatten().for_each(|put| put.unanswered.clear()),
                },
                () = sleep_until(wake.unwrap_or(now)), if wake.is_some() => {}
            }
        }
    }

    fn judge(&mut self, answers: StoreResults) {
        for ((at, number, _), result) in answers {
            let Some(put) = &mut self.waiting[at] else { continue };
            let Some(nth) = put.unanswered.iter().position(|replica| *replica == number) else { continue };
            put.unanswered.swap_remove(nth);
            match result {
                Ok(Written { receipt, .. }) => {
                    self.puts[at].sealed(number, receipt);
                    put.give_up_at = put.give_up_at.or(Some(Instant::now() + OTHERS_WITHIN));
                }
                Err(error) => self.puts[at].give_up(number, error.to_string()),
            }
        }
    }

    fn give_up_stragglers(&mut self, now: Instant) {
        for (put, waiting) in self.puts.iter().zip(&mut self.waiting) {
            let Some(waiting) = waiting else { continue };
            if waiting.give_up_at.is_some_and(|at| at <= now) {
                for number in waiting.unanswered.drain(..) {
                    put.give_up(number, format!("it was not sealed {OTHERS_WITHIN:?} after another replica"));
                }
                waiting.give_up_at = None;
            }
        }
    }
}
